"""The simulated network, and what simulated slaves write.

Its connections delay messages, keep their order, and break.

Both ends of a connection behave as the real ones do (see `_transport/link`). After a connection broke, nothing that
was sent over it arrives. Each end notices the break in its own time. A peer is reported as unreachable only once, and
only if it had sent a message to the master.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from attrs import Factory, define

from mwpy._simulation.checkers import HistoryChecker
from mwpy._simulation.world import World
from mwpy._transport import wire
from mwpy._values import messages
from mwpy._values.bounds import Buffer
from mwpy._values.connections import Broken, Connected, Frames, Happened, Vanished

ADDRESS = "simulated"


OF_CONNECTION = (messages.Hello, messages.Handled)
"""Messages to the master that concern one connection, and that sessions do not count."""


@define(eq=False, repr=False)
class Connection:
    """A connection of an agent, which is its link to the master. `poll` never waits: it returns what has arrived."""

    network: Network
    peer: bytes
    agent: bytes
    """The first connection of the same agent: checkers know the agent by this name."""
    wake: Callable[[], None]
    """Makes the agent iterate."""
    ready: dict[int, None]
    """The other file descriptors of the agent that can be read, watched or not."""
    broken: bool = False
    to_master_at: float = 0.0
    """When the last message to the master arrives. Messages that are sent later arrive later."""
    to_agent_at: float = 0.0
    back_at: float = 0.0
    """When the master went on with the session of the agent."""
    _inbox: deque[list[Buffer]] = Factory(deque)
    _changes: list[Connected | Broken] = Factory(list)

    def arrive(self, frames: list[Buffer]) -> None:
        """A message of the master arrives."""
        if not self.broken:
            self.back_at = self.back_at or self.network.world.now
            self._inbox.append(frames)
            self.wake()

    def change(self, event: Connected | Broken) -> None:
        """The master has accepted the connection, or the agent notices that it is broken."""
        self._changes.append(event)
        self.wake()

    @property
    def pending(self) -> bool:
        """Whether `poll` would return something, besides files."""
        return bool(self._inbox or self._changes)

    def poll(
        self, timeout_s: float | None, files: Mapping[int, int] = {}
    ) -> tuple[list[Connected | Broken], list[list[Buffer]], list[int]]:
        """Return one message, or else the end of the connection; and the file descriptors that can be read."""
        ready = [fd for fd in self.ready if fd in files]
        if self._inbox:
            return [], [self._inbox.popleft()], ready
        changes, self._changes = self._changes, []
        return changes, [], ready

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send to the master."""
        self.network.send_to_master(self, frames)

    def close(self, linger_s: float) -> None:
        """Do nothing: the machine decides when the connection ends."""


