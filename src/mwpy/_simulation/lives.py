"""The lives of a simulated master that crashes: its run database, and what must not run again.

The algorithm is a script that does not change. In each life it makes the same calls, often in another order, and some
calls are equal. Calls that refer to results of others depend on chance, as in a script that acts on what arrives first.
The master starts with what its run database has. This module says from outside which calls are the same.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

from attrs import Factory, define

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.core import MasterCore
from mwpy._core.master.members import Members
from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterSettings, MasterState
from mwpy._core.master.submissions import Submissions
from mwpy._core.master.tasks import Taskjar
from mwpy._database.rows import ValueFiles
from mwpy._database.store import Writer
from mwpy._roles.definitions import Definitions
from mwpy._roles.run_store import read_into
from mwpy._simulation.checkers import LifeChecker
from mwpy._simulation.world import World
from mwpy._transport.codec import Codec
from mwpy._values import records
from mwpy._values.algorithm import algorithm_of
from mwpy._values.bounds import Buffer
from mwpy._values.earlier import Given
from mwpy._values.messagepack import encode
from mwpy._values.options import Options
from mwpy._values.policy import TaskPolicy
from mwpy._values.shares import combined_key, plain_keys

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
        random: decides how long commits take, and what a crash leaves.
        path: the file.
        name: the name of this life.
    """

    on_wait: Callable[[], object]
    """Never called, because `write` never waits."""

    def __init__(self, world: World, random: Random, path: Path, name: str) -> None:
        self._world = world
        self._random = random
        self.path = path
        self.name = name
        self.handed_over: Callable[[], None] = lambda: None
        """Called after outcomes were handed over to the algorithm."""
        self.writer = Writer.open(path, member_id="simulated", name=name)
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

    def crash(self, copy: Path) -> None:
        """The master is killed. Copy what the next life finds."""
        self.is_over = True
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
        """Commit all that waits."""
        self.is_over = True
        self.writer.commit([*self._written, *self._waiting])
        self.writer.release()


CODEC = Codec()

BY_NAME = (min, max)
"""Functions that travel by name. No function of the simulation is ever called."""

STATES = 6
"""How many different functions by value there are. They come and go, and some come back."""

FIRST = 1_000_000
"""The numbers of calls begin here. The number of a call is its value."""

LARGE = 2000
"""Characters of an argument that is over the master's limit."""

TOO_LARGE = 1 << 40
"""This is added to the number of a call that is too large to be sent: it never ends with the result of another call."""


