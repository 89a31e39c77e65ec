"""The parts of simulated slaves: journals, channels, and shared objects."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf

from attrs import Factory, define

from mwpy._simulation.checkers import Run
from mwpy._simulation.world import World
from mwpy._transport import wire
from mwpy._transport.channel import JOURNAL_BYTES, Journal
from mwpy._values import groups, messages
from mwpy._values.bounds import Buffer
from mwpy._values.errors import ProtocolError
from mwpy._values.messagepack import as_pickle, encode
from mwpy._values.messages import OF_RESULT, PART_BYTES, Share
from mwpy._values.shares import KNOWN, SharedObject

# The results of a simulated slave: the real journal, and files.


FILE_WITH_NUMBER = encode(as_pickle(b"\x80\x05c%b\nnumber_in\n\x97\x98\x85R." % __name__.encode()))
"""What a slave sends of a value that is made from a large read-only buffer: `number_in` is called with it."""


def number_in(content: Buffer) -> int:
    """Return the number that is written in a file."""
    return int.from_bytes(content[:8], "big")


def group_of_file(run: Run, number: int, size: int) -> tuple[messages.Results, Sequence[Buffer]]:
    """Make a group of one result: a file in which this number is written."""
    share = Share(f"{OF_RESULT}{run.slave}-{run.task}-{run.attempt}-{run.seconds}", size)
    group = messages.Results(run.slave, [run.task], [1], [run.attempt], [run.seconds], [], buffers=[1], shares=[share])
    return group, [groups.payload(1, [FILE_WITH_NUMBER]), number.to_bytes(8, "big").ljust(size, b"-")]


@define(eq=False, repr=False)
class SimulatedJournal:
    """The journal of a slave, as its agent reads it."""

    _begins: Callable[[], None]
    """Called before it is read. The slave may send the results at this moment."""
    written: Journal = Factory(lambda: Journal(memoryview(bytearray(JOURNAL_BYTES))))
    heard: dict[tuple[int, int], None] = Factory(dict)
    """The tasks and attempts whose results the agent has read here, or was sent."""

    def read(self, slave: int) -> tuple[messages.Results, Sequence[Buffer]] | None:
        """Read the results."""
        self._begins()
        found = self.written.read(slave)
        if found is not None:
            self.heard.update(dict.fromkeys(groups.each_task(found[0])))
        return found


# The channel between an agent and a simulated slave: both ends of it, in one object.


@define(eq=False, repr=False)
class SimulatedChannel:
    """The agent's end of the channel to a slave, and the actions of the slave at the other end."""

    _fd: int
    _readable: Callable[[int, bool], None]
    """Called with whether there is something to read."""
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
    to_slave: deque[Sequence[Buffer]] = Factory(deque)
    _to_agent: list[list[Buffer]] = Factory(list)
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
        self._readable(self._fd, False)
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
            self._readable(self._fd, True)

    def end(self) -> None:
        """The slave closes its end."""
        self._ended = True
        self._readable(self._fd, True)

    def write_nonsense(self) -> None:
        """Some code in the slave writes into the stream, after everything that the slave has sent."""
        if not self._to_agent:
            self._nonsense = self.spoilt = True
            self._readable(self._fd, True)


# The shared objects of an agent and its slaves.


@define(eq=False, repr=False)
class SimulatedStore:
    """The files of an agent. It checks that each part is written once, and that only what is complete is used."""

    _world: World
    _missing: dict[str, dict[int, None]] = Factory(dict)
    """The parts that each file lacks."""
    contents: dict[str, bytes] = Factory(dict)
    """The contents of buffers of results, as far as they are here."""

    def open(self, share: Share, content: Buffer) -> tuple[str, bool]:
        """Make a file; sometimes the content is on this host already."""
        assert share.digest not in self._missing, f"the {share.digest} is here, and is fetched again"
        is_of_result = share.digest.startswith(OF_RESULT)
        complete = bool(content) if is_of_result else self._world.chance(0.2)
        if is_of_result:
            self.contents[share.digest] = bytes(content)
        self._missing[share.digest] = {} if complete else dict.fromkeys(range(0, share.size, PART_BYTES))
        return "here", complete

    def write(self, digest: str, start: int, part: Buffer) -> None:
        """Write a part."""
        assert start in self._missing[digest], f"the part from byte {start} of the {digest} came twice"
        assert len(part) == PART_BYTES or start == max(self._missing[digest]), "a part is too small"
        del self._missing[digest][start]
        if digest in self.contents:
            self.contents[digest] += part

    def drop(self, digest: str) -> None:
        """Drop a file."""
        self._missing.pop(digest, None)
        self.contents.pop(digest, None)

    def close(self) -> None:
        """Do nothing: there are no files."""

    def is_complete(self, digest: str) -> bool:
        """Whether there is a file with all parts."""
        return self._missing.get(digest) == {}


@define(eq=False, repr=False)
class SharesOfSlave:
    """The shared objects that a slave knows, and those that its tasks need."""

    _store: SimulatedStore
    _known: dict[str, str] = Factory(dict)
    """Why each is missing; empty if it is here."""

    def hear(self, message: messages.Message) -> None:
        """Read a message of the agent, which may have dropped the object meanwhile. `start` checks what a task uses."""
        if isinstance(message, messages.ShareGiven):
            if not message.reason:
                assert message.share.location == "here", "its location is not that of the agent"
            self._known[message.share.digest] = message.reason
        elif isinstance(message, messages.ShareForgotten):
            del self._known[message.digest]

    def are_here(self, digests: Sequence[str]) -> bool:
        """Whether a task that needs these objects can start."""
        return all(digest in self._known for digest in digests)

    def start(self, needed: Sequence[str], wanted: Sequence[str]) -> list[SharedObject]:
        """A task starts that needs these objects, and at least those that it wanted at its submission. Return the
        buffers of results that are here for it, which the codec finds as long as they exist."""
        of_results = [digest for digest in needed if digest.startswith(OF_RESULT)]
        for digest in (*wanted, *of_results):
            assert digest in self._known, f"a task runs without the {digest}"
            here = self._known[digest] or self._store.is_complete(digest)
            assert here, f"a task uses the {digest}, which its agent has dropped"
        contents = {digest: self._store.contents[digest] for digest in of_results}
        found = [SharedObject(Share(digest, len(content)), content) for digest, content in contents.items()]
        KNOWN.update({each.share.digest: each for each in found})
        return found