class Network:
    """All connections to one master, and its end of them. `poll` never waits: it returns what has happened.

    Args:
        checker: learns what arrives, and which connections broke.
        wake: makes the master iterate.
        generation: the name of the present life of the master.
    """

    asleep = False

    def __init__(self, world: World, checker: HistoryChecker, wake: Callable[[], None], generation: str = "g1") -> None:
        self.world = world
        self._checker = checker
        self.wake = wake
        self.generation = generation
        self._connections: dict[bytes, Connection] = {}
        """The connections that are not broken."""
        self._known: dict[bytes, None] = {}
        """The peers that sent something and are not gone."""
        self._inbox: list[Happened] = []
        self._arrived: dict[bytes, int] = {}
        """How many messages of each agent arrived that its session counts, without those that came again."""
        self._repeated: dict[bytes, int] = {}
        """How many messages each agent sends again that arrived before."""
        self._peers = 0
        self.is_down = False
        """Whether the master has ended."""
        self.is_finished = False
        """Whether the computation is finished then."""

    # ---- the link of the master ----------------------------------------------------------------------------

    def poll(self, timeout_s: float, now: float) -> list[Happened]:
        """Return everything that has happened."""
        happened, self._inbox = self._inbox, []
        return happened

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> None:
        """The master sends to a peer."""
        connection, (message, _) = self._connections.get(peer), wire.decode(frames)
        if isinstance(message, messages.Refused) and not message.finish:  # else running tasks may finish
            self._checker.unheard[peer if connection is None else connection.agent] = None
        elif isinstance(message, messages.Welcome) and connection is not None and connection.agent != peer:
            self._checker.unheard.pop(connection.agent, None)
            repeated = self._arrived.get(connection.agent, 0) - (message.handled or 0)
            assert repeated >= 0, "the master has handled messages that did not arrive"
            self._repeated[connection.agent] = repeated
        elif isinstance(message, messages.SlaveNamed) and connection is not None:
            self._checker.sids[connection.agent, message.slave] = message.sid
        if connection is None:
            self.world.after(0.0, lambda: self._lose(peer))
            return
        connection.to_agent_at = max(connection.to_agent_at, self.world.now + self._delay())
        self.world.at(connection.to_agent_at, partial(connection.arrive, list(frames)))

    def forget(self, peer: bytes) -> None:
        """Stop reporting the end of this connection."""
        self._known.pop(peer, None)

    def disconnect(self, peer: bytes) -> None:
        """The master ends a connection."""
        if peer in self._connections:
            self.cut(self._connections[peer])

    def close(self, linger_s: float) -> None:
        """Do nothing: the master decides when the history ends."""

    def _arrive(self, peer: bytes, frames: Sequence[Buffer]) -> None:
        """A message arrives."""
        self._known[peer] = None
        self._inbox.append(Frames(peer, ADDRESS, [*frames]))
        self.wake()

    def _lose(self, peer: bytes, silent_s: float = 0.0) -> None:
        """The master notices that a connection is broken, perhaps because nothing was heard for some seconds."""
        if peer in self._known:
            del self._known[peer]
            self._inbox.append(Vanished(peer, silent_s))
            self.wake()

    # ---- connections ---------------------------------------------------------------------------------------

    def connect(
        self,
        wake: Callable[[], None],
        ready: dict[int, None],
        before: Connection | None = None,
        is_new: bool = False,
    ) -> Connection:
        """A new connection of an agent.

        Args:
            wake: makes the agent iterate.
            ready: its other file descriptors that can be read.
            before: the connection that the same agent had before.
            is_new: whether this master does not know the agent, which had its connections to a former life.
        """
        self._peers += 1
        peer = f"peer {self._peers}".encode()
        agent = peer if before is None or is_new else before.agent
        connection = self._connections[peer] = Connection(self, peer, agent, wake, ready)
        if before is not None:
            self.world.after(self._delay(), lambda: self._begin(connection))
        return connection

    def _begin(self, connection: Connection) -> None:
        if self.is_down or self.world.chance(0.3):
            self.cut(connection)
        elif not connection.broken:
            connection.change(Connected())

    def _delay(self) -> float:
        return 0.0005 + self.world.random.expovariate(200.0)

    def send_to_master(self, connection: Connection, frames: Sequence[Buffer]) -> None:
        """An agent sends to the master."""
        decoded = wire.decode(frames)
        self._checker.ends.sends(connection.agent, decoded[0])
        connection.to_master_at = max(connection.to_master_at, self.world.now + self._delay())
        self.world.at(connection.to_master_at, partial(self._arrive_at_master, connection, frames, *decoded))

    def _arrive_at_master(
        self, connection: Connection, frames: Sequence[Buffer], message: messages.Message, payload: Sequence[Buffer]
    ) -> None:
        if not connection.broken:
            came_before = not isinstance(message, OF_CONNECTION) and self._came_before(connection.agent)
            returns = isinstance(message, messages.Hello) and not self._may_join(message)
            if not (came_before or returns):
                self._checker.heard(connection.agent, message, payload)
            self._arrive(connection.peer, frames)

    def _came_before(self, agent: bytes) -> bool:
        """Count a message that arrives. Return whether its agent sends it again, because it had not heard more."""
        if self._repeated.get(agent):
            self._repeated[agent] -= 1
            return True
        self._arrived[agent] = self._arrived.get(agent, 0) + 1
        return False

    def _may_join(self, hello: messages.Hello) -> bool:
        """Whether an agent greets this life of the master to join it."""
        return hello.handled is None and hello.generation == self.generation

    def cut(self, connection: Connection, silent_s: float = 0.0) -> None:
        """Break a connection: messages in flight are lost, and both ends notice this at their own times.

        Args:
            silent_s: for how long nothing was heard before, if this is why it breaks.
        """
        if connection.broken:
            return
        connection.broken = True
        del self._connections[connection.peer]
        self._checker.unheard[connection.agent] = None
        self.world.after(self.world.random.random(), lambda: self._lose(connection.peer, silent_s))
        broken = Broken("lost", "the connection broke")
        self.world.after(self.world.random.random(), partial(connection.change, broken))

    def inquire(self, question: messages.Ask) -> None:
        """A member without slaves asks the master, and leaves when the answer comes."""
        self._peers += 1
        self._arrive(f"inquirer {self._peers}".encode(), wire.encode(question))


# The standard output and error of simulated slaves, and of the agent that passes them on.


@define(eq=False, repr=False)
class SimulatedOutlet:
    """A standard stream of an agent."""

    _world: World
    data: bytearray = Factory(bytearray)
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


@define(eq=False, repr=False)
class SimulatedPipe:
    """Standard output or error of a slave."""

    _fd: int
    _readable: Callable[[int, bool], None]
    """Called with whether there is something to read."""
    _outlet: SimulatedOutlet
    ended: bool = False
    _closed: bool = False
    _unread: bytearray = Factory(bytearray)
    _all: bytearray = Factory(bytearray)

    def write(self, text: str) -> None:
        """The slave writes."""
        self._unread += text.encode()
        self._readable(self._fd, True)

    def close(self) -> None:
        """The slave ends."""
        self._closed = True
        self._readable(self._fd, True)

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
            self._readable(self._fd, False)
        return data

    @property
    def end(self) -> str:
        """Everything that was read."""
        return self._all.decode()
