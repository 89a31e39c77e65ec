"""The simulated network, and what simulated slaves write.

Its connections delay messages, keep their order, repeat some, and break.

The two links behave as the real ones do (see `_transport/link`). After a connection broke, nothing that was sent
over it arrives. Each end notices the break in its own time. A peer is reported as unreachable only once, and only if it
had sent a message to the master.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from attrs import Factory, define

from mwpy._simulation.checkers import HistoryChecker
from mwpy._simulation.world import World
from mwpy._transport import wire
from mwpy._transport.stream import Broken, Connected, Frames, Happened, StrangerSeen, Unreachable
from mwpy._values import messages
from mwpy._values.bounds import Buffer

ADDRESS = "simulated"


OF_CONNECTION = (messages.Hello, messages.Handled)
"""Messages to the master that concern one connection, and that sessions do not count."""

ONCE = (messages.Hello, messages.SlaveReady)
"""The messages that a correct agent never repeats."""


class SimulatedAgentLink:
    """An agent's end of its connection. `poll` never waits: it returns the messages that have arrived.

    Args:
        before: the connection that the agent had before; None if this is its first one.
    """

    def __init__(
        self, send: Callable[[Sequence[Buffer]], None], wake: Callable[[], None], before: SimulatedAgentLink | None
    ) -> None:
        self.send = send
        self.wake = wake
        """A function that makes the agent iterate."""
        self._inbox: deque[list[Buffer]] = deque()
        self._broken: list[Connected | Broken] = []
        self._watched: dict[int, None] = {}
        self._ready: dict[int, None] = {} if before is None else before._ready
        """The file descriptors that can be read, watched or not."""

    def watch(self, fd: int, writable: bool = False, readable: bool = True) -> None:
        """Report when a file descriptor can be read."""
        self.unwatch(fd)
        if writable or readable:
            self._watched[fd] = None

    def unwatch(self, fd: int) -> None:
        """Stop reporting a file descriptor."""
        self._watched.pop(fd, None)

    def readable(self, fd: int, now_readable: bool) -> None:
        """Record whether a file descriptor can be read from now on."""
        if now_readable:
            self._ready[fd] = None
            self.wake()
        else:
            self._ready.pop(fd, None)

    def arrive(self, frames: list[Buffer]) -> None:
        """A message of the master arrives."""
        self._inbox.append(frames)
        self.wake()

    def change(self, event: Connected | Broken) -> None:
        """The master has accepted the connection, or the agent notices that it is broken."""
        self._broken.append(event)
        self.wake()

    @property
    def pending(self) -> bool:
        """Whether `poll` would return something."""
        return bool(self._inbox or self._broken) or any(fd in self._watched for fd in self._ready)

    def poll(self, timeout_s: float | None) -> tuple[list[Connected | Broken], list[list[Buffer]], list[int]]:
        """Return one message, or else the end of the connection; and the file descriptors that can be read."""
        ready = [fd for fd in self._ready if fd in self._watched]
        if self._inbox:
            return [], [self._inbox.popleft()], ready
        broken, self._broken = self._broken, []
        return broken, [], ready

    def close(self, linger_s: float) -> None:
        """Do nothing: the machine decides when the connection ends."""


@define(eq=False, repr=False)
class Connection:
    """A simulated connection."""

    peer: bytes
    link: SimulatedAgentLink
    agent: bytes
    """The first connection of the same agent: checkers know the agent by this name."""
    repeats: bool
    """Whether messages to the master may arrive twice."""
    network: Network
    broken: bool = False
    to_master_at: float = 0.0
    """When the last message to the master arrives. Messages that are sent later arrive later."""
    to_agent_at: float = 0.0
    back_at: float = 0.0
    """When the master went on with the session of the agent."""

    def cut(self, silent_s: float = 0.0) -> None:
        """Break the connection, as `Network.cut` says."""
        self.network.cut(self, silent_s)


class SimulatedMasterLink:
    """The master's end of all connections. `poll` never waits: it returns the messages that have arrived."""

    asleep = False

    def __init__(
        self,
        send: Callable[[bytes, Sequence[Buffer]], None],
        disconnect: Callable[[bytes], None],
        wake: Callable[[], None],
    ) -> None:
        self._send = send
        self.disconnect = disconnect
        """A function that ends a connection."""
        self.wake = wake
        """A function that makes the master iterate."""
        self._known: dict[bytes, None] = {}
        """The peers that sent something and are not gone."""
        self._inbox: list[Happened] = []

    def arrive(self, event: Frames | StrangerSeen) -> None:
        """A message arrives, or a stranger connects."""
        if isinstance(event, Frames):
            self._known[event.peer] = None
        self._inbox.append(event)
        self.wake()

    def lose(self, peer: bytes, silent_s: float = 0.0) -> None:
        """The master notices that a connection is broken, perhaps because nothing was heard for some seconds."""
        if peer in self._known:
            del self._known[peer]
            self._inbox.append(Unreachable(peer, silent_s))
            self.wake()

    def poll(self, timeout_s: float, now: float) -> list[Happened]:
        """Return everything that has happened."""
        happened, self._inbox = self._inbox, []
        return happened

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> None:
        """Send to a peer."""
        self._send(peer, frames)

    def forget(self, peer: bytes) -> None:
        """Stop reporting the end of this connection."""
        self._known.pop(peer, None)

    def close(self, linger_s: float) -> None:
        """Do nothing: the master decides when the history ends."""


