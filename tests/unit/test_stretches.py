"""A slave runs the tasks of a portion in stretches, and sends the results of a stretch together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pickle import PickleBuffer
from typing import Any

import pytest

from mwpy._roles import stretches
from mwpy._roles.stretches import STRETCH_S, Stretches
from mwpy._roles.waiting_tasks import WaitingTasks
from mwpy._transport import wire
from mwpy._transport.codec import Codec, loads
from mwpy._values import groups, messages
from mwpy._values.bounds import MAX_TASKS
from mwpy._values.ids import Buffer
from mwpy._values.messagepack import PLAIN, decode
from mwpy._values.packed import ARGUMENTS, CALLS, ROWS

LIMIT = 100_000


def _refuse() -> None:
    raise ValueError("unreadable")


class _Unreadable:
    """An object that can be pickled, but not unpickled."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _refuse, ()


class _Slave:
    """What a `TaskRunner` gives to its stretches."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.sent: list[tuple[messages.Results, Sequence[Buffer]]] = []
        self.looked: list[tuple[int, str]] = []
        self.recalled_at = 0
        """The position of the first task that must not start; 0 if there is none."""
        self.goes_on = True
        self.attempt = 1
        self.clock = clock
        self.stretches = Stretches(7, LIMIT, Codec(), self._send, self._look)

    def _send(self, message: messages.Message, frames: Sequence[Buffer]) -> None:
        """An agent would kill a slave whose message exceeds a bound."""
        assert isinstance(message, messages.Results)
        assert wire.decode(wire.encode(message, frames), wire.FROM_SLAVE)[0] == message
        self.sent.append((message, frames))

    def _look(self, task_id: int, error: BaseException | None) -> bool:
        self.looked.append((task_id, type(error).__name__))
        return self.goes_on

    def run_each(
        self,
        function: Callable[..., Any],
        calls: Iterable[Any],
        are_rows: bool,
        position: int,
        values: list[Any],
        kinds: set[type],
        encode_last: Callable[[], bool],
        ends: list[float] | None,
        until: float,
    ) -> None:
        """Do what `SlaveEnd.run_each` does."""
        for place, args in enumerate(calls, position):
            if self.recalled_at and place >= self.recalled_at:
                return
            values.append(function(*args) if are_rows else function(args))
            kinds.add(type(values[-1]))
            if type(values[-1]) not in PLAIN and not encode_last():
                return
            if ends is not None:
                ends.append(self.clock())
                if ends[-1] >= until:
                    return

    def run(self, function: Callable[..., Any], *arguments: Any, most: int = 1000) -> int:
        """Run a task for each argument, and send all results. The first has the id 11 and the position 1."""
        ran = self.run_portion(function, 11, *arguments, most=most)
        self.stretches.flush()
        return ran

    def run_portion(
        self, function: Callable[..., Any], first: int, *arguments: Any, most: int = 1000, algorithm: int = 3
    ) -> int:
        """Run a task for each argument. The first has the id `first` and the position `first` - 10."""
        count, position = len(arguments), first - 10
        numbers = first, count, self.attempt, position, algorithm
        span = WaitingTasks(*numbers, None, False, arguments, (), (), (), ARGUMENTS)
        return self.stretches.run(self.run_each, function, span, most)

    def results(self) -> dict[int, Any]:
        """What was sent for each task; of a failure the type and the text."""
        found: dict[int, Any] = {}
        for group, frames in self.sent:
            values, buffers = groups.entries(group, frames)
            named = [number for number, _ in groups.each_task(group)]
            for place, (number, value) in enumerate(zip(named, values, strict=True)):
                loaded = loads(value, buffers[place] if buffers else ())
                found[number] = loaded[:2] if place in group.failed else loaded
        return found


@pytest.fixture
def clock() -> list[float]:
    """The steps of the clock from one look to the next. The last one stays."""
    return [0.0]


@pytest.fixture
def slave(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> _Slave:
    now = [0.0]

    def monotonic() -> float:
        now[0] += clock.pop(0) if len(clock) > 1 else clock[0]
        return now[0]

    monkeypatch.setattr(stretches, "monotonic", monotonic)
    return _Slave(monotonic)


def test_the_results_of_short_tasks_are_one_message_with_one_time(slave: _Slave, clock: list[float]) -> None:
    clock[:] = [0.0, 1e-6]
    assert slave.run(abs, *range(-100, 0)) == 100
    [(group, _)] = slave.sent
    assert (group.tasks, group.counts, group.attempts, group.plain) == ([11], [100], [1], True)
    assert group.seconds == [pytest.approx(7e-6)], "blocks of 1, 2, 4 and so on"
    assert slave.results() == {11 + place: 100 - place for place in range(100)}


def test_tasks_that_are_not_short_are_timed_one_by_one(slave: _Slave, clock: list[float]) -> None:
    """Also in a block of several tasks, and if one of them raises an exception."""
    clock[:] = [0.0, 25e-6]
    slave.run(lambda number: 1 // number, -1, -2, -3, 0, -5)
    times = [seconds for group, _ in slave.sent for seconds in group.seconds]
    assert times == [pytest.approx(25e-6)] * 5
    assert [task for task, _ in slave.looked] == [11, 13, 14, 15]


def test_in_a_later_attempt_each_task_is_looked_at(slave: _Slave) -> None:
    """One of them may have closed the connection of its slave. Then the others must not be charged."""
    for attempt, looked in ((2, [11, 13, 15]), (3, [*range(11, 16)])):
        slave.attempt = attempt
        slave.looked.clear()
        assert slave.run(abs, *range(5)) == 5
        assert [task for task, _ in slave.looked] == looked
    assert [group.attempts for group, _ in slave.sent] == [[2], [3]]


@pytest.mark.parametrize("attempt", [1, 2, 3])
def test_a_message_keeps_to_its_bounds_however_many_tasks_were_short(slave: _Slave, attempt: int) -> None:
    """Each of them is a block in the third attempt."""
    slave.attempt = attempt
    count = 2 * MAX_TASKS
    assert slave.run(abs, *range(count), most=count) == count
    assert slave.results() == {11 + place: place for place in range(count)}


def test_a_message_keeps_to_its_bounds_however_many_portions_were_short(slave: _Slave) -> None:
    for number in range(2 * MAX_TASKS + 1):
        slave.run_portion(abs, 11 + 2 * number, number)
    slave.stretches.flush()
    assert [len(message.tasks) for message, _ in slave.sent] == [MAX_TASKS, MAX_TASKS, 1]


def test_results_are_sent_soon(slave: _Slave, clock: list[float]) -> None:
    clock[:] = [0.0, 0.004]
    slave.run(abs, *range(5))
    assert [group.counts for group, _ in slave.sent] == [[3], [2]]


def test_results_of_short_tasks_are_sent_less_often(slave: _Slave, clock: list[float]) -> None:
    """With these, each task takes two looks at the clock: 2.4 ms."""
    clock[:] = [0.0, 0.0012]
    slave.run(abs, *range(40))
    assert [group.counts for group, _ in slave.sent] == [[15], [15], [10]]
    assert 14 * 0.0024 < STRETCH_S < 15 * 0.0024


def test_all_slaves_send_results_at_the_same_moments(slave: _Slave, clock: list[float]) -> None:
    """These are multiples of `STRETCH_S`, whenever the tasks began. So agent and master wake up once for all slaves."""
    clock[:] = [0.0205, 0.0012]
    slave.run(abs, *range(40))
    assert [group.counts for group, _ in slave.sent] == [[7], [14], [15], [4]]
    assert 0.0205 + 6 * 0.0024 < STRETCH_S < 0.0205 + 7 * 0.0024
    assert 0.0205 + 20 * 0.0024 < 2 * STRETCH_S < 0.0205 + 21 * 0.0024


def test_the_first_result_is_sent_at_once_if_the_agent_has_heard_nothing_for_long(
    slave: _Slave, clock: list[float]
) -> None:
    """It has looked for late results already, when there were none: the slave loaded a module, for example."""
    slave.stretches.silent_from = 1.0
    clock[:] = [1.0 + STRETCH_S, 1e-6]
    slave.run(abs, *range(10))
    assert [group.counts for group, _ in slave.sent] == [[1], [9]]


def test_results_do_not_wait_for_the_tasks_after_a_long_one(slave: _Slave, clock: list[float]) -> None:
    clock[:] = [0.0, 25e-6]

    def work(seconds: float) -> int:
        clock[:] = [seconds, 25e-6]
        return len(slave.sent)

    slave.run(work, *[25e-6] * 8, 0.03, 25e-6, 25e-6)
    assert [*slave.results().values()] == [0] * 9 + [1, 1]


def test_a_stretch_has_tasks_of_several_portions(slave: _Slave, clock: list[float]) -> None:
    """They are those of one algorithm, because often only the time of all of them together is known."""
    clock[:] = [0.0, 1e-6]
    assert [slave.run_portion(abs, first, -first, -5) for first in (11, 13, 20)] == [2, 2, 2]
    assert not slave.sent
    slave.run_portion(abs, 22, -22, algorithm=4)
    slave.stretches.flush()
    assert [(group.tasks, group.counts) for group, _ in slave.sent] == [([11, 20], [4, 2]), ([22], [1])]
    assert slave.results() == {11: 11, 12: 5, 13: 13, 14: 5, 20: 20, 21: 5, 22: 22}


def test_calls_have_any_number_of_arguments(slave: _Slave) -> None:
    span = WaitingTasks(1, 2, 1, 1, 0, None, False, [(2, 5), (3, 2)], (), (), (), ROWS)
    assert slave.stretches.run(slave.run_each, pow, span, 10) == 2
    slave.stretches.flush()
    assert slave.results() == {1: 32, 2: 9}


def test_calls_and_values_can_be_pickles(slave: _Slave, clock: list[float]) -> None:
    """Their results share a message, too. A call that cannot be unpickled fails only its own task."""
    clock[:] = [0.0, 1e-6]
    calls = [decode(Codec().dumps_call(args, {}, "f")[0]) for args in [(1,), ((2, 3),), (_Unreadable(),), (4 + 5j,)]]
    span = WaitingTasks(11, 100, 1, 1, 0, None, False, [*calls[:2], *calls[:1] * 98], (), (), (), CALLS)
    assert slave.stretches.run(slave.run_each, lambda value: (value,), span, 100) == 100
    slave.stretches.flush()
    [(group, _)] = slave.sent
    assert (group.counts, group.plain, len(group.seconds)) == ([100], False, 1)
    assert slave.results() == {11: (1,), 12: ((2, 3),), **dict.fromkeys(range(13, 111), (1,))}
    slave.sent.clear()
    span = WaitingTasks(1, 4, 1, 1, 0, None, False, calls, (), (), (), CALLS)
    slave.stretches.run(slave.run_each, lambda value: value, span, 100)
    slave.stretches.flush()
    assert slave.results() == {1: 1, 2: (2, 3), 3: ("ValueError", "unreadable"), 4: 4 + 5j}


def test_an_exception_fails_only_its_own_task(slave: _Slave) -> None:
    slave.run(lambda number: 6 // number, *[3] * 5, 0, 3, 0)
    assert [(group.counts, group.failed, group.plain) for group, _ in slave.sent] == [
        ([6], [5], False),
        ([2], [1], False),
    ]
    failure = "ZeroDivisionError", "integer division or modulo by zero"
    assert [*slave.results().values()] == [2] * 5 + [failure, 2, failure]
    assert [task for task, error in slave.looked if error != "NoneType"] == [16, 18]


def test_a_value_that_can_change_is_encoded_before_the_next_task_runs(slave: _Slave) -> None:
    kept: list[int] = []

    def add(number: int) -> object:
        kept.append(number)
        return number if number == 2 else kept

    slave.run(add, 1, 2, 3)
    assert slave.results() == {11: [1], 12: 2, 13: [1, 2, 3]}


def test_values_with_large_buffers_are_frames_of_their_own(slave: _Slave) -> None:
    slave.run(lambda size: PickleBuffer(b"x" * size), 5, 70_000, 6)
    assert [(group.counts, group.buffers) for group, _ in slave.sent] == [([2], [0, 1]), ([1], [])]
    assert [len(value) for value in slave.results().values()] == [5, 70_000, 6]


def test_a_value_that_cannot_be_sent_is_a_failure(slave: _Slave) -> None:
    values = {1: 5, 2: "x" * (LIMIT + 1), 3: (each for each in ""), 5: 1 << 70, 6: "\ud800"}
    slave.run(values.__getitem__, 1, 2, 3, 5, 6)
    found = slave.results()
    assert (found[11], found[14], found[15]) == (5, 1 << 70, "\ud800")
    assert [found[number][0] for number in (12, 13)] == ["mwpy.slave.ResultTooLarge", "mwpy.slave.ResultNotPicklable"]


def test_texts_and_bytes_together_are_read_as_any_values(slave: _Slave) -> None:
    slave.run(lambda value: value, "text", b"bytes", None)
    [(group, _)] = slave.sent
    assert not group.plain
    assert [*slave.results().values()] == ["text", b"bytes", None]


def test_many_bytes_or_a_failure_are_sent_at_once(
    slave: _Slave, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock[:] = [0.0, 0.001]
    monkeypatch.setattr(stretches, "STRETCH_BYTES", 10)
    slave.run(lambda value: value or 1 // 0, "x" * 11, b"y" * 11, 1, 0, 0, 5)
    assert [group.counts for group, _ in slave.sent] == [[1], [1], [2], [1], [1]]


def test_a_recall_ends_the_stretch(slave: _Slave) -> None:
    slave.recalled_at = 3
    assert slave.run(abs, *range(10)) == 2
    assert slave.results() == {11: 0, 12: 1}
    slave.recalled_at = 1
    assert slave.run(abs, *range(10)) == 0


def test_a_slave_without_an_agent_starts_no_other_task(slave: _Slave) -> None:
    slave.goes_on = False
    slave.run(abs, *range(10))
    assert len(slave.looked) == 1


def test_only_so_many_tasks_are_run_as_are_wanted(slave: _Slave) -> None:
    assert slave.run(abs, *range(10), most=4) == 4
    assert [*slave.results()] == [11, 12, 13, 14]
