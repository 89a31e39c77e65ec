"""The channel between an agent and a simulated slave: both ends of it, in one object."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf

from msgspec import Struct, field

from mwpy._simulation.journal import SimulatedJournal
from mwpy._simulation.network import SimulatedAgentLink
from mwpy._transport import wire
from mwpy._values import messages
from mwpy._values.errors import ProtocolError
from mwpy._values.ids import Buffer

__all__ = ["SimulatedChannel"]


class SimulatedChannel(Struct, eq=False):
    """The agent's end of the channel to a slave, and the actions of the slave at the other end."""

    _fd: int
    _link: SimulatedAgentLink
    _wake_slave: Callable[[], None]
    journal: SimulatedJournal
    started: int = 0
    began: float = 0.0
    recalls: int = 0
    fed_at: float = 0.0
    tasks_end_at: float = inf
    """When the tasks of the slave must have ended."""
    eof: bool = False
    wants_write: bool = False
    closed: bool = False
    """Whether the agent has collected the slave."""
    spoilt: bool = False
    """Whether some code in the slave has written into the stream."""
    to_slave: deque[Sequence[Buffer]] = field(default_factory=deque)
    _to_agent: list[list[Buffer]] = field(default_factory=list)
    _ended: bool = False
    _nonsense: bool = False

    def fileno(self) -> int:
        """The file descriptor to wait for."""
        return self._fd

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send to the slave."""
        self.to_slave.append(frames)
        self._wake_slave()

    def flush(self) -> None:
        """Do nothing: everything is sent."""

    def receive(self) -> list[list[Buffer]]:
        """Return what the slave has sent."""
        self._link.readable(self._fd, False)
        if self._nonsense:
            self._nonsense = False
            raise ProtocolError("simulated nonsense")
        received, self._to_agent = self._to_agent, []
        self.eof = self._ended
        return received

    def recall(self) -> None:
        """Stop the slave from starting tasks."""
        self.recalls += 1

    def feed(self, now: float) -> None:
        """Record when an idle slave gets tasks."""
        self.fed_at = now

    def end_at(self, moment: float) -> None:
        """Record when the tasks of the slave must have ended."""
        self.tasks_end_at = moment

    def fault(self, most: int) -> bytes:
        """Nothing was written by a fault handler."""
        return b""

    def close(self) -> None:
        """The agent has collected the slave."""
        self.closed = True

    # ---- the slave's end -----------------------------------------------------------------------------------

    def reply(self, message: messages.Message, payload: Sequence[Buffer] = ()) -> None:
        """The slave sends a message, unless its end is closed."""
        if not self._ended:
            self._to_agent.append(wire.encode(message, payload))
            self._link.readable(self._fd, True)

    def end(self) -> None:
        """The slave closes its end."""
        self._ended = True
        self._link.readable(self._fd, True)

    def write_nonsense(self) -> None:
        """Some code in the slave writes into the stream, after everything that the slave has sent."""
        if not self._to_agent:
            self._nonsense = self.spoilt = True
            self._link.readable(self._fd, True)
