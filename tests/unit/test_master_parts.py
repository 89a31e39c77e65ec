"""The parts of a `Master`: the inbox, the run of a map, the definitions, and the access that ends."""

from __future__ import annotations

import gc
import pickle
import random
import threading
import warnings
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import count, islice
from pickle import PickleBuffer
from queue import SimpleQueue
from typing import Any, cast

import numpy as np
import pytest
from tests.interrupts import moments
from tests.spans import MAX

from mwpy._core.master.algorithms import OVERHEAD_BYTES, Defined
from mwpy._core.master.spans import portion_of
from mwpy._core.master.state import Actions, CancelTasks, Command, MasterSettings, Running, Waiting
from mwpy._core.master.submissions import Submissions
from mwpy._core.master.tasks import Taskjar
from mwpy._roles import maps
from mwpy._roles.definitions import Definitions
from mwpy._roles.inbox import RETURNS_IN_VAIN, Access, HeldResults, Inbox
from mwpy._roles.map_tasks import MapTasks, Portion
from mwpy._roles.maps import Call, MapItems, MapRun, items_of
from mwpy._roles.master_io import MasterIo
from mwpy._roles.progress import OpenProgress
from mwpy._transport.codec import Codec, loads_call, loads_function
from mwpy._transport.stream import LARGE_BYTES
from mwpy._values.algorithm import Algorithm, algorithm_of, task_algorithm
from mwpy._values.bounds import SlaveId, TaskId
from mwpy._values.causes import Cause
from mwpy._values.errors import InternalError, TaskFailed, TaskUnrunnable, TooManyFailures, UsageError
from mwpy._values.groups import Stretch
from mwpy._values.last_words import Death, LastWords
from mwpy._values.messagepack import Pickled, decode
from mwpy._values.policy import DEFAULT_POLICY
from mwpy._values.task import Origin, Result, UnrunnableTask

SID = SlaveId("SLAVE-0")
ALGORITHM = Defined(MAX)
SETTINGS = MasterSettings("m", "g")
ORIGIN = Origin("max", SID, "node7", 1, 1000.0)

PATIENCE_S = 120.0
"""The test fails after this time."""


class _Queue(SimpleQueue[Any]):
    """A queue of outcomes that records how the thread of the algorithm waits for them."""

    def __init__(self, io: _Io) -> None:
        self.io = io
        self.waits: list[tuple[Waiting, float | None]] = []

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if self.empty():
            self.waits.append((self.io.waiting, timeout))
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
        self.progress = OpenProgress()
        self.jar = Taskjar()
        self.submissions = Submissions(self.jar)
        self.submitting = threading.RLock()
        self.outcomes = _Queue(self)
        self.waiting = Waiting.NOT
        self.link = _Link()
        self.commands: list[Command] = []
        self.runs = True
        """Whether submitted tasks are run."""
        self.holds_back = False
        self.num_slaves = 2
        self.fetched_bytes = 0
        self.maps: set[MapTasks] = set()
        self.unread_maps = 0
        self.most_open = 0
        """The most tasks that were open at once."""

    def open_maps(self) -> list[MapTasks]:
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
        results: list[Result[object]] = []
        for span in spans:
            for number, payload, tag in zip(span.ids, span.payloads, span.tags, strict=True):
                [item] = cast("list[int]", decode(payload))
                value = 10 * item if item >= 0 else TaskFailed("max", SID, "ValueError", "negative")
                results.append(Result(TaskId(number), ORIGIN, tag, 0.1, item < 0, value))
        self.most_open = max(self.most_open, len(results))
        if results:
            self.outcomes.put(Actions(results=results[::-1]))


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


def _unrunnable(number: int, tag: object = None) -> UnrunnableTask:
    deaths = (Death(SID, 1, Cause.CRASH, "killed by signal 11", LastWords("", "last words", "", 0)),)
    return UnrunnableTask(TaskId(number), "max", None, tag, "it kills", deaths, b"", (), ORIGIN)


# ---- the inbox ----


def test_outcomes_are_sorted_by_kind(io: _Io, access: Access) -> None:
    inbox = Inbox(access, SETTINGS)
    assert inbox.counts() == (0, 0, 0, 0)
    results, unrunnable = [_result(1), _result(2)], [_unrunnable(3)]
    io.outcomes.put(Actions(results=results[:1], unrunnable=unrunnable[:], connected=[SID]))
    io.outcomes.put(Actions(results=results[1:], disconnected=[SID, SID]))
    inbox.receive()
    assert inbox.counts() == (1, 2, 1, 2)
    assert (inbox.fetch(inbox.results), inbox.fetch(inbox.unrunnable)) == (results, unrunnable)
    assert inbox.counts() == (0, 0, 1, 2)


