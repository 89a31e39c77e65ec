"""The parts of a `Master`: the inbox, the run of a map, the definitions, and the access that ends."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections.abc import Generator, Iterable, Iterator
from functools import partial
from itertools import count
from queue import SimpleQueue
from typing import Any, cast

import pytest
from tests.interrupts import moments
from tests.spans import MAX

from mwpy._core.master.algorithms import OVERHEAD_BYTES, Defined
from mwpy._core.master.state import Actions, CancelTasks, Command, MasterSettings, Running, Waiting
from mwpy._core.master.submissions import Submissions
from mwpy._core.master.tasks import Taskjar
from mwpy._roles import maps
from mwpy._roles.definitions import Definitions
from mwpy._roles.inbox import Access, Inbox
from mwpy._roles.maps import MapItems, MapRun, items_of
from mwpy._roles.master_io import MasterIo
from mwpy._roles.submission import Calls
from mwpy._roles.users import User, Users
from mwpy._transport.codec import Codec, loads_function
from mwpy._values.algorithm import Algorithm, algorithm_of
from mwpy._values.bounds import SlaveId, TaskId
from mwpy._values.errors import InternalError, TaskFailed, TooManyFailures, UsageError
from mwpy._values.groups import Stretch
from mwpy._values.messagepack import decode
from mwpy._values.policy import DEFAULT_POLICY
from mwpy._values.task import Origin, Result

SID = SlaveId("SLAVE-0")
ALGORITHM = Defined(MAX)
SETTINGS = MasterSettings("m", "g")
ORIGIN = Origin("max", SID, "node7", 1, 1000.0)

TERMS = ALGORITHM, DEFAULT_POLICY, None


def calls_of(inbox: Inbox) -> Calls:
    return Calls(Definitions(Codec()), {}, inbox.refer)


PATIENCE_S = 120.0
"""The test fails after this time."""


class _Queue(SimpleQueue[Any]):
    """A queue of outcomes that records how the thread of the algorithm waits for them."""

    def __init__(self, io: _Io) -> None:
        self.io = io
        self.waits: list[tuple[Waiting, float | None]] = []

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if self.empty():
            self.waits.append((self.io.users.algorithm.waiting, timeout))
            self.io.run_tasks()
        return super().get(block, 0.0)


class _Link:
    asleep = True
    wakes = 0

    def wake(self) -> None:
        self.wakes += 1


class _Io:
    """The parts of an I/O thread that the thread of the algorithm uses.

    While that thread waits, all submitted tasks are run. The last one finishes first. A task returns ten times its
    argument, and fails if the argument is negative.
    """

    def __init__(self) -> None:
        self.users = Users(User(outcomes=_Queue(self)))
        self.outcomes: SimpleQueue[Any] = self.users.algorithm.outcomes
        self.jar = Taskjar()
        self.submissions = Submissions(self.jar)
        self.submitting = threading.RLock()
        self.link = _Link()
        self.commands: list[Command] = []
        self.runs = True
        """Whether submitted tasks are run."""
        self.holds_back = False
        self.num_slaves = 2
        self.maps: set[MapRun] = set()
        self.unread_maps = 0
        self.most_open = 0
        """The most tasks that were open at once."""

    def open_maps(self) -> list[MapRun]:
        """As `MasterIo.open_maps`."""
        return [tasks for tasks in self.maps if not tasks.closed]

    def command(self, command: Command) -> None:
        """Take a command. Answer it after an older one, whose caller was interrupted."""
        self.commands.append(command)
        older = CancelTasks([(1, 1)], Running.KILL)
        if isinstance(command, CancelTasks) and command.running is Running.KILL:
            self.outcomes.put(Actions(cancelled=[(older, [TaskId(1)])]))
            self.outcomes.put(Actions(cancelled=[(older, []), (command, [TaskId(7)])], results=[_result(7)]))

    def run_tasks(self) -> None:
        """Finish all tasks that are submitted."""
        if not self.runs:
            return
        spans = self.submissions.take()
        self.jar.away = self.submissions.total
        outcome, num = Actions(), 0
        for span in spans[::-1]:
            for number, payload, tag in [*zip(span.ids, span.payloads, span.tags, strict=True)][::-1]:
                [item] = cast("list[int]", decode(payload))
                value = 10 * item if item >= 0 else TaskFailed("max", SID, "ValueError", "negative")
                outcome.ended(span.owner).append(Result(TaskId(number), ORIGIN, tag, 0.1, item < 0, value))
                num += 1
        self.most_open = max(self.most_open, num)
        if num:
            self.outcomes.put(outcome)


@pytest.fixture
def io(monkeypatch: pytest.MonkeyPatch) -> _Io:
    """In these tests, a pause of the machine makes no portion smaller, and ends no reading of items."""
    monkeypatch.setattr(maps, "READ_S", PATIENCE_S)
    return _Io()


@pytest.fixture
def access(io: _Io) -> Access:
    return Access(cast(MasterIo, io), threading.current_thread())


def _result(number: int, tag: object = None) -> Result[Any]:
    return Result(TaskId(number), ORIGIN, tag, 0.1, False, number)


# ---- the inbox ----


def test_a_cancellation_waits_for_its_own_answer(io: _Io, access: Access) -> None:
    """Answers to other cancellations are dropped. What comes meanwhile can be fetched afterwards."""
    inbox = Inbox(access, SETTINGS)
    io.outcomes.put(Actions(cancelled=[(CancelTasks([(5, 1)], Running.DISCARD), [TaskId(5)])]))
    inbox.receive()
    command = CancelTasks([(7, 1)], Running.KILL)
    assert inbox.ask(command) == [7]
    assert io.commands == [command]
    assert [result.task_id for result in inbox.results] == [7]


def test_an_exception_in_the_io_thread_is_an_internal_error(io: _Io, access: Access) -> None:
    """Each later use raises it again, because no outcome will come."""
    inbox = Inbox(access, SETTINGS)
    cause = ValueError("seven")
    io.outcomes.put(cause)
    for _ in range(2):
        with pytest.raises(InternalError, match="seven") as caught:
            inbox.wait()
        assert caught.value.__cause__ is cause


def test_every_use_after_the_end_raises_an_error_at_once(access: Access) -> None:
    inbox = Inbox(access, SETTINGS)
    access.close()
    for use in (inbox.receive, inbox.wait, lambda: access.io.submissions):
        with pytest.raises(UsageError, match="over"):
            use()


# ---- a map ----


def _results(
    io: _Io, inbox: Inbox, items: Iterator[Any], ordered: bool = False, values: bool = False
) -> Generator[Any, None, None]:
    source = MapItems(items, lambda item: (TERMS, (item,), {}))
    return MapRun(inbox.access, inbox, calls_of(inbox), source, ordered, values).start()


@pytest.fixture
def inbox(access: Access) -> Inbox:
    return Inbox(access, SETTINGS)


def _cancelled(io: _Io) -> list[int]:
    """Return the ids of all tasks for which `CancelTasks` was sent."""
    ids: list[int] = []
    for command in io.commands:
        assert isinstance(command, CancelTasks)
        assert command.running is Running.DISCARD
        ids += [number for first, size in command.ranges for number in range(first, first + size)]
    return ids


def test_a_map_runs_although_other_tasks_fill_the_master(
    io: _Io, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps its own share of tasks. An earlier version submitted nothing, and looked again without a pause."""
    monkeypatch.setattr(maps, "MAP_PENDING", 10)
    for number in range(50):
        io.submissions.add(ALGORITHM, DEFAULT_POLICY, b"\x91\x01", (), number)
    io.submissions.take()
    results = _results(io, inbox, iter(range(30)))
    assert io.submissions.total == 60
    assert sorted(result.tag for result in results) == [*range(30)]


