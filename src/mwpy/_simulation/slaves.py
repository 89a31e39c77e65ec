"""The parts of simulated slaves: journals, channels, results that wait, wear, and shared objects."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf

from msgspec import Struct, field
from msgspec.structs import replace

from mwpy._roles.runner import SHORT_S, STRETCH_S
from mwpy._simulation.network import SimulatedAgentLink
from mwpy._simulation.world import World
from mwpy._transport import wire
from mwpy._transport.channel import AGAIN, VALUE
from mwpy._values import groups, messages
from mwpy._values.bounds import Buffer
from mwpy._values.errors import ProtocolError
from mwpy._values.messages import PART_BYTES, Share

# The journal of a simulated slave, which its agent can read.


Ended = tuple[int, int, float, int, bytes]
"""A task that has ended, its attempt and its seconds, whether it has a value, a failure, or a reason to try again, and
what this is."""


def group_of(slave: int, results: Sequence[Ended]) -> tuple[messages.Results, Sequence[Buffer]]:
    """Make a group of results."""
    columns = [list(column) for column in zip(*results, strict=True)] or [[]] * 5
    tasks, attempts, seconds, kinds, entries = columns
    failed = [place for place, kind in enumerate(kinds) if kind != VALUE]
    again = [place for place in failed if kinds[place] == AGAIN]
    group = messages.Results(slave, *groups.spans_of(tasks, attempts), seconds, failed, again=again)
    return group, [groups.payload(len(tasks), entries)]


class SimulatedJournal(Struct, eq=False):
    """The results that a slave has finished and not sent."""

    _sent_meanwhile: Callable[[], bool]
    results: list[Ended] = field(default_factory=list)
    num_read: int = 0
    """How many of these results the agent has read, counted from the first."""

    def read(self, slave: int) -> tuple[messages.Results, Sequence[Buffer]] | None:
        """Read the journal. Sometimes the slave sends the results during the read."""
        if self._sent_meanwhile():
            return None
        self.num_read = len(self.results)
        return self.group(slave)

    def clear(self) -> None:
        """The slave has sent its results."""
        self.results, self.num_read = [], 0

    def group(self, slave: int) -> tuple[messages.Results, Sequence[Buffer]]:
        """The results as a group."""
        return group_of(slave, self.results)


# The channel between an agent and a simulated slave: both ends of it, in one object.


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


# The results of portions that wait in a simulated slave, outside of its journal; see `_roles/runner.py`.


class SimulatedStretch(Struct, eq=False):
    """The results of one stretch.

    Args:
        number: the number of the slave.
        send: sends a message.
    """

    _world: World
    _number: int
    _send: Callable[[messages.Message, Sequence[Buffer]], None]
    positions: dict[int, None] = field(default_factory=dict)
    """The positions of the tasks of portions."""
    silent_from: float = 0.0
    """Since when the agent has heard nothing, as far as the slave knows."""
    results: list[Ended] = field(default_factory=list)

    def is_due(self) -> bool:
        """Whether the results are sent now. A failure does not wait."""
        *_, (_, _, seconds, kind, _) = self.results
        every_s = STRETCH_S if seconds <= SHORT_S else STRETCH_S / 2
        return kind != VALUE or self._world.now // every_s > self.silent_from // every_s

    def waits(self, task: int, attempt: int) -> bool:
        """Whether the result of a task waits here."""
        return any(result[:2] == (task, attempt) for result in self.results)

    def send(self) -> bool:
        """Send the results. Often only the sum of their times is known. Return whether there were any."""
        if not self.results:
            return False
        group, payload = group_of(self._number, self.results)
        if self._world.random.random() >= 0.5:
            group = replace(group, seconds=[sum(group.seconds)])
        are_plain = not group.failed and len(self.results) % 5 > 0  # sometimes one of the values is a pickle
        self._send(replace(group, plain=are_plain), payload)
        self.results.clear()
        self.silent_from = self._world.now
        return True


# What tasks leave behind in a simulated slave: it has run some, and each of them leaks memory.


PATIENCE_S = 0.1
"""Seconds in which an agent that is not frozen replaces a slave that has too much memory."""


class Wear(Struct, eq=False):
    """The wear of one slave. It checks from outside that the agent keeps the limits."""

    _world: World
    _number: int
    _max_tasks: int | None
    _max_memory: int | None
    busy_until: float = 0.0
    """When the slave ran a task last that was not cancelled."""
    _tasks: int = 0
    _memory: float = 0.0
    """The memory that the tasks have leaked: one unit a task on average."""
    _grown_at: float | None = None
    """When the slave reported that it has too much memory."""

    def start(self, frozen_until: float) -> None:
        """Check, when the slave starts a task, that it may. Its agent was frozen until some earlier moment."""
        self._tasks += 1
        assert self._max_tasks is None or self._tasks <= self._max_tasks, f"slave {self._number} runs too many tasks"
        if self._grown_at is not None:
            in_time = self._world.now < max(self._grown_at, frozen_until) + PATIENCE_S
            assert in_time, f"slave {self._number} runs a task although it has too much memory"

    def finish(self, *, wanted: bool) -> bool:
        """The slave has finished a task. Return whether it reports now that it has too much memory.

        Args:
            wanted: whether the task is not cancelled.
        """
        if wanted:
            self.busy_until = self._world.now
        self._memory += self._world.random.expovariate(1.0)
        if self._max_memory is None or self._memory <= self._max_memory or self._grown_at is not None:
            return False
        self._grown_at = self._world.now
        return True


# The shared objects of an agent and its slaves.


class SimulatedStore(Struct, eq=False):
    """The files of an agent. It checks that each part is written once, and that only what is complete is used."""

    _world: World
    _missing: dict[str, dict[int, None]] = field(default_factory=dict)
    """The parts that each file lacks."""

    def open(self, share: Share) -> tuple[str, bool]:
        """Make a file; sometimes the content is on this host already."""
        assert share.digest not in self._missing, f"the {share.digest} is here, and is fetched again"
        complete = self._world.chance(0.2)
        self._missing[share.digest] = {} if complete else dict.fromkeys(range(0, share.size, PART_BYTES))
        return "here", complete

    def write(self, digest: str, start: int, part: Buffer) -> None:
        """Write a part."""
        assert start in self._missing[digest], f"the part from byte {start} of the {digest} came twice"
        assert len(part) == PART_BYTES or start == max(self._missing[digest]), "a part is too small"
        del self._missing[digest][start]

    def drop(self, digest: str) -> None:
        """Drop a file."""
        self._missing.pop(digest, None)

    def close(self) -> None:
        """Do nothing: there are no files."""

    def is_complete(self, digest: str) -> bool:
        """Whether there is a file with all parts."""
        return self._missing.get(digest) == {}


class SharesOfSlave(Struct, eq=False):
    """The shared objects that a slave knows, and those that its tasks need."""

    _store: SimulatedStore
    _known: dict[str, str] = field(default_factory=dict)
    """Why each is missing; empty if it is here."""
    _needed: dict[int, list[str]] = field(default_factory=dict)
    """What the tasks need that it has not started, by the position of the task."""

    def hear(self, message: messages.Message) -> None:
        """Read a message of the agent, which may have dropped the object meanwhile. `start` checks what a task uses."""
        if isinstance(message, messages.ShareGiven):
            if not message.reason:
                assert message.share.location == "here", "its location is not that of the agent"
            self._known[message.share.digest] = message.reason
        elif isinstance(message, messages.ShareForgotten):
            del self._known[message.digest]

    def passed_on(self, position: int, message: messages.Tasks) -> None:
        """A task arrived."""
        if message.shares:
            self._needed[position] = [share.digest for share in message.shares]

    def are_here(self, position: int) -> bool:
        """Whether the task at this position can start."""
        return all(digest in self._known for digest in self._needed.get(position, ()))

    def start(self, position: int, wanted: Sequence[str]) -> None:
        """A task starts that needs these objects."""
        self._needed.pop(position, None)
        for digest in wanted:
            assert digest in self._known, f"a task runs without the {digest}"
            here = self._known[digest] or self._store.is_complete(digest)
            assert here, f"a task uses the {digest}, which its agent has dropped"