def test_the_outcomes_of_a_maps_tasks_go_to_that_map(io: _Io, access: Access) -> None:
    """An unrunnable task of a map is a failed result there. Outcomes of other tasks stay in the inbox."""
    inbox = Inbox(access, SETTINGS)
    mine = inbox.open_map()
    portion = Portion(mine, 2, 0, ["a", "b", "c"], 3, 3)
    closed = Portion(MapTasks(closed=True), 5, 0, ["d"], 1, 1)
    results = [_result(1), _result(2, portion), _result(5, closed)]
    io.outcomes.put(Actions(results=results, unrunnable=[_unrunnable(3), _unrunnable(4, portion)]))
    inbox.wait()
    assert inbox.counts() == (1, 1, 0, 0)
    value, failure = mine.arrived
    assert isinstance(value, Result)
    assert isinstance(failure, Result)
    assert (value.value, value.tag) == (2, portion)
    assert isinstance(failure.error, TaskUnrunnable)
    assert (failure.task_id, failure.tag, failure.error.type_name) == (4, portion, "TaskUnrunnable")
    assert [death.sid for death in failure.error.deaths] == [SID]
    assert "last words" in str(failure.error)
    assert not closed.tasks.arrived


def test_a_cancellation_waits_for_its_own_answer(io: _Io, access: Access) -> None:
    """Answers to other cancellations are dropped. What comes meanwhile can be fetched afterwards."""
    inbox = Inbox(access, SETTINGS)
    io.outcomes.put(Actions(cancelled=[(CancelTasks([(5, 1)], Running.DISCARD), [TaskId(5)])]))
    inbox.receive()
    command = CancelTasks([(7, 1)], Running.KILL)
    assert inbox.ask(command) == [7]
    assert io.commands == [command]
    assert [result.task_id for result in inbox.results] == [7]


@pytest.mark.parametrize(("timeout", "expected"), [(None, Waiting.FOREVER), (0.5, Waiting.FOR_A_WHILE)])
def test_the_core_knows_whether_the_algorithm_waits_with_a_timeout(
    io: _Io, access: Access, timeout: float | None, expected: Waiting
) -> None:
    """A wait also ends without an outcome. There is no wait if an outcome is in the queue already."""
    inbox = Inbox(access, SETTINGS)
    inbox.wait(timeout)
    assert io.outcomes.waits == [(expected, timeout)]
    assert io.waiting is Waiting.NOT
    io.outcomes.put(Actions(connected=[SID]))
    inbox.wait(timeout)
    assert (len(io.outcomes.waits), inbox.connected) == (1, [SID])


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


def test_a_loop_that_fetches_nothing_is_warned_about_once(io: _Io, access: Access) -> None:
    """The warning names what can be fetched, and how. A fetch starts the count again."""
    inbox = Inbox(access, SETTINGS)
    io.outcomes.put(Actions(results=[_result(1)], unrunnable=[_unrunnable(2)]))
    inbox.receive()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(RETURNS_IN_VAIN - 1):
            inbox.returned_at_once(1)
        assert inbox.fetch(inbox.results)
        for _ in range(RETURNS_IN_VAIN - 1):
            inbox.returned_at_once(1)
        assert not inbox.fetch(inbox.results)
        with pytest.raises(
            RuntimeWarning, match=r"it: 1 unrunnable tasks with mw.results\(\) or mw.unrunnable_tasks\(\)"
        ):
            inbox.returned_at_once(1)
        inbox.returned_at_once(1)


# ---- a map ----


def _results(
    io: _Io,
    inbox: Inbox,
    items: Iterator[Any],
    ordered: bool = False,
    values: bool = False,
) -> Generator[Any, None, None]:
    def calls(some: Sequence[Any]) -> Iterator[Call]:
        return ((ALGORITHM, DEFAULT_POLICY, None, (item,), {}) for item in some)

    shared = inbox.access, inbox, HeldResults(inbox.access, inbox), Codec()
    return MapRun(*shared, MapItems(items, calls), ordered, values).start()


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