class Network:
    """All connections to one master.

    Args:
        checker: learns what arrives, and which connections broke.
        wake_master: ends a wait of the master.
        generation: the name of the present life of the master.
    """

    def __init__(
        self, world: World, checker: HistoryChecker, wake_master: Callable[[], None], generation: str = "g1"
    ) -> None:
        self._world = world
        self._checker = checker
        self.generation = generation
        self._connections: dict[bytes, Connection] = {}
        """The connections that are not broken."""
        self._arrived: dict[bytes, int] = {}
        """How many messages of each agent arrived that its session counts, without those that came again."""
        self._repeated: dict[bytes, int] = {}
        """How many messages each agent sends again that arrived before."""
        self._peers = 0
        self.is_down = False
        """Whether the master has ended."""
        self.is_finished = False
        """Whether the computation is finished then."""
        self.master = SimulatedMasterLink(self._to_agent, self._disconnect, wake_master)

    def connect(
        self,
        wake_agent: Callable[[], None],
        before: Connection | None = None,
        *,
        repeats: bool = False,
        is_new: bool = False,
    ) -> Connection:
        """A new connection.

        Args:
            before: the connection that the same agent had before.
            repeats: whether messages to the master may arrive twice. Without this, a session counts them.
            is_new: whether this master does not know the agent, which had its connections to a former life.
        """
        self._peers += 1
        peer = f"peer {self._peers}".encode()
        earlier = None if before is None else before.link
        link = SimulatedAgentLink(lambda frames: self._to_master(connection, frames), wake_agent, earlier)
        agent = peer if before is None or is_new else before.agent
        connection = self._connections[peer] = Connection(peer, link, agent, repeats, self)
        if before is not None:
            self._world.after(self._delay(), lambda: self._begin(connection))
        return connection

    def _begin(self, connection: Connection) -> None:
        if self.is_down or self._world.chance(0.3):
            self.cut(connection)
        elif not connection.broken:
            connection.link.change(Connected())

    def _delay(self) -> float:
        return 0.0005 + self._world.random.expovariate(200.0)

    def _to_master(self, connection: Connection, frames: Sequence[Buffer]) -> None:
        message, _ = decoded = wire.decode(frames)
        self._checker.ends.sends(connection.agent, message)
        connection.to_master_at = max(connection.to_master_at, self._world.now + self._delay())
        arrive = partial(self._arrive_at_master, connection, frames, decoded)
        self._world.at(connection.to_master_at, arrive)
        names = isinstance(message, messages.Results) and any(share.size for share in message.shares)
        # for some results that name shared buffers, the master drops the agent
        if connection.repeats and self._world.chance(0.02) and not names:
            self._world.at(connection.to_master_at, partial(arrive, again=True))

    def _arrive_at_master(
        self,
        connection: Connection,
        frames: Sequence[Buffer],
        decoded: tuple[messages.Message, Sequence[Buffer]],
        *,
        again: bool = False,
    ) -> None:
        agent, message = connection.agent, decoded[0]
        if not connection.broken:
            came_before = not isinstance(message, OF_CONNECTION) and self._came_before(agent)
            returns = isinstance(message, messages.Hello) and not self._may_join(message)
            if not (came_before or returns):
                self._checker.heard(agent, *decoded)
            self.master.arrive(Frames(connection.peer, ADDRESS, frames))
        if again and isinstance(message, ONCE):  # the master drops the agent, and reads nothing that arrives after this
            self._checker.unheard[agent] = None

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

    def _to_agent(self, peer: bytes, frames: Sequence[Buffer]) -> None:
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
            self._world.after(0.0, lambda: self.master.lose(peer))
            return
        connection.to_agent_at = max(connection.to_agent_at, self._world.now + self._delay())
        self._world.at(connection.to_agent_at, lambda: self._arrive_at_agent(connection, list(frames)))

    def _arrive_at_agent(self, connection: Connection, frames: list[Buffer]) -> None:
        if not connection.broken:
            connection.back_at = connection.back_at or self._world.now
            connection.link.arrive(frames)

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
        self._world.after(self._world.random.random(), lambda: self.master.lose(connection.peer, silent_s))
        broken = Broken("lost", "the connection broke")
        self._world.after(self._world.random.random(), partial(connection.link.change, broken))

    def _disconnect(self, peer: bytes) -> None:
        if peer in self._connections:
            self.cut(self._connections[peer])

    def send_garbage(self, connection: Connection) -> None:
        """Bytes that are not a message arrive at the master, and the connection breaks."""
        if not connection.broken:
            self.master.arrive(Frames(connection.peer, ADDRESS, [b"nonsense"]))
            self.cut(connection)

    def inquire(self, question: messages.Ask) -> None:
        """A member without slaves asks the master, and leaves when the answer comes."""
        self._peers += 1
        self.master.arrive(Frames(f"inquirer {self._peers}".encode(), ADDRESS, wire.encode(question)))

    def stranger(self) -> None:
        """A process without keys connects to the master."""
        self.master.arrive(StrangerSeen(ADDRESS, "no key"))


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
    _link: SimulatedAgentLink
    _outlet: SimulatedOutlet
    ended: bool = False
    _closed: bool = False
    _unread: bytearray = Factory(bytearray)
    _all: bytearray = Factory(bytearray)

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
