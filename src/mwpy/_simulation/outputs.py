"""The standard output and error of simulated slaves, and of the agent that passes them on."""

from __future__ import annotations

from msgspec import Struct, field

from mwpy._simulation.network import SimulatedAgentLink
from mwpy._simulation.world import World

__all__ = ["SimulatedOutlet", "SimulatedPipe"]


class SimulatedOutlet(Struct, eq=False):
    """A standard stream of an agent."""

    _world: World
    data: bytearray = field(default_factory=bytearray)
    full_until: float = 0.0
    """Until when it accepts nothing."""
    found_full: bool = False
    """Whether the agent knows that it is full."""

    @property
    def waiting(self) -> bool:
        """Whether something waits to be written."""
        return self._world.now < self.full_until

    def patience_until(self) -> float | None:
        """Until when slaves must wait because it is full; None if it is not full."""
        self.found_full = self._world.now < self.full_until
        return self.full_until if self.found_full else None

    def pass_on(self, data: bytes | bytearray, now: float) -> None:
        """Write."""
        self.data += data

    def flush(self, now: float, patience_s: float = 0.0) -> None:
        """Do nothing: everything is written."""


class SimulatedPipe(Struct, eq=False):
    """Standard output or error of a slave."""

    _fd: int
    _link: SimulatedAgentLink
    _outlet: SimulatedOutlet
    ended: bool = False
    _closed: bool = False
    _unread: bytearray = field(default_factory=bytearray)
    _all: bytearray = field(default_factory=bytearray)

    def write(self, text: str) -> None:
        """The slave writes."""
        self._unread += text.encode()
        self._link.readable(self._fd, True)

    def close(self) -> None:
        """The slave ends."""
        self._closed = True
        self._link.readable(self._fd, True)

    def fileno(self) -> int:
        """The file descriptor to wait for."""
        return self._fd

    def read(self) -> bytes:
        """Return what was written since the last call."""
        assert not self._outlet.found_full, "an agent reads a slave's output though its own stream is full"
        return self.read_rest()

    def read_rest(self) -> bytes:
        """Return the same, even if the agent's own stream is full."""
        data = bytes(self._unread)
        self._unread.clear()
        self._all += data
        self.ended = self._closed and not data
        if self.ended or not self._closed:
            self._link.readable(self._fd, False)
        return data

    @property
    def end(self) -> str:
        """Everything that was read."""
        return self._all.decode()
