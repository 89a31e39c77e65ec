"""The file descriptors that an agent waits for, and the search for a master that moved.

The file descriptors that an agent waits for: streams and outputs of its slaves, and its own standard streams.

The agent must not block, and must limit how much of its slaves' output it stores. So it reads no slave's output when
its own stream is full. The slaves then wait, as they would without an agent. After a while (`Outlet.patience_until`)
the agent reads them again, and drops output that its stream does not accept.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from mwpy import resource_file
from mwpy._core.agent.child import AddressesFound, ComputationOver
from mwpy._roles.edges import AgentConnection, OutputStream, SlaveParts
from mwpy._roles.join import MasterContact, contact_in, link_to
from mwpy._system.process import Question
from mwpy._transport.link import AgentLink, ipv4_of
from mwpy._values.errors import MwpyError
from mwpy._values.options import Options

STREAM, STDOUT, STDERR = 0, 1, 2
"""What a file descriptor of a slave leads to: its stream of messages, or one of its outputs."""


class SlaveHandle:
    """A slave process, and the agent's ends of its channel and pipes."""

    def __init__(self, number: int, parts: SlaveParts) -> None:
        self.number = number
        self.parts = parts
        self.channel = parts.channel
        self.fds: dict[int, None] = {}
        """Its file descriptors that the link watches."""
        self.writable_watched = False
        self.exit_seen = False


class WatchedFiles(Struct, eq=False):
    """Tells the link what to wait for.

    Args:
        link: the link that waits for them.
        outlets: the agent's own standard streams.
        slaves: the slaves that run; the agent adds and removes them.
    """

    _link: AgentConnection
    _outlets: Mapping[int, OutputStream]
    _slaves: Mapping[int, SlaveHandle]
    _owners: dict[int, tuple[SlaveHandle | None, int]] = field(default_factory=dict)
    """For each file descriptor: its slave, and what it leads to. The agent's own streams have no slave."""
    _waiting: dict[int, None] = field(default_factory=dict)
    """The agent's own streams that have not accepted everything."""
    _listens: bool = True
    """Whether the streams of slaves are read."""
    _full: dict[int, float] = field(default_factory=dict)
    """The agent's own streams that are full, and until when slaves wait for each of them."""

    @property
    def full_until(self) -> float | None:
        """When slaves are read again although one of the agent's own streams is full; None if none is full."""
        return min(self._full.values()) if self._full else None

    def owner(self, fd: int) -> tuple[SlaveHandle | None, int]:
        """The slave to which a file descriptor belongs, and what the descriptor leads to.

        Returns:
            (None, number) for an own stream of the agent that can be written, and (None, 0) if it is no longer watched.
        """
        return self._owners.get(fd, (None, STREAM))

    def add(self, slave: SlaveHandle) -> None:
        """Watch the outputs of a slave that is started."""
        for output in slave.parts.outputs:
            if output not in self._full:
                self._watch(slave, slave.parts.outputs[output].fileno(), output)

    def add_stream(self, slave: SlaveHandle) -> None:
        """Watch the stream of a slave that has a process of its own."""
        self._watch(slave, slave.channel.fileno(), STREAM)
        self.watch_writable(slave)

    def remove(self, slave: SlaveHandle, fd: int) -> None:
        """Stop watching a file descriptor of a slave."""
        if fd in slave.fds:
            del slave.fds[fd], self._owners[fd]
            self._link.unwatch(fd)

    def watch_writable(self, slave: SlaveHandle) -> None:
        """Watch whether the stream of a slave can be written, if a message waits for that."""
        channel = slave.channel
        if channel.wants_write != slave.writable_watched and channel.fileno() in slave.fds:
            slave.writable_watched = channel.wants_write
            self._link.watch(channel.fileno(), slave.writable_watched, self._listens)

    def listen(self, wanted: bool) -> None:
        """Read the streams of all slaves, or let the slaves wait."""
        if wanted != self._listens:
            self._listens = wanted
            for slave in self._slaves.values():
                if slave.channel.fileno() in slave.fds:
                    self._link.watch(slave.channel.fileno(), slave.writable_watched, wanted)

    def control_flow(self, now: float) -> None:
        """Watch the agent's streams that have waiting output. Do not read slaves while such a stream is full."""
        for number, outlet in self._outlets.items():
            if not (outlet.waiting or number in self._waiting or number in self._full):
                continue
            if outlet.waiting != (number in self._waiting):
                self._wait_for(number, outlet.waiting)
            until = outlet.patience_until()
            full = until is not None and now < until
            if full != (number in self._full):
                for slave in self._slaves.values():
                    self._listen(slave, number, not full)
            if until is not None and full:
                self._full[number] = until
            else:
                self._full.pop(number, None)

    def _watch(self, slave: SlaveHandle, fd: int, what: int) -> None:
        self._owners[fd] = slave, what
        slave.fds[fd] = None
        self._link.watch(fd, readable=what != STREAM or self._listens)

    def _wait_for(self, number: int, wanted: bool) -> None:
        if wanted:
            self._waiting[number] = None
            self._owners[number] = None, number
            self._link.watch(number, writable=True, readable=False)
        else:
            del self._waiting[number], self._owners[number]
            self._link.unwatch(number)

    def _listen(self, slave: SlaveHandle, output: int, wanted: bool) -> None:
        pipe = slave.parts.outputs[output]
        if not wanted:
            self.remove(slave, pipe.fileno())
        elif not pipe.ended:
            self._watch(slave, pipe.fileno(), output)