def test_early_results_of_an_ordered_map_are_limited_in_bytes(
    io: _Io, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first result is missing, and the early ones are large, a map reads no more items."""
    monkeypatch.setattr(maps, "MAP_BYTES", 1000)
    monkeypatch.setattr(maps, "MAP_PENDING", 3)
    results = _results(io, inbox, count(), ordered=True)
    [span] = io.submissions.take()
    io.jar.away = 3
    large: list[Result[object]] = [
        Result(number, ORIGIN, tag, 0.1, False, "x" * 600)
        for number, tag in zip(map(TaskId, span.ids), span.tags, strict=True)
    ]
    io.outcomes.put(Actions(owned={span.owner: large[1:]}))
    read: list[int] = []

    def give_the_first() -> None:
        read.append(io.submissions.total)
        io.outcomes.put(Actions(owned={span.owner: large[:1]}))

    monkeypatch.setattr(io, "run_tasks", give_the_first)
    assert [next(results).tag for _ in range(3)] == [0, 1, 2]
    assert read == [4]


def test_a_slow_iterable_does_not_hold_back_results(io: _Io, inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call reads for a limited time. Later, reading ends when results wait."""
    monkeypatch.setattr(maps, "READ_S", 0.0)
    results = _results(io, inbox, count())
    assert io.submissions.total == 1
    io.run_tasks()
    assert next(results).tag == 0
    assert io.submissions.total == 2


def test_a_slow_user_does_not_keep_slaves_waiting(io: _Io, inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """New items are read before all results that have arrived are given out."""
    monkeypatch.setattr(maps, "READ_EVERY", 5)
    monkeypatch.setattr(maps, "MAP_PENDING", 20)
    results = _results(io, inbox, count())
    for _ in range(6):
        next(results)
    assert io.submissions.total == 25


def _portions(
    inbox: Inbox, items: Iterable[Any], *, ordered: bool = True, values: bool = True, packs: bool = True
) -> Generator[Any, None, None]:
    """A map whose items are packed."""
    source = items_of(TERMS, max, (items,), SETTINGS)
    source.terms = TERMS if packs else None
    return MapRun(inbox.access, inbox, calls_of(inbox), source, ordered, values).start()


def _stretches(io: _Io) -> tuple[Any, list[Stretch]]:
    """Run what is submitted, each portion as one stretch: each value is ten times its item. Return the map, too."""
    found = []
    for span in io.submissions.take():
        values = [10 * cast("list[int]", decode(call))[0] for call in span.payloads]
        found.append(Stretch(TaskId(span.first), values, span.tags[0], ORIGIN, [1e-6 * span.count], 100, plain=True))
    io.jar.away = io.submissions.total
    return span.owner, found


@pytest.mark.parametrize("ordered", [False, True])
def test_the_items_that_were_not_given_out_remain_if_the_whole_run_is_stopped(
    io: _Io, inbox: Inbox, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    """Whether they are of the stretch that is given out, of an early one, of none, or were not read."""
    monkeypatch.setattr(maps, "MAP_PENDING", 200)
    monkeypatch.setattr(maps, "READ_EVERY", 10)
    monkeypatch.setattr(maps, "LOOK_S", 0.0)
    values = _portions(inbox, range(1000), ordered=ordered)
    owner, (first, *others) = _stretches(io)
    early = [stretch for place, stretch in enumerate(others) if place % 2]
    io.outcomes.put(Actions(owned={owner: [first, others[0], *early]}))
    found = [next(values) for _ in range(3)]

    def stop(_: Inbox) -> None:
        raise TooManyFailures("5", 5, 9, [], [])

    monkeypatch.setattr(Inbox, "receive", stop)
    with pytest.raises(TooManyFailures) as caught:
        found.extend(values)
    remaining = [*caught.value.remaining]
    assert sorted([value // 10 for value in found] + remaining) == [*range(1000)]
    assert found == sorted(found) or not ordered


def test_a_closed_map_keeps_nothing_in_memory(io: _Io, inbox: Inbox) -> None:
    """The tasks that are still on their way refer to the map, but the map no longer refers to items and results."""

    class Item(list[int]):
        pass

    item = Item()
    gone = weakref.ref(item)
    results = _results(io, inbox, iter([item]))
    del item
    results.close()
    assert gone() is None


def test_an_interrupt_while_a_map_is_closed_only_delays_its_end(
    io: _Io, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next use of the master cancels the tasks."""
    results = _results(io, inbox, count())
    own = range(1, io.submissions.total + 1)

    def interrupted(_command: Command) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(io, "command", interrupted)
        with pytest.raises(KeyboardInterrupt):
            results.close()
    io.submissions.add(ALGORITHM, DEFAULT_POLICY, b"\x91\x01", (), "another")
    inbox.receive()
    assert _cancelled(io) == [*own]


def test_an_interrupt_before_a_task_is_submitted_cancels_no_task_of_others(
    io: _Io, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The map knows the id before the task exists. Another task may get this id later."""

    def interrupted(*_: object) -> TaskId:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(io.submissions, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            _results(io, inbox, iter([1]))
    assert not io.commands


def test_a_map_that_outlives_its_master_is_closed_in_silence(io: _Io, inbox: Inbox) -> None:
    results = _results(io, inbox, count())
    inbox.access.close()
    with pytest.raises(UsageError, match="over"):
        next(results)
    assert not io.commands


def test_an_interrupt_anywhere_loses_no_result_of_other_tasks(io: _Io, access: Access) -> None:
    """The map is closed each time, and its tasks are cancelled. The result of the other task arrives exactly once."""
    for moment in moments():
        inbox = Inbox(access, SETTINGS)
        io.outcomes = io.users.algorithm.outcomes = SimpleQueue()  # no Python code runs in its methods
        io.submissions.add(ALGORITHM, DEFAULT_POLICY, b"\x91\x07", (), "another")
        before = io.submissions.total
        results = _results(io, inbox, iter(range(40)), ordered=True)
        io.run_tasks()
        moment.interrupt(results.__next__)
        results.close()
        io.run_tasks()
        inbox.receive()
        assert [result.tag for result in inbox.results] == ["another"], moment
        assert not inbox.abandoned
        assert {*_cancelled(io)} <= {*range(before + 1, io.submissions.total + 1)}
        io.commands.clear()
    assert moment.number > 50


def test_an_interrupt_anywhere_in_the_call_of_a_map_leaves_no_task(io: _Io, access: Access) -> None:
    """All tasks that were submitted before the interrupt are cancelled, and no other task."""
    for moment in moments():
        inbox = Inbox(access, SETTINGS)
        before = io.submissions.total
        opened: list[object] = []
        moment.interrupt(lambda inbox=inbox, opened=opened: opened.append(_results(io, inbox, iter(range(5)))))  # type: ignore[misc]
        opened.clear()
        inbox.receive()
        assert {*_cancelled(io)} == {*range(before + 1, io.submissions.total + 1)}, moment
        io.submissions.take()
        io.commands.clear()
    assert moment.number > 50


def test_a_map_that_another_thread_collects_ends_when_its_master_is_used_next(io: _Io, inbox: Inbox) -> None:
    """A generator that is part of a cycle is closed by the thread that happens to collect it."""
    results = _results(io, inbox, count())
    own = range(1, io.submissions.total + 1)
    cycle: list[object] = [results]
    cycle.append(cycle)
    gc.disable()  # otherwise this thread may collect it
    try:
        del results, cycle
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join()
    finally:
        gc.enable()
    assert not io.commands
    inbox.receive()
    assert _cancelled(io) == [*own]


# ---- definitions ----


def test_an_algorithm_by_value_is_what_its_pickle_says_at_each_use() -> None:
    """The same pickle is the same algorithm, also that of another function. A changed state is another algorithm."""
    definitions = Definitions(Codec())
    state = [7]

    def make() -> Any:
        return lambda: state[0]

    first, twin = make(), make()
    defined = definitions.define(algorithm_of(first))
    assert (defined.record.definition.reference, len(defined.record.definition.digest)) == ("", 32)
    assert defined.size == OVERHEAD_BYTES + len(defined.record.packed)
    assert definitions.define(algorithm_of(first)) is definitions.define(algorithm_of(twin)) is defined
    prepared = definitions.prepare(Algorithm(first, policy={"retry": False}))
    assert prepared.policy == {"retry": False}
    state[0] = 8
    changed = definitions.define(algorithm_of(first))
    assert (defined.number, changed.number) == (0, 1)
    assert [loads_function(each.record.packed)() for each in (defined, changed)] == [7, 8]
    assert (definitions.define(prepared), prepared.function) == (defined, first)
    assert not definitions.known


def test_a_notice_says_that_all_slaves_would_draw_the_same_numbers() -> None:
    """It names the function and the generator."""
    notices: list[str] = []
    definitions = Definitions(Codec(), notice=notices.append)
    generator = random.Random(1)

    def draw(_: int) -> float:
        return generator.gauss(0.0, 1.0)

    definitions.define(algorithm_of(draw))
    definitions.define(algorithm_of(lambda: random.random()))
    [text] = notices
    assert "draw refers to a random number generator (Random): each slave gets a copy" in text


def test_a_notice_says_that_a_function_takes_a_large_object_along() -> None:
    notices: list[str] = []
    definitions = Definitions(Codec(), notice=notices.append)
    for size in (20 << 20, 3):
        definitions.define(algorithm_of(partial(max, bytes(size))))
    [text] = notices
    assert text.startswith("partial travels by value with more than 16 MiB, ")
    assert "mw.share(...)" in text