class Lives:
    """What lasts longer than one life of the master.

    Args:
        seed: names the history.
        tasks: how many calls the script makes.
    """

    def __init__(self, world: World, seed: int, tasks: int) -> None:
        self._world = world
        self.seed = seed
        self.tasks = tasks
        self.numbers: dict[tuple[int, ...], int] = {}
        """The numbers of calls that refer to others, by the numbers of these."""
        self._random = Random(f"database {seed}")
        folder = MEMORY if os.access(MEMORY, os.W_OK) else None
        self._folder = Path(mkdtemp(prefix="mwpy-simulated-", dir=folder))
        finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._life = 1
        """Number of the life that goes on, or of the next one if the master does not run."""
        self._store: SimulatedRunStore | None = None
        """What the master writes to; None if it does not run."""
        draw = Random(f"script {seed}")
        different = draw.choice((tasks // 3, 3 * tasks, 100 * tasks))
        self._script = [FIRST + draw.randrange(different + 1) for _ in range(tasks)]

    @property
    def generation(self) -> str:
        """The name of the present life."""
        return f"g{self._life}"

    @property
    def _path(self) -> Path:
        return self._folder / f"life-{self._life}.db"

    def open(self) -> SimulatedRunStore:
        """Begin the next life of the master."""
        self._store = SimulatedRunStore(self._world, self._random, self._path, self.generation)
        assert self._store.writer.generation == self._life, "a life is missing in the file"
        return self._store

    def crash(self) -> None:
        """The master is killed."""
        assert self._store is not None, "the master does not run"
        self._life += 1
        self._store.crash(self._path)
        self._store = None

    def end(self) -> None:
        """The computation is over."""
        if self._store is not None:
            self._store.close()
            self._store = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def script(self) -> list[int]:
        """The numbers of the calls of the next life, in their order."""
        numbers = [*self._script]
        if self._world.random.random() < 0.5:
            self._world.random.shuffle(numbers)
        return numbers

    def referring(self, numbers: Sequence[int]) -> int:
        """The number of a call that refers to the results of these calls."""
        return self.numbers.setdefault(tuple(numbers), 2 * FIRST + len(self.numbers))


class Calls:
    """The calls of one life, and their way to the master.

    Args:
        checker: learns which calls are made.
        lives: None if there is no run database. Then chance decides about each call.
    """

    def __init__(self, world: World, submissions: Submissions, checker: LifeChecker, lives: Lives | None) -> None:
        self._world = world
        self._submissions = submissions
        self._checker = checker
        self._lives = lives
        self._definitions = Definitions(CODEC, with_code=None if lives is None else _with_code)
        self._numbers = [] if lives is None else lives.script()[::-1]
        self.draw: Random | None = None
        """Decides about the next call; None if there is no script."""

    def begin(self, refers: Sequence[int]) -> Random:
        """Choose the next call, which refers to these tasks. Return what decides about it."""
        if self._lives is None:
            return self._world.random
        task = self._submissions.total + 1
        if refers:
            number = self._lives.referring([self._checker.numbers.get(other, -other) for other in refers])
        else:
            number = self._numbers.pop()
        self._checker.numbers[task] = number
        self.draw = Random(f"call {self._lives.seed} {number}")
        return self.draw

    def payload(self, random: Random, refers: Sequence[int]) -> bytes:
        """Choose the arguments of the next call, which count if it refers to nothing. A few are too large."""
        is_large = random.random() < 0.02
        if is_large and not refers and self._lives is not None:
            self._checker.numbers[self._submissions.total + 1] += TOO_LARGE
        return CODEC.dumps_value("x" * (LARGE if is_large else random.randint(0, 40)))[0]

    def algorithm(self, random: Random, captured: object = None) -> Defined:
        """The algorithm of the next task. A function by value may have captured a shared object."""
        by_name = captured is None and random.random() < 0.7
        function = random.choice(BY_NAME) if by_name else _work_with(random.randrange(STATES), captured)
        return self._definitions.define(algorithm_of(function))

    def begin_portion(self) -> Random:
        """Return what decides about the algorithm of the next portion: it is always the same if there is a script."""
        return self._world.random if self._lives is None else Random(f"portion {self._lives.seed}")

    def draw_of_portion(self) -> Random | None:
        """Return what decides about the shared objects of the next portion; None if there is no script."""
        return None if self._lives is None else Random(f"object of portions {self._lives.seed}")

    def portion(self, sizes: Sequence[int]) -> list[str]:
        """Choose the calls of a portion. Return their arguments, which have these sizes if there is no script."""
        if self._lives is None:
            return ["x" * size for size in sizes]
        first, numbers = self._submissions.total + 1, [self._numbers.pop() for _ in sizes]
        self._checker.numbers.update(enumerate(numbers, first))
        return [*map(_argument, numbers)]

    def add(
        self,
        defined: Defined,
        policy: TaskPolicy,
        payload: bytes,
        buffers: Sequence[Buffer],
        tag: object,
        refers: Sequence[int],
    ) -> None:
        """Submit the call that `begin` has chosen."""
        submissions = self._submissions
        number = self._checker.numbers.get(submissions.total + 1, 0)
        key: bytes | None = None
        if refers:
            key = combined_key(b"refers", number.to_bytes(8, "big"))
        elif self._lives is not None:
            key = plain_keys([encode((_argument(number),))])
        submissions.add(defined, policy, payload, buffers, tag, key, refers)


def _work_with(state: int, captured: object) -> Callable[[], object]:
    """A function by value; there is one for each state and each object that it has captured."""
    return lambda: (state, captured)


def _argument(number: int) -> str:
    return f"{number} " + "x" * Random(number).randrange(20)


def _with_code(record: records.AlgorithmDefined, _: Callable[..., Any]) -> records.AlgorithmDefined:
    """The definition of an algorithm with its code."""
    made = record.definition
    return records.AlgorithmDefined(made, record.packed, made.reference or made.digest, {})


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
        data = records.encode(record)
        self._stream.append((record, data))
        self.rebuilt.record(records.decoder()(data))
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
            assert records.encode(record) == data, f"a record was changed later: {record}"


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
