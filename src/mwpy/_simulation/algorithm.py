"""The simulated master algorithm: it submits and cancels tasks, frees slaves, and checks what it gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from random import Random
from typing import Any
from weakref import WeakValueDictionary

from attrs import Factory, define
from msgspec.structs import replace

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.state import (
    AllocateSlaves,
    CancelTasks,
    FreeSlave,
    GiveResult,
    GoOn,
    HoldResults,
    ReleaseResults,
    RenewSlaves,
    Running,
    TakeReports,
)
from mwpy._core.master.submissions import Submissions
from mwpy._roles.definitions import Definitions
from mwpy._roles.maps import can_be_packed
from mwpy._roles.master_io import MasterIo
from mwpy._roles.users import User
from mwpy._simulation.checkers import HistoryChecker, LifeChecker, is_cancelled
from mwpy._simulation.machines import Pace
from mwpy._simulation.world import World
from mwpy._transport.codec import Codec
from mwpy._values import records
from mwpy._values.algorithm import algorithm_of
from mwpy._values.bounds import Buffer, SlaveId
from mwpy._values.groups import ARGUMENTS, ROWS, PackedCalls, Stretch
from mwpy._values.messagepack import encode
from mwpy._values.messages import PART_BYTES, Report, Share
from mwpy._values.policy import TaskPolicy
from mwpy._values.requires import requires_of
from mwpy._values.shares import Shared, SharedObject, combined_key, plain_keys
from mwpy._values.task import ReferringBuffers, Result, ResultReference, SlaveKind, UnrunnableTask

# Checks from outside which reports of tasks the algorithm gets.


@define(eq=False, repr=False)
class ReportChecker:
    """Follows the reports from their tasks to the algorithm."""

    checker: HistoryChecker
    given: int = 0
    """How many reports the algorithm got."""
    _last: dict[tuple[int, int], int] = Factory(dict)
    """The number of the last report of each task and attempt that the algorithm got."""

    def gave(self, report: Report) -> None:
        """The algorithm gets a report: its attempt lives, it is wanted, and no newer one came before."""
        checker = self.checker
        task, attempt, sid = report.task_id, report.attempt, report.sid
        named = f"the report of task {task}, attempt {attempt}, at {sid}"
        assert checker.attempts.holds(sid, task, attempt), f"{named}: this attempt does not live"
        unwanted = task in checker.ended or task in checker.states.cancelled
        assert not unwanted, f"{named}: nobody wants its result"
        assert report.tag is checker.tasks[task].tag, f"{named} has the tag of another task"
        assert (report.values["task"], report.values["attempt"]) == (task, attempt), f"{named} has other values"
        number, before = report.values["number"], self._last.get((task, attempt), -1)
        assert number >= before, f"{named} has number {number}, and {before} came before"
        self._last[task, attempt] = number
        self.given += 1


CODEC = Codec()

CANCEL_S = 3.0
"""The longest pause between two cancellations, in seconds."""

FETCH_S = 0.5
"""The longest time until the algorithm fetches results, in seconds."""

GO_ON_S = 2.0
"""The longest time until the algorithm learns of a stop, in seconds."""
PAUSES = (0.0, 0.0, 0.0, 0.1, 1.0, 20.0)
"""Seconds that a task pauses after its first loss."""

HOLD_S = 2.0
"""The longest time until the algorithm has fetched results to which tasks refer, in seconds."""

REPORTS_S = 2.0
"""The longest pause between two requests for reports, in seconds."""


# What the algorithm shares with its tasks.


SIZES = (100, 2 * PART_BYTES, 6 * PART_BYTES + 1)
"""How many bytes the shared objects have."""

CONTENT = memoryview(bytes(max(SIZES)))


def loaded(digest: str) -> str:
    """Stand for the object in the arguments of a task, and in functions by value."""
    return digest


class SharedByAlgorithm:
    """What the algorithm shares; in some histories nothing.

    Args:
        seed: names the history.
    """

    def __init__(self, seed: int) -> None:
        self._draw = Random(f"shares {seed}")
        self._share = self._draw.choice((0.0, 0.0, 0.2, 0.8))
        """The share of tasks that need shared objects."""
        self._handles: dict[str, Shared] = {}
        self._objects: WeakValueDictionary[str, SharedObject] = WeakValueDictionary()
        """The objects that still exist: as in a real script, there is never another one that is equal."""

    def handle(self, draw: Random | None = None) -> Shared | None:
        """The handle of an object that the next task needs. Sometimes all handles are dropped before.

        Args:
            draw: decides which; None for the history.
        """
        draw = draw or self._draw
        if self._draw.random() < 0.2:
            self._handles.clear()
        if draw.random() >= self._share:
            return None
        size = draw.choice(SIZES)
        digest = f"object {draw.randrange(3)} of {size} bytes"
        if digest not in self._handles:
            shared = self._objects.get(digest) or SharedObject(Share(digest, size), CONTENT[:size])
            self._objects[digest] = shared
            self._handles[digest] = Shared(shared, loaded)
        return self._handles[digest]

    def handles(self) -> list[Shared]:
        """The handles in the arguments of the next task."""
        return [handle for handle in (self.handle(), self.handle()) if handle is not None]


# The calls of the algorithm.
#
# The algorithm is a script that does not change. In each life of its master it makes the same calls, often in another
# order, and some calls are equal. Calls that refer to results of others depend on chance, as in a script that acts on
# what arrives first.


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


class Script:
    """The calls of the algorithm. Some are equal.

    Args:
        seed: names the history.
        tasks: how many calls the script makes.
    """

    def __init__(self, world: World, seed: int, tasks: int) -> None:
        self._world = world
        self.seed = seed
        self.tasks = tasks
        self._referring: dict[tuple[int, ...], int] = {}
        """The numbers of calls that refer to others, by the numbers of these."""
        draw = Random(f"script {seed}")
        different = draw.choice((tasks // 3, 3 * tasks, 100 * tasks))
        self._numbers = [FIRST + draw.randrange(different + 1) for _ in range(tasks)]

    def numbers(self) -> list[int]:
        """The numbers of the calls of the next life, the last one first."""
        numbers = self._numbers[::-1]
        if self._world.random.random() < 0.5:
            self._world.random.shuffle(numbers)
        return numbers

    def referring(self, numbers: Sequence[int]) -> int:
        """The number of a call that refers to the results of these calls."""
        return self._referring.setdefault(tuple(numbers), 2 * FIRST + len(self._referring))


class Calls:
    """The calls of one life, and their way to the master.

    Args:
        checker: learns which calls are made.
        has_database: whether there is a run database, and so calls have keys.
    """

    def __init__(self, submissions: Submissions, checker: LifeChecker, script: Script, has_database: bool) -> None:
        self._submissions = submissions
        self._checker = checker
        self._script = script
        self._has_keys = has_database
        self._definitions = Definitions(CODEC, with_code=_with_code if has_database else None)
        self._numbers = script.numbers()

    def begin(self, refers: Sequence[int]) -> Random:
        """Choose the next call, which refers to these tasks. Return what decides about it."""
        known = self._checker.numbers
        number = self._script.referring([known[other] for other in refers]) if refers else self._numbers.pop()
        known[self._submissions.total + 1] = number
        return Random(f"call {self._script.seed} {number}")

    def payload(self, random: Random, refers: Sequence[int]) -> bytes:
        """Choose the arguments of the next call, which count if it refers to nothing. A few are too large."""
        is_large = random.random() < 0.02
        if is_large and not refers:
            self._checker.numbers[self._submissions.total + 1] += TOO_LARGE
        return CODEC.dumps_value("x" * (LARGE if is_large else random.randint(0, 40)))[0]

    def algorithm(self, random: Random, captured: object = None) -> Defined:
        """The algorithm of the next task. A function by value may have captured a shared object."""
        by_name = captured is None and random.random() < 0.7
        function = random.choice(BY_NAME) if by_name else _work_with(random.randrange(STATES), captured)
        return self._definitions.define(algorithm_of(function))

    def of_portions(self, what: str) -> Random:
        """Return what decides about something that all portions of the script have in common."""
        return Random(f"{what} of portions {self._script.seed}")

    def portion(self, count: int) -> list[str]:
        """Choose the calls of a portion. Return their arguments."""
        first, numbers = self._submissions.total + 1, [self._numbers.pop() for _ in range(count)]
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
        number, key = self._checker.numbers[self._submissions.total + 1], None
        if refers:
            key = combined_key(b"refers", number.to_bytes(8, "big"))
        elif self._has_keys:
            key = plain_keys([encode((_argument(number),))])
        self._submissions.add(defined, policy, payload, buffers, tag, key, refers)


def _work_with(state: int, captured: object) -> Callable[[], object]:
    """A function by value; there is one for each state and each object that it has captured."""
    return lambda: (state, captured)


def _argument(number: int) -> str:
    return f"{number} " + "x" * Random(number).randrange(90)


def _with_code(record: records.AlgorithmDefined, _: Callable[..., Any]) -> records.AlgorithmDefined:
    """The definition of an algorithm with its code."""
    made = record.definition
    return records.AlgorithmDefined(made, record.packed, made.reference or made.digest, {})


@define(eq=False)
class SimulatedMaps:
    """What owns the items of all maps of an algorithm.

    It must not lead to the master: the garbage collector does not see which spans refer to it, and a thousand histories
    would stay in memory.
    """

    user: User
    """The thread that gets their ends."""


class SimulatedAlgorithm:
    """Drives a master as the algorithm's thread does.

    Args:
        world: time and chance.
        io: the master's loop.
        checker: checks which tasks were submitted and have ended.
        script: the calls that it makes.
        pace: how fast things happen.
        has_database: whether there is a run database.
    """

    def __init__(
        self, world: World, io: MasterIo, checker: HistoryChecker, script: Script, pace: Pace, has_database: bool
    ) -> None:
        self._world = world
        self.is_over = False
        """Whether its process has ended."""
        self._calls = Calls(io.submissions, checker.lives, script, has_database)
        self._io = io
        self.maps = SimulatedMaps(io.users.algorithm)
        self._checker = checker
        self.reports = ReportChecker(checker)
        self._total = script.tasks
        self._submit_s = pace.submit_s
        random = world.random
        self.durations = [random.choice(pace.durations) for _ in range(2)]
        """How long tasks take on average, in seconds: of algorithms with even numbers, and of the others."""
        if random.random() < 0.5:
            io.commands.append(AllocateSlaves(random.randint(1, 2), SlaveKind.ORDERED))
        if random.random() < 0.3:
            io.commands.append(AllocateSlaves(1, SlaveKind.INTERMINGLE))
        self._kill_agent = random.choice([0.01] * 9 + [0.2])
        """The share of tasks that kill their agent."""
        self._speculate = random.choice((0.0, 0.7, 1.0))
        """The share of tasks of which second attempts may be started, if they may run again at all."""
        self._refers = random.choice((0, 1, 6))
        """How many groups of tasks refer to the results of others after each submission, at most."""
        self._held: Counter[int] = Counter()
        """For how many groups of tasks each result is held."""
        self._shares = SharedByAlgorithm(world.seed)
        self._requires = Random(f"requires {world.seed}")
        """Decides what tasks require."""
        self._share = self._requires.choice((0.0, 0.0, 0.2, 0.8)) if pace.requires else 0.0
        """The share of tasks that require something, or have priorities."""
        self._maps = Random(f"maps {world.seed}")
        """Decides about the items of maps."""
        self._special: list[SlaveId] = []
        """The ordered and intermingle slaves that are connected."""
        self._freed: dict[SlaveId, None] = {}
        self._after(0.0, self._go_on)
        if random.random() < 0.8 and not has_database:  # a commit would delay a report beyond the end of its attempt
            self._after(random.random() * REPORTS_S, self._take_reports)
        if random.random() < 0.5:
            self._after(random.random() * CANCEL_S, self._cancel_some)

    @property
    def complete(self) -> bool:
        """Whether all tasks have ended."""
        return len(self._checker.ended) == self._total

    @property
    def kept(self) -> list[SlaveId]:
        """The ordered and intermingle slaves that are not freed."""
        return [sid for sid in self._special if sid not in self._freed]

    def _after(self, delay: float, event: Callable[[], None]) -> None:
        """Let something happen in `delay` seconds, unless the process has ended by then."""

        def happen() -> None:
            if not self.is_over:
                event()

        self._world.after(delay, happen)

    def check_end(self) -> None:
        """All tasks must have ended, each once."""
        self._checker.check_end(self._total)
        self._checker.references.check_end(self._checker.runs)
        self._checker.replay.check_end(self._io.core.state)

    def take_outcomes(self) -> None:
        """Fetch what the master has for the algorithm."""
        while not self._io.users.algorithm.outcomes.empty():
            outcome = self._io.users.algorithm.outcomes.get_nowait()
            assert not isinstance(outcome, BaseException), "only the thread reports errors"
            self._checker.unfetched_bytes += outcome.result_bytes
            self._after(self._world.random.random() * FETCH_S, partial(self._fetch, outcome.result_bytes))
            ended = [*outcome.results, *outcome.unrunnable]
            for each in outcome.owned.get(self.maps, ()):
                ended += each.results(repeat(each.tag)) if isinstance(each, Stretch) else [each]
            for result in (each for each in ended if isinstance(each, Result)):
                self._world.note(f"task {result.task_id} ends: {'cancelled' if is_cancelled(result) else 'result'}")
                self._checker.finished(result)
            for task in (each for each in ended if isinstance(each, UnrunnableTask)):
                self._world.note(f"task {task.task_id} ends: unrunnable, {task.reason}")
                self._checker.given_up(task)
            for command, unended in outcome.cancelled:
                self._world.note(f"tasks {unended} had not ended when they were cancelled")
                if isinstance(command, CancelTasks):
                    self._checker.answered(command, unended, self._world.now)
                elif isinstance(command, HoldResults):
                    self._refer(command.numbers, unended)
                elif isinstance(command, TakeReports):
                    for _, report in outcome.reports:
                        self._world.note(f"task {report.task_id} has reported")
                        self.reports.gave(report)
                else:
                    self._checker.stops.went_on(unended, self._checker.ended)
            if outcome.stopped is not None:
                limit = self._io.core.state.settings.max_failures
                assert limit is not None, "the run is stopped without a limit"
                self._checker.stops.learned(outcome.stopped, limit)
                self._after(self._world.random.random() * GO_ON_S, self._let_go_on)
            self._special.extend(outcome.connected)
            self._special = [sid for sid in self._special if sid not in outcome.disconnected]

    def _go_on(self) -> None:
        """Submit some tasks, and schedule the next submission."""
        self._checker.replay.check(self._io.core.state)
        random = self._world.random
        first = self._io.submissions.total + 1
        left = min(self._total + 1 - first, random.randint(1, 25))
        if random.random() < 0.3:
            _submit_map(self, left)
        else:
            for _ in range(left):
                self._submit_one()
        last = self._io.submissions.total
        if last >= first:
            self._world.note(f"submit tasks {first} to {last}")
        for _ in range(random.randint(0, self._refers) if last else 0):
            self._hold(sorted(random.sample(range(1, last + 1), min(last, random.randint(1, 3)))))
        if self._special and random.random() < 0.1:
            sid = random.choice(self._special)
            self._io.commands.append(FreeSlave(sid))
            self._freed[sid] = None
        if random.random() < 0.1:
            self._world.note("a module was edited: renew the slaves")
            self._io.commands.append(RenewSlaves(None))
            self._checker.edits += 1
        self._io.link.wake()
        if last < self._total:
            self._after(random.random() * self._submit_s, self._go_on)

    def _hold(self, numbers: list[int]) -> None:
        """Ask for the results of these tasks, to which a task will refer."""
        self._held.update(numbers)
        self._io.commands.append(HoldResults(numbers))

    def _refer(self, numbers: Sequence[int], unended: Sequence[int]) -> None:
        """The results are held of these tasks that have not ended. Give back the others, and refer to all of them."""
        for number in numbers:
            if number not in unended:
                value = self._checker.references.values.get(number)
                root = self._checker.references.causes.get(number, number)
                given = GiveResult(number, (), f"task {root} has no value", root)
                if value is not None:
                    given = GiveResult(number, [CODEC.dumps_value(value)[0]])
                self._io.commands.append(given)
        for _ in range(self._world.random.randint(1, 2)):
            if self._io.submissions.total < self._total:
                self._world.note(f"task {self._io.submissions.total + 1} refers to {numbers}")
                self._submit_one(numbers)
        self._after(self._world.random.random() * HOLD_S, partial(self._release, numbers))
        self._io.link.wake()

    def _release(self, numbers: Sequence[int]) -> None:
        """If these tasks have ended, their results are fetched now, and no other task will refer to them."""
        if any(number not in self._checker.ended for number in numbers):
            self._after(self._world.random.random() * HOLD_S, partial(self._release, numbers))
            return
        for number in numbers:
            self._held[number] -= 1
        done = [number for number in numbers if not self._held[number]]
        self._io.commands.append(ReleaseResults(done, self._io.submissions.total))
        self._io.link.wake()

    def _cancel_some(self) -> None:
        """Cancel a few tasks, often those that run, and schedule the next time."""
        random, submitted = self._world.random, self._io.submissions.total
        tasks = self._checker.unended if random.random() < 0.5 else [*range(1, submitted + 1)]
        if tasks:
            chosen = sorted(random.sample(tasks, min(len(tasks), random.randint(1, 4))))
            running = random.choice([*Running])
            self._world.note(f"cancel tasks {chosen}: {running.value}")
            self._checker.cancelled(chosen)
            self._io.commands.append(CancelTasks([(task, 1) for task in chosen], running))
            self._io.link.wake()
        if not self.complete:
            self._after(random.random() * CANCEL_S, self._cancel_some)

    def _take_reports(self) -> None:
        """Ask for reports, and schedule the next time. A task that has reported may be cancelled."""
        if self.complete:
            return
        self._io.commands.append(TakeReports())
        self._io.link.wake()
        self._after(self._world.random.random() * REPORTS_S, self._take_reports)

    def _fetch(self, size: int) -> None:
        """Take results of this size out of the master's memory."""
        self._checker.unfetched_bytes -= size
        self._io.users.algorithm.fetched_bytes += size
        if self._io.holds_back:
            self._io.link.wake()

    def _let_go_on(self) -> None:
        """Learn of the stop."""
        self._io.commands.append(GoOn())
        self._checker.stops.lets_go_on(self._io.submissions.total)
        self._io.link.wake()

    def required(self, policy: TaskPolicy) -> TaskPolicy:
        """Add to a policy what its tasks require, and when they are sent."""
        random = self._requires
        if random.random() >= self._share:
            return policy
        wanted: dict[str, int | str | None] = {"cpus": random.choice((0, 1, 1, 2, 4))}
        wanted["gpus"] = random.choice((0, 0, 0, 1, 1, 2))
        wanted["memory"] = random.choice((0, 0, 3, 8))
        wanted["licence"] = random.choice((0, 0, 0, 1, 2))
        wanted["tool"] = random.choice((None, None, "*"))
        priority, cost = random.choice((0, 0, 0, -1, 5)), random.choice((None, None, 1.0, 7.0))
        return replace(policy, requires=requires_of(wanted), priority=priority, cost=cost)

    def _submit_one(self, refers: Sequence[int] = ()) -> None:
        random = self._world.random
        sid = random.choice(self._special) if self._special and random.random() < 0.4 else None
        random = self._calls.begin(refers)
        retry, anyway = random.random() > 0.15, random.random() < 0.5
        attempts, seconds = random.choice((1, 2, 3, 3, 3)), random.choice((None, None, None, 0.3, 2.0))
        after, memory = random.choice(PAUSES), random.choice((None, None, 500, 800, 2000, 5000))
        policy = TaskPolicy(sid, retry, anyway, attempts_max=attempts, seconds_max=seconds, after=after)
        policy = replace(policy, seconds_expected=random.choice((None, None, None, 0.1, 2.0, 6.0)))
        errors = random.randint(1, 4) if random.random() < 0.15 else 0
        policy = replace(policy, retries_errors=retry and random.random() < 0.7, memory_max=memory)
        policy = replace(policy, speculate=retry and random.random() < self._speculate)
        policy = self.required(policy)
        draw = random.random()
        kills = "slave" if draw < 0.02 else "agent" if draw > 1.0 - self._kill_agent else ""
        payload = self._calls.payload(random, refers)
        captured = None if random.random() < 0.7 else self._shares.handle(random)
        defined = self._calls.algorithm(random, captured)
        number, handles = self._io.submissions.total + 1, self._shares.handles()
        shares = [each.shared.share.digest for each in (captured, *handles) if each is not None]
        tag = self._checker.submitted(number, policy, kills, errors, defined.record, shares)
        if refers:
            args = refers, *map(ResultReference, refers)
            payload, referring = CODEC.dumps_call(args, {"shared": handles}, "any")
            self._checker.references.refers[number] = refers
            self._calls.add(defined, policy, payload, referring, tag, refers)
        else:
            buffers = ReferringBuffers((), dict.fromkeys(handles)) if handles else ()
            self._calls.add(defined, policy, payload, buffers, tag, ())