def test_a_map_yields_results_as_they_arrive_or_in_the_order_of_the_items(io: _Io, inbox: Inbox) -> None:
    """The tag of each result is its item. A map that comes to its end cancels nothing."""
    results = _results(io, inbox, iter([1, 2, 3]))
    assert [(result.tag, result.value) for result in results] == [(3, 30), (2, 20), (1, 10)]
    assert [result.tag for result in _results(io, inbox, iter([1, 2, 3]), ordered=True)] == [1, 2, 3]
    assert list(_results(io, inbox, iter([]), ordered=True)) == []
    assert not io.commands
    assert not inbox.abandoned


def test_a_map_submits_its_first_items_before_the_first_result_is_requested(io: _Io, inbox: Inbox) -> None:
    """The I/O thread is woken for them."""
    results = _results(io, inbox, iter([1, 2, 3]))
    assert io.submissions.total == 3
    assert io.link.wakes
    assert [result.value for result in results] == [30, 20, 10]


@pytest.mark.parametrize(
    ("ordered", "limits", "most"),
    [(False, {"MAP_PENDING": 10}, 10), (False, {"MAP_BYTES": 5}, 3), (True, {"MAP_WINDOW": 7}, 7)],
)
def test_an_endless_map_keeps_a_limited_number_of_items_in_flight(
    io: _Io, inbox: Inbox, monkeypatch: pytest.MonkeyPatch, ordered: bool, limits: dict[str, int], most: int
) -> None:
    """The arguments of each task take two bytes here."""
    for name, limit in limits.items():
        monkeypatch.setattr(maps, name, limit)
    results = _results(io, inbox, (number % 100 for number in count()), ordered)
    assert len([*islice(results, 100)]) == 100
    assert io.most_open == most


@pytest.fixture
def large_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """The items of the tests are large: the arguments of each task take two bytes. Few of them are in flight."""
    monkeypatch.setattr(maps, "LARGE_BYTES", 2)
    monkeypatch.setattr(maps, "LARGE_BYTES_OPEN", 6)
    monkeypatch.setattr(maps, "LARGE_ITEMS_OPEN", 1)


@pytest.mark.parametrize(
    ("limits", "most"),
    [({"LARGE_BYTES_OPEN": 20}, 10), ({"LARGE_ITEMS_OPEN": 4}, 12)],
    ids=["bytes", "items for two slaves and one that may come"],
)
@pytest.mark.usefixtures("large_items")
def test_a_map_keeps_less_of_large_items_in_flight(
    io: _Io, inbox: Inbox, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], most: int
) -> None:
    for name, limit in limits.items():
        monkeypatch.setattr(maps, name, limit)
    assert len([*_results(io, inbox, iter(range(100)))]) == 100
    assert io.most_open == most