# How an agent finds its master again: it reads the resource file and looks up addresses in a thread of its own.
#
# While the network fails, a file system may hang, and a name server may not answer. But the agent must serve its
# slaves.
#
# The resource file may be of another generation of the master than the agent: a later one, or a former one if a network
# file system shows an old file. So the agent tries the addresses in the file, and the address at which its master was.
# A master that answers says which generation it is of.


Places = dict[str, tuple[MasterContact, str]]
"""Where the master may be, by name: an address, and how to connect to it. Two generations may have the same address and
other keys."""


class Search:
    """Finds the master of an agent.

    Args:
        options: where to look.
        contact: where the master was.
        address: its address that answered then.
    """

    def __init__(self, options: Options, contact: MasterContact, address: str) -> None:
        self._options = options
        self._contact = contact
        """How the last connection was made."""
        self._address = address
        self._places: Places = {}
        """What was found out last."""
        self._question = Question(self._look, "mwpy-search")

    def ask(self) -> None:
        """Find out where the master may be now."""
        self.answer()

    def answer(self) -> AddressesFound | ComputationOver | None:
        """Return what was found out; None if this needs more time."""
        try:
            found = self._question.ask(0.0)
        except TimeoutError:
            return None
        if isinstance(found, ComputationOver):
            return found
        self._places = found
        return AddressesFound([*found])

    def _look(self) -> Places | ComputationOver:
        before, published = self._contact, self._published()
        if published is None:
            return _places(before, self._address)
        if published.computation_status == resource_file.FINISHED:
            return ComputationOver("the resource file says that the computation is finished", finished=True)
        contact = contact_in(published, self._options)
        if contact.generation == before.generation:
            return _places(contact, self._address)
        if contact.member_id != before.member_id:
            return ComputationOver("the resource file is of another computation", finished=False)
        places, former = _places(contact), _places(before, self._address)
        return places | {name: former[name] for name in former if name not in places}

    def _published(self) -> resource_file.ResourceFile | None:
        """The content of the resource file; None if there is none."""
        if self._options.resource_file is None:
            return None
        try:
            return resource_file.read(self._options.resource_file)
        except MwpyError:  # it may be torn, or its file system may be away
            return None

    def connect(self, address: str) -> AgentLink:
        """Begin to connect to one of these addresses."""
        self._contact, self._address = self._places[address]
        return link_to(self._contact, self._address)


def _places(contact: MasterContact, first: str | None = None) -> Places:
    """The places of a contact.

    Args:
        first: an address that has answered.
    """
    found = [] if first is None else [first]
    for address in contact.addresses:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        number = ipv4_of(host)
        if number is not None:
            found.append(f"tcp://{number}:{port}")
    return {f"{address} {contact.server_public}": (contact, address) for address in found}