def _submit_map(algorithm: SimulatedAlgorithm, count: int) -> None:
    """Submit items of a map: as a portion, or one by one if something is said about each of them."""
    random, draw, first = algorithm._world.random, algorithm._maps, algorithm._io.submissions.total + 1
    policy, tag = TaskPolicy(attempts_max=random.choice((1, 3)), after=draw.choice(PAUSES)), object()
    policy = algorithm.required(replace(policy, retry=draw.random() < 0.8))
    captured = algorithm._shares.handle(algorithm._calls.of_portions("object"))
    defined = algorithm._calls.algorithm(algorithm._calls.of_portions("algorithm"), captured)
    kills = ["slave" if random.random() < 0.02 else "" for _ in range(count)]
    kind, arguments = random.choice((ROWS, ARGUMENTS)), algorithm._calls.portion(count)
    shares = [] if captured is None else [captured.shared.share.digest]
    for task, killed in enumerate(kills, first):
        errors = int(draw.random() < 0.1)
        algorithm._checker.submitted(task, policy, killed, errors, defined.record, shares, tag)
    if can_be_packed((defined, policy, None), algorithm._io.core.state.settings):
        if draw.random() < 0.2 and not algorithm._io.submissions.keyed:  # else only plain arguments are packed
            calls = PackedCalls.of_encoded([CODEC.dumps_call(((each,),), {}, "any")[0] for each in arguments])
        else:
            calls = PackedCalls.of(kind, [*zip(arguments)] if kind == ROWS else arguments)
        algorithm._io.submissions.add_portion(defined, policy, calls, tag, algorithm.maps)
    else:
        for argument in arguments:
            algorithm._calls.add(defined, policy, CODEC.dumps_value(argument)[0], (), tag, ())