@pytest.mark.usefixtures("large_items")
def test_early_results_do_not_stop_a_map_of_large_items(io: _Io, inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first item runs, slaves run others, although their results wait for their turn."""
    results = _results(io, inbox, iter(range(100)), ordered=True)
    spans = [*io.submissions.take()]
    given: list[Result[object]] = [
        Result(TaskId(number), ORIGIN, tag, 0.1, False, "x" * 600)
        for span in spans
        for number, tag in zip(span.ids, span.tags, strict=True)
    ]
    assert len(given) == 3
    io.jar.away = 3
    io.outcomes.put(Actions(results=given[1:]))
    read: list[int] = []

    def give_the_first() -> None:
        read.append(io.submissions.total)
        io.outcomes.put(Actions(results=given[:1]))

    monkeypatch.setattr(io, "run_tasks", give_the_first)
    assert next(results).tag == 0
    assert read == [5]


@pytest.mark.usefixtures("large_items")
def test_a_slow_user_of_large_items_does_not_keep_slaves_waiting(io: _Io, inbox: Inbox) -> None:
    results = _results(io, inbox, iter(range(100)))
    for _ in range(3):
        next(results)
    assert io.submissions.total == 5


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
    io.outcomes.put(Actions(results=large[1:]))
    read: list[int] = []

    def give_the_first() -> None:
        read.append(io.submissions.total)
        io.outcomes.put(Actions(results=large[:1]))

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


def test_a_result_that_arrives_twice_counts_once(io: _Io, inbox: Inbox) -> None:
    """An interrupt can leave it in the map twice."""
    results = _results(io, inbox, iter([1, 2]))
    [span] = io.submissions.take()
    arrived = [_result(number, tag) for number, tag in zip(span.ids, span.tags, strict=True)]
    for _ in range(2):
        io.outcomes.put(Actions(results=arrived[:]))
    assert [result.tag for result in results] == [1, 2]


def _portions(
    inbox: Inbox, items: Iterable[Any], *, ordered: bool = True, values: bool = True, packs: bool = True
) -> Generator[Any, None, None]:
    """A map whose items are packed."""
    source = items_of((ALGORITHM, DEFAULT_POLICY, None), (items,), SETTINGS)
    source.rows = source.rows if packs else None
    shared = inbox.access, inbox, HeldResults(inbox.access, inbox), Codec()
    return MapRun(*shared, source, ordered, values).start()


def _stretches(io: _Io) -> list[Stretch]:
    """Run what is submitted, each portion as one stretch: each value is ten times its item."""
    found = []
    for span in io.submissions.take():
        values = [10 * cast("list[int]", decode(call))[0] for call in span.payloads]
        found.append(Stretch(TaskId(span.first), values, span.tags[0], ORIGIN, [1e-6 * span.count], 100, plain=True))
    io.jar.away = io.submissions.total
    return found


@pytest.fixture
def runs_stretches(io: _Io, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the algorithm waits, everything runs. The last portion finishes first."""

    def run_tasks() -> None:
        if stretches := _stretches(io):
            io.outcomes.put(Actions(stretches=stretches[::-1]))

    monkeypatch.setattr(io, "run_tasks", run_tasks)


@pytest.mark.usefixtures("runs_stretches")
def test_the_values_of_portions_are_given_out_in_order_or_as_they_arrive(io: _Io, inbox: Inbox) -> None:
    expected = [10 * item for item in range(3000)]
    assert [*_portions(inbox, range(3000))] == expected
    unordered = [*_portions(inbox, range(3000), ordered=False)]
    assert unordered != expected
    assert sorted(unordered) == expected
    results = [*_portions(inbox, range(3000), values=False)]
    assert [(result.tag, result.value) for result in results] == [(item, 10 * item) for item in range(3000)]
    assert [result.task_id for result in results] == [*range(6001, 9001)]
    assert not io.commands


def test_items_of_any_type_are_submitted_in_portions(io: _Io, inbox: Inbox) -> None:
    """Unless one of them has large buffers: then each is a task of its own."""
    items = [(number,) for number in range(25)]
    values = _portions(inbox, items)
    spans = io.submissions.take()
    calls = [loads_call(decode(call)) for span in spans for call in span.payloads]
    assert [args for args, _ in calls] == [(item,) for item in items]
    assert [portion_of(span) for span in spans] == [1, 4, 16, 4]
    values.close()
    others = _portions(inbox, [1, PickleBuffer(bytes(LARGE_BYTES)), (2,), {3}])
    assert [(span.count, portion_of(span)) for span in io.submissions.take()] == [(1, 1), (3, 0)]
    others.close()


def test_values_of_portions_are_unpickled_when_they_are_given_out(io: _Io, inbox: Inbox) -> None:
    """If one cannot be unpickled, the error names its item."""
    values = _portions(inbox, [(1,), (2,), (3,)])
    entries = [decode(Codec().dumps_value({1})[0]), 5, Pickled(1, b"nonsense")]
    firsts = [(TaskId(span.first), span.count, span.tags[0]) for span in io.submissions.take()]
    parts = [(first, entries[first - 1 : first - 1 + count], tag) for first, count, tag in firsts]
    io.outcomes.put(Actions(stretches=[Stretch(*part, ORIGIN, [1e-6], 8, plain=False) for part in parts]))
    assert [next(values), next(values)] == [{1}, 5]
    with pytest.raises(TaskFailed, match="cannot be unpickled here") as caught:
        next(values)
    assert (caught.value.item, caught.value.task_id) == ((3,), 3)


def test_the_io_thread_is_woken_for_the_last_items(io: _Io, inbox: Inbox) -> None:
    """An iterable may end with a portion that is not full."""
    values = _portions(inbox, [1, 2])
    assert io.link.wakes == 2
    values.close()


@pytest.mark.usefixtures("runs_stretches")
def test_an_endless_map_of_portions_keeps_a_limited_number_of_items_in_flight(
    io: _Io, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while a stretch is given out."""
    monkeypatch.setattr(maps, "MAP_WINDOW", 2000)
    monkeypatch.setattr(maps, "LOOK_S", 0.0)
    values = _portions(inbox, count())
    for taken in range(1, 3001):
        next(values)
        assert io.submissions.total <= taken + 2 * 2000


def test_a_stretch_that_arrives_twice_counts_once(io: _Io, inbox: Inbox) -> None:
    """An interrupt can leave it in the map twice."""
    values = _portions(inbox, range(1, 4))
    stretches = _stretches(io)
    for _ in range(2):
        io.outcomes.put(Actions(stretches=stretches[:]))
    assert [*values] == [10, 20, 30]


def test_a_portion_may_end_in_parts(io: _Io, inbox: Inbox) -> None:
    """A slave may send several stretches of it, and a failure alone. The error names the item."""
    monkey = _portions(inbox, range(1, 31), ordered=False)
    parts = []
    for stretch in _stretches(io):
        for at in range(0, stretch.count, 2):
            number = TaskId(stretch.first + at)
            parts.append(Stretch(number, stretch.values[at : at + 2], stretch.tag, ORIGIN, [1e-6], 8, plain=True))
    last = parts.pop()
    failure = TaskFailed("max", SID, "ValueError", "negative")
    ids = map(TaskId, range(last.first, last.first + last.count))
    ill: list[Result[Any]] = [Result(number, ORIGIN, last.tag, 0.1, True, failure) for number in ids]
    io.outcomes.put(Actions(stretches=parts[::-1], results=ill))
    found: list[Any] = []
    with pytest.raises(TaskFailed) as caught:
        found.extend(monkey)
    assert len(found) % 2 == 0
    assert caught.value.item in (29, 30)
    assert not io.commands or _cancelled(io)


@pytest.mark.parametrize("ordered", [False, True])
def test_the_items_that_were_not_given_out_remain_if_the_whole_run_is_stopped(
    io: _Io, inbox: Inbox, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    """Whether they are of the stretch that is given out, of an early one, of none, or were not read."""
    monkeypatch.setattr(maps, "MAP_PENDING", 200)
    monkeypatch.setattr(maps, "READ_EVERY", 10)
    monkeypatch.setattr(maps, "LOOK_S", 0.0)
    values = _portions(inbox, range(1000), ordered=ordered)
    first, *others = _stretches(io)
    early = [stretch for place, stretch in enumerate(others) if place % 2]
    io.outcomes.put(Actions(stretches=[first, others[0], *early]))
    found = [next(values) for _ in range(3)]

    def stop(_: Inbox) -> None:
        raise TooManyFailures("5", 5, 9, [], [])

    monkeypatch.setattr(Inbox, "receive", stop)
    with pytest.raises(TooManyFailures) as caught:
        found.extend(values)
    remaining = [*caught.value.remaining]
    assert sorted([value // 10 for value in found] + remaining) == [*range(1000)]
    assert found == sorted(found) or not ordered


def test_a_failed_item_is_raised_in_its_turn_and_named(io: _Io, inbox: Inbox) -> None:
    values = _results(io, inbox, iter([1, -2, 3]), ordered=True, values=True)
    assert next(values) == 10
    with pytest.raises(TaskFailed) as caught:
        next(values)
    assert str(caught.value) == "task 2 (max) failed on SLAVE-0 (node7), item -2: ValueError: negative"
    assert (caught.value.item, caught.value.host, caught.value.task_id) == (-2, "node7", 2)


Close = Callable[[Generator[Result[int], None, None]], None]


def _fail_in(results: Generator[Result[int], None, None]) -> None:
    with pytest.raises(KeyError):
        results.throw(KeyError("mine"))


@pytest.mark.parametrize("close", [lambda results: results.close(), _fail_in, lambda results: None])
@pytest.mark.parametrize("begun", [False, True])
def test_closing_a_map_cancels_its_tasks(io: _Io, inbox: Inbox, close: Close, begun: bool) -> None:
    """It is closed by `close`, by an exception, or because nobody refers to it, also before the first result."""
    io.submissions.add(ALGORITHM, DEFAULT_POLICY, b"\x91\x01", (), "another")
    results = _results(io, inbox, count())
    last = io.submissions.total
    if begun:
        assert next(results).task_id == last
        last -= 1
    close(results)
    del results
    assert _cancelled(io) == [*range(2, last + 1)]
    assert not inbox.abandoned


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
        patch.setattr(io.submissions, "add_keyed", interrupted)
        with pytest.raises(KeyboardInterrupt):
            _results(io, inbox, iter([1]))
    assert not io.commands


def test_a_map_that_outlives_its_master_is_closed_in_silence(io: _Io, inbox: Inbox) -> None:
    results = _results(io, inbox, count())
    inbox.access.close()
    with pytest.raises(UsageError, match="over"):
        next(results)
    assert not io.commands


def test_a_map_of_a_map_runs(io: _Io, inbox: Inbox) -> None:
    """The items of one map are the values of another."""
    inner = _results(io, inbox, iter(range(5)), ordered=True, values=True)
    assert [result.value for result in _results(io, inbox, inner, ordered=True)] == [0, 100, 200, 300, 400]


def test_an_interrupt_anywhere_loses_no_result_of_other_tasks(io: _Io, access: Access) -> None:
    """The map is closed each time, and its tasks are cancelled. The result of the other task arrives exactly once."""
    for moment in moments():
        inbox = Inbox(access, SETTINGS)
        io.outcomes = cast(_Queue, SimpleQueue())  # no Python code runs in its methods
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


def _plain() -> None:
    """A function that slaves find under its name."""


def test_an_algorithm_by_name_is_defined_once() -> None:
    """A call that was unpickled has a copy of the algorithm, and gets the same definition."""
    definitions = Definitions(Codec())
    algorithm = algorithm_of(_plain)
    defined = definitions.define(algorithm)
    definition = defined.record.definition
    assert (definition.number, definition.reference) == (0, f"{__name__}:_plain")
    assert (list(definition.code[__name__].parts), defined.record.packed, defined.size) == (["function _plain"], b"", 0)
    assert definitions.known == {algorithm: defined}
    assert definitions.prepare(algorithm) is algorithm
    copy = pickle.loads(pickle.dumps(Algorithm(_plain, policy={"retry": False})))
    assert (definitions.define(copy), copy.policy) == (defined, {"retry": False})
    assert definitions.define(algorithm_of(abs)).number == 1


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


def test_a_notice_names_the_large_object_that_a_function_takes_along_once() -> None:
    """Also one that another function or a partial reaches."""
    notices: list[str] = []
    definitions = Definitions(Codec(), notice=notices.append)
    table, size = np.zeros(20 << 17), 3

    def mean() -> float:
        return float(table.mean()) / size

    def whole(_: int) -> float:
        return mean()

    for _ in range(2):
        definitions.define(algorithm_of(whole))
        definitions.define(algorithm_of(partial(max, bytes(30 << 20))))
    definitions.define(algorithm_of(lambda _: size))
    first, second = notices
    assert "whole travels by value with 20 MB (" in first
    assert "mean uses table, a ndarray of 20 MB)" in first
    assert "mw.share(...)" in first
    assert "(partial uses argument 1, a bytes of 30 MB)" in second


def test_an_algorithm_by_value_that_nobody_keeps_gets_another_number() -> None:
    """The core keeps those that are used, and the thread of the algorithm keeps nothing."""
    definitions = Definitions(Codec())
    seen = [definitions.define(algorithm_of(lambda: 7)).number for _ in range(3)]
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("mark", [lambda function: function, task_algorithm])
def test_the_pickle_of_a_function_does_not_depend_on_what_was_asked_of_it(mark: Callable[[Any], Any]) -> None:
    definitions = Definitions(Codec())
    function = mark(lambda: 7)
    defined = definitions.define(algorithm_of(function))
    assert (algorithm_of(function).reference, algorithm_of(function).name) == ("", function.__qualname__)
    assert definitions.define(algorithm_of(function)) is defined


def test_a_function_of_main_travels_by_value_if_slaves_have_another_main(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook is an example."""

    def square(x: int) -> int:
        return x * x

    square.__module__, square.__qualname__ = "__main__", "square"
    import __main__

    monkeypatch.setattr(__main__, "square", square, raising=False)
    by_name, by_value = [Definitions(codec).define(algorithm_of(square)).record for codec in (Codec(), Codec({}))]
    assert (by_name.definition.reference, by_value.definition.reference) == ("__main__:square", "")
    assert loads_function(by_value.packed)(3) == 9
