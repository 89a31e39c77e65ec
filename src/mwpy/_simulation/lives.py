"""The run database of a simulated master, over all lives of the master, and the replay of its records."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from functools import reduce
from operator import attrgetter, or_
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

from attrs import Factory, define

from mwpy._core.master.core import MasterCore
from mwpy._core.master.members import Members
from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterSettings, MasterState
from mwpy._core.master.tasks import Taskjar
from mwpy._database.rows import ValueFiles
from mwpy._database.store import Writer
from mwpy._roles.run_store import read_into
from mwpy._simulation.world import World
from mwpy._values import records
from mwpy._values.earlier import Given
from mwpy._values.messagepack import decoder, encode
from mwpy._values.options import Options

# The run database of a simulated master: a real file over all lives of the master.
#
# The real code turns records into rows, commits them, and reads them again in the next life. Only the thread and the
# time of a commit are simulated. When the master crashes, the next life gets a copy of the bytes of the file and of its
# log, as they are at that moment. A commit that goes on may be missing there, or be cut off at any byte, or be complete
# although nobody heard of it.


COMMIT_S = 0.003
"""How long a commit takes on average, in seconds."""

MEMORY = "/dev/shm"
"""Where the files are, if this folder exists, because no simulated history needs to wait for a disk."""

SLOW_COMMIT_S = 1.0
"""How long a few commits take at most, in seconds."""


class SimulatedRunStore:
    """What a master writes to in one life.

    Args:
        folder: the files of all lives.
        life: the number of this life.
    """

    on_wait: Callable[[], object]
    """Never called, because `write` never waits."""

    def __init__(self, world: World, folder: Path, life: int) -> None:
        self._world = world
        self._random = Random(f"database {world.seed} {life}")
        self.path = folder / f"life-{life}.db"
        self._next_path = folder / f"life-{life + 1}.db"
        self.handed_over: Callable[[], None] = lambda: None
        """Called after outcomes were handed over to the algorithm."""
        self.writer = Writer.open(self.path, member_id="simulated", name=f"g{life}")
        assert self.writer.generation == life, "a life is missing in the file"
        self._waiting: list[Given] = []
        self._written: list[Given] = []
        """What the commit has that goes on."""
        self._began = 0.0
        """When the last commit began."""
        self.is_over = False
        """Whether the master has ended."""

    def read_into(self, core: MasterCore) -> None:
        """Let a core use what is in the file."""
        read_into(core, self.writer, Options(run_database=str(self.path)))

    def write(self, given: Given) -> None:
        """Write records with the next commit."""
        self._waiting.append(given)
        if not self._written:
            self._begin()

    def _begin(self) -> None:
        self._written, self._waiting = self._waiting, []
        self._began = self._world.now
        slow = self._random.random() < 0.02
        delay = self._random.random() * SLOW_COMMIT_S if slow else self._random.expovariate(1 / COMMIT_S)
        self._world.after(delay, self._end)

    def _end(self) -> None:
        if self.is_over:
            return
        self.writer.commit(self._written)
        written, self._written = self._written, []
        for each in written:
            if each.then is not None:
                each.then()
        if self._waiting:
            self._begin()
        self.handed_over()

    def delay_s(self) -> float:
        """For how many seconds the present commit has been going on."""
        return self._world.now - self._began if self._written else 0.0

    def crash(self) -> None:
        """The master is killed. Copy what the next life finds."""
        self.is_over, copy = True, self._next_path
        log = Path(f"{self.path}-wal")
        start = log.stat().st_size
        if self._written and self._random.random() < 0.8:
            self.writer.commit(self._written)
        more = log.stat().st_size - start
        end = start + int(more * self._random.choice((self._random.random(), 1.0)))
        shutil.copy(self.path, copy)
        if ValueFiles(self.path).folder.exists():
            shutil.copytree(ValueFiles(self.path).folder, ValueFiles(copy).folder, copy_function=os.link)
        Path(f"{copy}-wal").write_bytes(log.read_bytes()[:end])
        self.writer.release()

    def close(self) -> None:
        """Commit all that waits, unless the master has ended."""
        if not self.is_over:
            self.is_over = True
            self.writer.commit([*self._written, *self._waiting])
            self.writer.release()


def folder_for_databases(owner: object) -> Path:
    """Make a folder that lasts as long as its owner."""
    folder = Path(mkdtemp(prefix="mwpy-simulated-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None))
    finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return folder


# The replay property: the records of a master build its state.
#
# A `Replay` takes each record as the master gives it out, stores it as bytes, reads it again and applies it to an empty
# state. That state must always have the same tasks, attempts, agents, slaves and counts as the master's own. A record
# must never change after it was given out. Tags are left out: they never leave the master.


@define(eq=False, repr=False)
class Replay:
    """Rebuilds the state of one master from its records."""

    rebuilt: MasterState = Factory(lambda: MasterState(MasterSettings("replayed", "")))
    _stream: list[tuple[records.Record, bytes]] = Factory(list)

    @property
    def taken(self) -> list[records.Record]:
        """All records that were taken, in their order."""
        return [record for record, _ in self._stream]

    def recorded(self, record: records.Record) -> None:
        """Take the next record."""
        data = encode(record)
        self._stream.append((record, data))
        self.rebuilt.record(_decode(data))
        self.rebuilt.take_actions()  # drops the actions, which contain the same records

    def check(self, original: MasterState) -> None:
        """Assert that both states are the same. Call this when all records of the original were taken.

        Args:
            original: the state of the master.
        """
        self.rebuilt.jar.check()  # no record says what a slave that gave tasks back may still run
        assert _tasks(self.rebuilt.jar) == _tasks(original.jar), "the records do not build the same tasks"
        assert _members(self.rebuilt.members) == _members(original.members), "the records do not build the same slaves"

    def check_end(self, original: MasterState) -> None:
        """Assert that both states are the same, and that no record has changed since it was taken."""
        self.check(original)
        for record, data in self._stream:
            assert encode(record) == data, f"a record was changed later: {record}"


_decode = decoder(reduce(or_, records.Record.__subclasses__()))

_OF_AGENT = attrgetter("address", "announced", "job", "python", "leaving", "loss", "refused")
_OF_SLAVE = attrgetter("agent.name", "number", "kind", "state", "refused")
_OF_SPAN = attrgetter("state", "attempt", "sent", "sid", "pause_s")
_OF_DEATH = attrgetter("sid", "attempt", "cause", "reason", "words")
"""What must be the same of each of them."""


def _tasks(jar: Taskjar) -> dict[str, Any]:
    """Everything about tasks that must be the same. `check` derives all other figures from this."""
    return {
        "queues": {needs: _each(queue) for needs, queue in jar.pending.queues.items()},
        "fitted": {needs: _each(queue) for needs, queue in jar.pending.fitted.items()},
        "special": {needs: _each(queue) for needs, queue in jar.pending.special.items()},
        "blocked": _each(jar.blocked.tasks.values()),
        "results": {
            number: (each.is_held, each.waiting, [*map(bytes, each.frames)], each.cause, each.root)
            for number, each in jar.blocked.results.items()
        },
        "delayed": _each(jar.delayed.values()),
        "held": {sid: _each(held.spans) for sid, held in jar.held.items()},
        "ended": (jar.ended, jar.failed, jar.cancelled),
        "algorithms": {
            number: (defined.record, defined.leaves_state) for number, defined in jar.algorithms.defined.items()
        },
    }


def _each(spans: Iterable[Span]) -> list[tuple[Any, ...]]:
    """The tasks of a queue, one by one and in their order, because spans may be cut at other places."""
    return [
        (
            number,
            span.algorithm.number,
            span.policy,
            bytes(payload),
            [bytes(buffer) for buffer in (span.buffers[place] if span.buffers else ())],
            (_OF_SPAN(span), [*span.refers]),
            None if span.left is None else ([*map(bytes, span.left.frames)], span.left.attempt, span.left.num_lost),
            [*map(_OF_DEATH, span.deaths)],
        )
        for span in spans
        for place, (number, payload) in enumerate(zip(span.ids, span.payloads, strict=True))
    ]


def _members(members: Members) -> dict[str, Any]:
    """Everything about agents and slaves that must be the same."""
    return {
        "agents": {agent.name: _OF_AGENT(agent) for agent in members.agents.values()},
        "slaves": {slave.sid: _OF_SLAVE(slave) for slave in members.slaves.values()},
        "idle": list(members.idle),
        "excluded": members.excluded,
        "seen": (members.agents_seen, members.slaves_seen),
    }
