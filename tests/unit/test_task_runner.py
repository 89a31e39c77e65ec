"""The part of a slave that runs tasks, with a fake channel: what it sends, and in which order it does things."""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest
from tests.spans import MAX, span

import mwpy
from mwpy._core.master.spans import LeftState
from mwpy._roles import loaded, stretches, task_runner, unsendable
from mwpy._roles.stretches import STRETCH_S
from mwpy._roles.task_logs import Allowance
from mwpy._roles.task_runner import GATHERED, GATHERED_BYTES, MEASURE_S, TaskRunner
from mwpy._system import memory
from mwpy._transport import shared_objects, wire
from mwpy._transport.call_parts import with_condition, with_seed
from mwpy._transport.channel import SlaveEnd
from mwpy._transport.channel.journal import JOURNAL_BYTES, PAYLOAD_BYTES, Journal
from mwpy._transport.codec import Codec, loads, loads_state
from mwpy._transport.passage import is_folded, read_references
from mwpy._values import groups, messages
from mwpy._values.algorithm import PYTHON
from mwpy._values.digested import mark_of
from mwpy._values.ids import Buffer, SlaveId
from mwpy._values.message_checks import check
from mwpy._values.messagepack import as_pickle, encode
from mwpy._values.messages import LoadFailure
from mwpy._values.packed import ROWS
from mwpy._values.policy import Limits
from mwpy._values.sameness.structure import digest_of
from mwpy._values.share_messages import Share
from mwpy._values.shares import Shared
from mwpy.slave import Slave

CODEC = Codec()


class _End:
    """A channel whose other end is the test."""

    def __init__(self) -> None:
        self.journal = Journal(memoryview(bytearray(JOURNAL_BYTES)))
        self.incoming: deque[list[Buffer]] = deque()
        self.sent: list[tuple[messages.Message, Sequence[Buffer]]] = []
        self.waits: list[float] = []
        self.started: list[int] = []
        self.timed: list[int] = []
        """The positions of tasks that were started with their time, and 0 where no such task runs any more."""
        self.recalls: list[Callable[[], None]] = []
        """Functions that recall tasks as the agent does. The next start of a task calls the first of them."""
        self.recalls_heard = 0
        self.fed_at = 0.0
        self.position = 0
        self.ends_at = inf
        self.eof = self.forked = False
        self.run_each: Callable[..., None] | None = None
        self.has_message = False
        self.passes = False
        """Whether large buffers can be passed ahead."""
        self.passed: list[Sequence[Buffer]] = []
        self.named: list[list[int]] = []
        """The packets that each message has named, if any."""

    def pass_ahead(self, buffers: Sequence[Buffer]) -> int:
        if self.passes:
            self.passed.append([bytes(buffer) for buffer in buffers])
        return len(self.passed) if self.passes else 0

    def arrive(self, message: messages.Message, frames: Sequence[Buffer] = ()) -> None:
        self.incoming.append(wire.encode(message, frames))

    def task_ends_at(self, seconds_max: float | None) -> float:
        return self.ends_at if seconds_max is None else min(self.ends_at, seconds_max)

    def receive(self, timeout_s: float = 0.0) -> list[list[Buffer]]:
        if timeout_s:
            self.waits.append(timeout_s)
            self.eof = not self.incoming  # nothing would ever end this wait
        found = list(self.incoming)
        self.incoming.clear()
        return found

    def send(self, frames: list[Buffer]) -> None:
        if is_folded(frames):
            references = read_references(frames, 0)
            self.named.append([*references.ahead])
            frames = [*frames[1:], *(buffer for number in references.ahead for buffer in self.passed[number - 1])]
        self.sent.append(wire.decode([bytes(frame) for frame in frames]))

    def start(self, position: int) -> bool:
        self.started.append(position)
        self.position = position
        if self.recalls:
            self.recalls.pop(0)()
            return False
        return True

    def is_open(self) -> bool:
        return not self.eof

    def start_timed(self, position: int) -> bool:
        self.timed.append(position)
        return self.start(position)

    def rest(self) -> None:
        self.timed.append(0)

    def recall_heard(self) -> None:
        self.recalls_heard += 1


@pytest.fixture
def end() -> _End:
    return _End()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times that the clock of a task shows, one after the other. The last time stays."""
    moments = [1.0]
    monkeypatch.setattr(task_runner, "monotonic", lambda: moments.pop(0) if len(moments) > 1 else moments[0])
    return moments


def _runner(end: _End, result_group: int = 100, limit: int = 1000) -> TaskRunner:
    return TaskRunner(cast(SlaveEnd, end), 7, result_group, limit)


def _define(end: _End, *functions: Callable[..., Any]) -> None:
    """Define functions under the numbers 1, 2 and so on."""
    headers = [messages.AlgorithmDefinition(n, f"f{n}", "", "", PYTHON) for n in range(1, len(functions) + 1)]
    end.arrive(messages.Algorithms(headers), [CODEC.dumps_function(each, "f") for each in functions])


def _give(end: _End, first: int, count: int = 1, number: int = 1, args: Sequence[Any] = (), attempt: int = 1) -> None:
    payload, _ = CODEC.dumps_call(tuple(args), {}, "f")
    group = messages.Tasks(7, [first], [count], [attempt], [number])
    end.arrive(group, [groups.payload(count, [payload] * count)])


def _give_portion(end: _End, first: int) -> None:
    """Give three tasks of a portion, with the arguments -1, -2 and -3."""
    group = messages.Tasks(7, [first], [3], [1], [1], portions=[ROWS])
    end.arrive(group, [groups.payload(3, [encode((-number,)) for number in (1, 2, 3)])])


def _run_each(
    function: Callable[..., Any],
    calls: Sequence[Any],
    _: bool,
    __: int,
    values: list[Any],
    kinds: set[type],
    *___: object,
) -> None:
    values += [function(*call) for call in calls]
    kinds.update(map(type, values))


def _plain_results(end: _End) -> dict[int, Any]:
    """What was sent for each task of portions."""
    return {
        task: value
        for message, frames in end.sent
        if isinstance(message, messages.Results)
        for (task, _), value in zip(groups.each_task(message), groups.entries(message, frames)[0], strict=True)
    }


def _results(end: _End) -> dict[int, Any]:
    """What was sent for each task; a failure is (type name, text, ...)."""
    found = {}
    for message, frames in end.sent:
        if isinstance(message, messages.Results):
            values, buffers = groups.entries(message, frames)
            for (task, _), value, own in zip(groups.each_task(message), values, buffers, strict=True):
                found[task] = loads(value, own)
    return found


def test_a_slave_is_ready_once_its_definitions_are_loaded(end: _End) -> None:
    """The slave says once that it is ready."""
    runner = _runner(end)
    _define(end, lambda: None)
    runner.get_ready()
    assert not end.incoming
    runner.get_ready()
    assert [message for message, _ in end.sent] == [messages.SlaveReady(7)]


def test_a_turn_runs_up_to_the_given_number_of_tasks(end: _End) -> None:
    """The remaining tasks stay for the next turn. Results are sent when there is nothing else to do."""
    runner = _runner(end)
    _define(end, lambda x: x + 1)
    _give(end, 1, 3, args=[6])
    runner.turn(0.0, 2)
    assert (runner.completed, runner.num_waiting, runner.num_unsent) == (2, 1, 2)
    runner.turn(0.0, 100)
    assert (runner.completed, runner.num_waiting, runner.num_unsent, end.started) == (3, 0, 3, [1, 1, 2, 3])
    runner.turn(0.0, 100)
    assert (_results(end), runner.num_unsent, end.waits) == ({1: 7, 2: 7, 3: 7}, 0, [])


@pytest.mark.parametrize(("timeout", "waited"), [(None, task_runner.FOREVER_S), (0.5, 0.5)])
def test_a_turn_without_tasks_waits_for_some(end: _End, timeout: float | None, waited: float) -> None:
    runner = _runner(end)
    runner.turn(timeout, 1)
    assert end.waits == [waited]
    assert runner.ended
    assert not runner.shut_down


def test_the_results_of_some_tasks_travel_with_a_digest(end: _End) -> None:
    """Only of those that the master names; failures have none. The value is the same."""
    runner = _runner(end)
    _define(end, lambda x: 10 // x, lambda x: lambda: x)
    calls = [CODEC.dumps_call((each,), {}, "f")[0] for each in (1, 2, 5, 0, 1)]
    group = messages.Tasks(7, [1, 9], [4, 1], [1, 1], [1, 2], digests=[1, 2, 3, 4])
    end.arrive(group, [groups.payload(5, calls)])
    runner.turn(0.0, 100)
    runner.flush()
    results = _results(end)
    assert [results[task] for task in (1, 2, 3)] == [10, 5, 2]
    marks = {
        task: mark_of(value, again=False)
        for message, frames in end.sent
        if isinstance(message, messages.Results)
        for (task, _), value in zip(groups.each_task(message), groups.entries(message, frames)[0], strict=True)
    }
    assert marks[1] == ("", "its slave sent no digest")
    assert (marks[2], marks[3]) == ((digest_of(5).hex(), ""), (digest_of(2).hex(), ""))
    assert marks[4] == ("failure: ZeroDivisionError", "")
    assert marks[9][0] == ""
    assert "cannot be imported under its name" in marks[9][1]


@pytest.mark.parametrize(("silent_s", "counts"), [(STRETCH_S / 2, [3]), (STRETCH_S, [1, 2])])
def test_the_first_result_of_a_portion_waits_only_if_the_slave_was_fed_just_before(
    end: _End, monkeypatch: pytest.MonkeyPatch, silent_s: float, counts: list[int]
) -> None:
    """After a longer silence, its agent does not look for late results any more."""
    now = 2000.9 * STRETCH_S
    monkeypatch.setattr(stretches, "monotonic", lambda: now)
    end.run_each, end.fed_at = _run_each, now - silent_s
    runner = _runner(end)
    _define(end, abs)
    _give_portion(end, 1)
    runner.turn(0.0, 100)
    assert [message.counts for message, _ in end.sent if isinstance(message, messages.Results)] == [[n] for n in counts]


@pytest.mark.parametrize(
    ("again", "arrives", "counts"), [(True, True, [6]), (True, False, [3, 3]), (False, True, [3, 3])]
)
def test_the_results_of_portions_that_arrive_in_time_are_sent_together(
    end: _End, monkeypatch: pytest.MonkeyPatch, again: bool, arrives: bool, counts: list[int]
) -> None:
    """But a slave algorithm may take long between two turns."""
    monkeypatch.setattr(stretches, "monotonic", lambda: end.fed_at)
    end.run_each = _run_each
    runner = _runner(end)
    _define(end, abs)
    for first in (1, 4):
        _give_portion(end, first)
        end.has_message = arrives and first == 1
        runner.turn(0.0, 100, again=again)
    groups_sent = [message for message, _ in end.sent if isinstance(message, messages.Results)]
    assert [sum(message.counts) for message in groups_sent] == counts
    assert _plain_results(end) == {1: 1, 2: 2, 3: 3, 4: 1, 5: 2, 6: 3}


def test_the_results_of_a_portion_do_not_wait_for_a_message_without_tasks(
    end: _End, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stretches, "monotonic", lambda: end.fed_at)
    end.run_each, end.has_message = _run_each, True
    runner = _runner(end)
    _define(end, abs)
    _give_portion(end, 1)
    runner.turn(0.0, 100, again=True)
    assert not _plain_results(end)
    end.arrive(messages.SlaveNamed(7, SlaveId("SLAVE-3")))
    runner.turn(0.0, 100, again=True)
    assert _plain_results(end) == {1: 1, 2: 2, 3: 3}


def test_the_results_of_a_portion_do_not_wait_if_the_slave_ends(end: _End, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stretches, "monotonic", lambda: end.fed_at)
    end.run_each, end.has_message = _run_each, True
    runner = _runner(end)
    _define(end, abs)
    _give_portion(end, 1)
    end.arrive(messages.Shutdown(True, 0.0))
    runner.turn(0.0, 100, again=True)
    assert _plain_results(end) == {1: 1, 2: 2, 3: 3}


def test_tasks_that_were_recalled_are_not_run(end: _End) -> None:
    """The slave waits for the message that names the recalled tasks, and runs the others."""
    runner = _runner(end)
    _define(end, lambda x: x)
    _give(end, 5, 1, args=[5])
    _give(end, 6, 2, args=[6])
    end.recalls.append(lambda: end.arrive(messages.Revoked(7, [6], [1], [1])))
    runner.turn(0.0, 100)
    runner.flush()
    assert (_results(end), runner.completed, end.recalls_heard) == ({5: 5, 7: 6}, 2, 1)
    assert end.started == [1, 1, 1, 3]
    assert end.waits == [task_runner.FOREVER_S]


@pytest.mark.parametrize(
    ("group", "moments", "sent"),
    [
        (2, [0.0], [2]),
        (0, [0.0] * 5 + [1.0], [3]),
        (0, [0.0, 0.001, 0.001, 0.002, 0.019, 0.021, 0.021], [3]),
        (0, [0.0, 0.008, 0.008, 0.016, 0.016, 0.016, 0.017], [2]),
        (0, [0.0, 0.03, 0.03, 0.031, 0.032, 0.033, 0.034, 0.035], [1]),
    ],
    ids=[
        "a group is full",
        "a task took long",
        "20 ms are over",
        "another task like the last one would take too long",
        "after each sending, 20 ms begin again",
    ],
)
def test_results_are_gathered_until_they_are_due(
    end: _End, clock: list[float], group: int, moments: list[float], sent: list[int]
) -> None:
    runner = _runner(end, result_group=group)
    _define(end, lambda: None)
    _give(end, 1, 3)
    clock[:] = moments
    runner.turn(0.0, 100)
    assert [sum(each.counts) for each, _ in end.sent if isinstance(each, messages.Results)] == sent
    assert runner.num_unsent == 3 - sum(sent)


def test_whatever_a_task_raises_is_a_failed_result(end: _End) -> None:
    """The same holds for an error while its result is pickled, and for a result that is too large."""
    runner = _runner(end, limit=100)

    def leave() -> None:
        raise SystemExit("enough")

    _define(end, leave, lambda: (x for x in "x"), lambda: "x" * 101, lambda: b"fine")
    for task in range(1, 5):
        _give(end, task, number=task)
    runner.turn(0.0, 100)
    runner.flush()
    found = _results(end)
    assert [found[task][0] for task in (1, 2, 3)] == [
        "SystemExit",
        "mwpy.slave.ResultNotPicklable",
        "mwpy.slave.ResultTooLarge",
    ]
    assert "its result, a generator, cannot be pickled" in found[2][1]
    assert "its result is 103 bytes, the limit is 100 bytes" in found[3][1]
    assert found[4] == b"fine"
    assert isinstance(found[3][3], unsendable.ResultTooLarge)


def test_a_task_can_ask_for_the_time_that_is_left(end: _End) -> None:
    """There is no end before and after a task."""
    runner = _runner(end)
    _define(end, mwpy.seconds_left)
    end.ends_at = time.monotonic() + 1e6
    payload, _ = CODEC.dumps_call((), {}, "f")
    end.arrive(messages.Tasks(7, [1], [1], [1], [1], limits=[Limits(0.001)]), [groups.payload(1, [payload])])
    end.arrive(messages.Tasks(7, [2], [1], [1], [1]), [groups.payload(1, [payload])])
    assert mwpy.seconds_left() == inf
    runner.turn(0.0, 100)
    assert mwpy.seconds_left() == inf
    runner.flush()
    found = _results(end)
    assert found[1] == 0.0
    assert 0 < found[2] <= 1e6


def test_only_tasks_with_a_limit_of_time_are_started_with_their_time(end: _End) -> None:
    """The time covers the unpickling of the algorithm. After the last of these tasks, none runs."""
    runner = _runner(end)
    _define(end, max, min)
    payload, _ = CODEC.dumps_call((1, 2), {}, "f")
    limits = [None, Limits(1.5), None]
    group = messages.Tasks(7, [1, 5, 9], [1, 2, 1], [1, 1, 1], [1, 1, 1], limits=limits)
    end.arrive(group, [groups.payload(4, [payload] * 4)])
    runner.turn(0.0, 100)
    assert (end.started, end.timed) == ([1, 1, 2, 3, 4], [2, 3, 0])
    end.timed.clear()
    end.recalls.append(lambda: end.arrive(messages.Revoked(7, [20], [1], [1])))
    end.arrive(messages.Tasks(7, [20], [2], [1], [2], limits=[Limits(1.5)]), [groups.payload(2, [payload] * 2)])
    runner.turn(0.0, 100)
    assert end.timed == [5, 0, 6, 6, 0], "the first of these tasks was recalled, the second is unpickled and runs"


def test_the_seed_of_a_task_is_gone_after_the_task(end: _End) -> None:
    """It is also gone if the task fails. The arguments are those of the call."""
    runner = _runner(end)

    def seed(x: int) -> int:
        return mwpy.task_seed() // x

    _define(end, seed)
    calls = [CODEC.dumps_call((x,), {}, "f")[0] for x in (1, 0, 2)]
    seeded = [with_seed(call, number) for call, number in zip(calls, (30, 31, 32), strict=True)]
    for first, group in ((1, seeded), (4, calls)):
        end.arrive(messages.Tasks(7, [first], [3], [1], [1]), [groups.payload(3, group)])
    runner.turn(0.0, 100)
    runner.flush()
    found = _results(end)
    assert (found[1], found[2][0], found[3]) == (30, "ZeroDivisionError", 16)
    assert [found[task][0] for task in (4, 5, 6)] == ["mwpy.UsageError"] * 3


class _Busy(Exception):
    pass


def _fragile(x: int) -> int:
    if x == 1:
        raise SystemExit(3)
    if x == 2:
        raise OSError("disk")
    if x == 3:
        raise _Busy("later")
    return x


def _no_answer(error: Exception) -> bool:
    raise KeyError("question")


_CONDITIONS: list[tuple[Any, list[int]]] = [
    ((OSError,), [2]),
    ((_Busy, OSError), [2, 3]),
    (lambda error: "later" in str(error), [3]),
    (lambda _: True, [2, 3]),
    (lambda _: 0, []),
    (_no_answer, []),
]


@pytest.mark.parametrize(("condition", "again"), _CONDITIONS)
@pytest.mark.parametrize("seed", [None, 1])
def test_a_task_is_tried_again_after_an_exception_that_its_policy_names(
    end: _End, condition: Any, again: list[int], seed: int | None
) -> None:
    """An exit is no such exception. Tasks without an exception do not load the condition."""
    runner = _runner(end)
    _define(end, _fragile)
    pickled = CODEC.dumps_condition(condition)
    calls = [with_condition(CODEC.dumps_call((x,), {}, "f")[0], pickled) for x in range(4)]
    if seed is not None:
        calls = [with_seed(call, seed) for call in calls]
    end.arrive(messages.Tasks(7, [0], [4], [1], [1]), [groups.payload(4, calls)])
    runner.turn(0.0, 100)
    runner.flush()
    [(group, frames)] = [sent for sent in end.sent if isinstance(sent[0], messages.Results)]
    assert isinstance(group, messages.Results)
    check(group, frames)
    assert (group.failed, group.again) == ([1, 2, 3], again)


@pytest.mark.parametrize(
    ("pickled", "why"),
    [
        (CODEC.dumps_condition(_no_answer), "retry_errors failed: KeyError: 'question'"),
        (b"cno_such_module\nf\n.", "retry_errors failed: ModuleNotFoundError: No module named 'no_such_module'"),
    ],
    ids=["raises", "cannot be loaded"],
)
def test_a_failure_says_that_its_condition_failed(end: _End, pickled: bytes, why: str) -> None:
    runner = _runner(end)
    _define(end, _fragile)
    calls = [with_condition(CODEC.dumps_call((x,), {}, "f")[0], pickled) for x in (0, 2)]
    end.arrive(messages.Tasks(7, [0], [2], [1], [1]), [groups.payload(2, calls)])
    runner.turn(0.0, 100)
    runner.flush()
    found = _results(end)
    assert found[0] == 0
    assert found[1][:2] == ("OSError", f"disk (the task is not tried again, because {why})")


def test_a_large_group_of_results_says_which_tasks_are_tried_again(end: _End) -> None:
    """A failure that does not fit in the journal travels alone."""
    runner = _runner(end)

    def fail(x: int) -> None:
        raise OSError("x" * x)

    _define(end, fail)
    pickled = CODEC.dumps_condition((OSError,))
    calls = [with_condition(CODEC.dumps_call((x,), {}, "f")[0], pickled) for x in (PAYLOAD_BYTES, 1)]
    end.arrive(messages.Tasks(7, [0], [2], [1], [1]), [groups.payload(2, calls)])
    runner.turn(0.0, 100)
    runner.flush()
    found = [message for message, _ in end.sent if isinstance(message, messages.Results)]
    assert [(group.tasks, group.failed, group.again) for group in found] == [([0], [0], [0]), ([1], [0], [0])]


def test_an_interrupt_of_a_condition_ends_the_turn(end: _End) -> None:
    """This is possible only in the master's own slave."""
    runner = TaskRunner(cast(SlaveEnd, end), 7, 1, 1000, ends_the_turn=(KeyboardInterrupt,))

    def interrupt(_: Exception) -> bool:
        raise KeyboardInterrupt

    _define(end, _fragile)
    call = with_condition(CODEC.dumps_call((2,), {}, "f")[0], CODEC.dumps_condition(interrupt))
    end.arrive(messages.Tasks(7, [1], [1], [1], [1]), [groups.payload(1, [with_seed(call, 1)])])
    with pytest.raises(KeyboardInterrupt):
        runner.turn(0.0, 100)
    assert _results(end) == {}
    with pytest.raises(mwpy.UsageError):
        mwpy.task_seed()


def test_the_tasks_of_an_algorithm_that_cannot_run_here_are_given_back_together(end: _End) -> None:
    """The tasks are given back with the reason. The tasks of other algorithms run."""
    runner = _runner(end)
    end.arrive(messages.Algorithms([messages.AlgorithmDefinition(1, "f", "no_such_module:f", "", PYTHON)]))
    end.arrive(messages.Algorithms([messages.AlgorithmDefinition(2, "g", "", "", "2.7")]), [b"pickle"])
    end.arrive(messages.Algorithms([messages.AlgorithmDefinition(3, "h", "", "", PYTHON)]), [b"no pickle"])
    end.arrive(messages.Algorithms([messages.AlgorithmDefinition(4, "max", "builtins:max", "", PYTHON)]))
    for number in (1, 2, 3, 4, 5):
        _give(end, 10 * number, 3, number=number, args=[1, 2])
    runner.turn(0.0, 100)
    refused = [each for each, _ in end.sent if isinstance(each, messages.AlgorithmFailed)]
    assert [(each.number, each.tasks, each.counts, each.attempts) for each in refused] == [
        (number, [10 * number], [3], [1]) for number in (1, 2, 3, 5)
    ]
    reasons = (
        "no_such_module",
        "Pythons differ: 2.7 (master)",
        "h cannot be loaded:\nTraceback",
        "it was never defined",
    )
    for each, reason in zip(refused, reasons, strict=True):
        assert reason in each.reason
    sure, passing = LoadFailure.SURE, LoadFailure.PASSING
    assert [each.failure for each in refused] == [sure, sure, passing, sure]
    runner.flush()
    assert _results(end) == {40: 2, 41: 2, 42: 2}
    end.recalls.append(lambda: end.arrive(messages.Revoked(7, [60], [1], [1])))
    _give(end, 60, number=1)
    runner.turn(0.0, 100)
    assert len([each for each, _ in end.sent if isinstance(each, messages.AlgorithmFailed)]) == 4


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("ModuleNotFoundError('no module')", LoadFailure.SURE),
        ("ImportError('cannot allocate memory')", LoadFailure.PASSING),
        ("MemoryError()", LoadFailure.PASSING),
        ("SystemExit(1)", LoadFailure.PASSING),
    ],
)
@pytest.mark.parametrize("by_value", [False, True])
def test_only_a_missing_module_is_sure_to_fail_again(
    end: _End, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_value: bool, error: str, expected: LoadFailure
) -> None:
    """An import can fail for lack of memory, or because a file system does not answer."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fails_at_import.py").write_text(f"raise {error}")
    reference = "" if by_value else "fails_at_import:f"
    pickles = [b"cfails_at_import\nf\n."] if by_value else []
    runner = _runner(end)
    end.arrive(messages.Algorithms([messages.AlgorithmDefinition(1, "f", reference, "", PYTHON)]), pickles)
    _give(end, 10, number=1)
    runner.turn(0.0, 100)
    [refused] = [each for each, _ in end.sent if isinstance(each, messages.AlgorithmFailed)]
    assert refused.failure is expected


class _Loud:
    """A function by value that records when it is unpickled."""

    unpickled: ClassVar[list[str]] = []

    def __init__(self, name: str) -> None:
        self.name = name

    def __setstate__(self, state: dict[str, str]) -> None:
        self.unpickled.append(state["name"])
        self.name = state["name"]

    def __call__(self) -> str:
        return self.name


def test_an_algorithm_by_value_is_unpickled_after_the_start_of_its_first_task(end: _End) -> None:
    """If this ends the process, the death is charged to that task. What is forgotten unused is never unpickled."""
    runner = _runner(end)
    _define(end, *map(_Loud, "abc"))
    end.arrive(messages.Algorithms([], [3]))
    _give(end, 10, 2, number=2)
    end.recalls.append(lambda: end.arrive(messages.Revoked(7, [10], [2], [1])))
    runner.turn(0.0, 100)
    assert _Loud.unpickled == []
    _give(end, 20, number=2)
    _give(end, 30, number=3)
    runner.turn(0.0, 100)
    assert _Loud.unpickled == ["b"]
    end.arrive(messages.Algorithms([], [1, 2]))
    _give(end, 40, number=2)
    runner.turn(0.0, 100)
    runner.flush()
    assert _results(end) == {20: "b"}
    refused = [(each.number, each.reason) for each, _ in end.sent if isinstance(each, messages.AlgorithmFailed)]
    assert refused == [(3, "it was never defined"), (2, "it was never defined")]


def test_forgotten_functions_are_collected_although_they_refer_to_themselves(
    end: _End, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, a slave kept all of them until Python had made enough other objects."""
    monkeypatch.setattr(loaded, "GARBAGE_BYTES", 1000)
    runner = _runner(end)
    scope: dict[str, Any] = {"__name__": "__main__", "data": bytes(2000)}
    exec("def recursive(): return recursive, data", scope)
    kept: list[weakref.ref[Any]] = []
    gc.disable()
    try:
        for number, forgotten in enumerate([[], [0], [1]]):
            definition = messages.AlgorithmDefinition(number, "f", "", "", PYTHON)
            end.arrive(messages.Algorithms([definition], forgotten), [CODEC.dumps_function(scope["recursive"], "f")])
            _give(end, 10 + number, number=number)
            runner.turn(0.0, 100)
            kept += [weakref.ref(runner._algorithms.functions[number])]
        assert [each() is None for each in kept] == [True, True, False]
    finally:
        gc.enable()


def test_a_slave_algorithm_sees_what_the_runner_knows(end: _End) -> None:
    """The slave algorithm sees six values after each call, the id of the slave, and how the computation ended."""
    slave = Slave(_runner(end, result_group=5))
    end.arrive(messages.SlaveNamed(7, SlaveId("SLAVE-3")))
    assert slave.sid == "SLAVE-3"
    _define(end, lambda: None)
    _give(end, 1, 2)
    assert slave.loop_iterate() == (False, False, 1, 1, 1, 5)
    assert slave.loop(0.0) == (False, False, 2, 0, 2, 5)
    end.arrive(messages.Shutdown(True, 0.0))
    assert slave.loop(0.0) == (True, True, 2, 0, 0, 5)
    assert slave.loop_simple() == 0


def test_a_slave_algorithm_without_an_id_ends_with_the_computation(end: _End) -> None:
    """The slave started while the master shut down. An algorithm must not go on with an empty id."""
    slave = Slave(_runner(end))
    end.arrive(messages.Shutdown(True, 0.0))
    with pytest.raises(SystemExit) as ended:
        _ = slave.sid
    assert ended.value.code == 0


def test_a_slave_whose_agent_is_gone_has_no_id_and_ends_with_255(end: _End) -> None:
    slave = Slave(_runner(end))
    with pytest.raises(SystemExit) as ended:
        _ = slave.sid
    assert ended.value.code == 255
    assert slave.loop_simple() == 255


def test_a_slave_reports_once_that_it_has_too_much_memory_after_a_task(
    end: _End, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not measure before its first task, and not more often than it may."""
    sizes = [100, 101]
    monkeypatch.setattr(memory, "resident_bytes", lambda: sizes.pop(0))
    runner = TaskRunner(cast(SlaveEnd, end), 7, 1, 1000, max_memory_bytes=100)
    _define(end, int)
    runner.turn(0.0, 100)
    assert sizes == [100, 101]

    def reports_after_a_task(first: int) -> list[messages.Message]:
        end.sent.clear()
        _give(end, first)
        runner.turn(0.0, 100)
        return [message for message, _ in end.sent if isinstance(message, messages.SlaveGrown)]

    assert reports_after_a_task(1) == []
    assert reports_after_a_task(2) == []
    assert sizes == [101], "it was measured too often"
    clock[:] = [1.0 + MEASURE_S]
    assert reports_after_a_task(3) == [messages.SlaveGrown(7, 101)]
    clock[:] = [2.0]
    assert reports_after_a_task(4) == []


def _states(end: _End) -> list[tuple[int, int, object]]:
    """Task, attempt and value of the states that were sent."""
    sent = [(message, frames) for message, frames in end.sent if isinstance(message, messages.Checkpoint)]
    return [(message.task, message.attempt, loads_state(frames)) for message, frames in sent]


def _give_again(end: _End, task: int, state: object, argument: bytearray) -> None:
    """Give a task that left a state, as the master does."""
    payload, buffers = CODEC.dumps_call((argument,), {}, "f")
    entry, large = CODEC.dumps_state(state)
    again = span(task, MAX, 1, payload, buffers=[bytes(each) for each in buffers])
    call, own = again.resumed(LeftState([entry, *large], 1))
    end.arrive(messages.Tasks(7, [task], [1], [2], [1], [len(own)]), [groups.payload(1, [call]), *own])


def test_a_state_names_the_task_that_runs(end: _End) -> None:
    """The results of earlier tasks leave before it. A task without a state gets the default."""
    runner = _runner(end)

    def leave(x: int) -> object:
        mwpy.checkpoint(None)
        mwpy.checkpoint(["one", x])
        return mwpy.restored(), mwpy.restored("nothing")

    _define(end, leave)
    _give(end, 3, 2, args=[6], attempt=4)
    runner.turn(0.0, 100)
    assert _states(end) == [(task, 4, state) for task in (3, 4) for state in (None, ["one", 6])]
    kinds = [type(message).__name__ for message, _ in end.sent]
    assert kinds == ["SlaveReady", "Checkpoint", "Checkpoint", "Results", "Checkpoint", "Checkpoint"]
    runner.flush()
    assert _results(end) == {3: (None, "nothing"), 4: (None, "nothing")}


@pytest.mark.parametrize("size", [10, 100_000])
def test_the_next_attempt_restores_the_state_and_only_this_one(end: _End, size: int) -> None:
    """A large state and large arguments travel out of band. During an attempt the state is one object."""
    runner = _runner(end, limit=1 << 20)
    state = bytearray(b"s" * size)

    def go_on(x: bytes) -> tuple[int, int, bool]:
        restored = mwpy.restored()
        return len(x), (0 if restored is None else len(restored)), mwpy.restored() is restored

    _define(end, go_on)
    end.recalls.append(lambda: end.arrive(messages.Revoked(7, [], [], [])))  # nothing is lost when the start is undone
    for _ in range(2):
        _give_again(end, 5, state, bytearray(b"a" * size))
    _give(end, 6, args=[b"abc"])
    runner.turn(0.0, 100)
    runner.flush()
    assert _results(end) == {5: (size, size, True), 6: (3, 0, True)}


def test_seeds_and_conditions_are_found_in_the_call_of_a_task_with_a_state(end: _End) -> None:
    runner = _runner(end)

    def draw(x: bytes) -> int:
        return mwpy.task_seed() + len(x)

    _define(end, draw)
    payload, _ = CODEC.dumps_call((b"abc",), {}, "f")
    call, own = span(5, MAX, 1, with_seed(payload, 70)).resumed(LeftState([b"\x01"], 1))
    end.arrive(messages.Tasks(7, [5], [1], [2], [1], [1]), [groups.payload(1, [call]), *own])
    runner.turn(0.0, 100)
    runner.flush()
    assert _results(end) == {5: 73}


def test_a_state_that_cannot_be_sent_is_an_error_of_the_task(end: _End) -> None:
    runner = _runner(end, limit=50)
    _define(end, lambda: mwpy.checkpoint("x" * 100), lambda: mwpy.checkpoint(x for x in "x"))
    for number in (1, 2):
        _give(end, number, number=number)
    runner.turn(0.0, 100)
    runner.flush()
    large, unpicklable = _results(end)[1], _results(end)[2]
    assert large[:2] == (
        "mwpy.UsageError",
        "the state is 102 bytes, the limit is 50 bytes (--mw-max-read-buffer-size): leave less, or write it to a file "
        "and leave the name, or raise the limit",
    )
    assert unpicklable[0] == "mwpy.ArgumentNotPicklable"
    assert unpicklable[1].startswith("the state, a generator, cannot be pickled (cannot pickle 'generator' object)")


def test_a_state_that_cannot_be_unpickled_is_an_error_of_the_task_that_names_it(end: _End) -> None:
    runner = _runner(end)
    _define(end, lambda _: mwpy.restored())
    call, own = span(5, MAX, 1, CODEC.dumps_call((1,), {}, "f")[0]).resumed(LeftState([encode(as_pickle(b"x"))], 1))
    end.arrive(messages.Tasks(7, [5], [1], [2], [1], [1]), [groups.payload(1, [call]), *own])
    runner.turn(0.0, 100)
    runner.flush()
    assert "the state that an earlier attempt left cannot be unpickled here" in _results(end)[5][2]


def test_only_the_thread_and_process_of_a_task_leave_states(end: _End) -> None:
    """Another thread may outlive the task. A fork has no channel."""
    runner = _runner(end)
    errors: list[str] = []

    def leave() -> None:
        try:
            mwpy.checkpoint(1)
        except mwpy.UsageError as error:
            errors.append(str(error))

    def task() -> None:
        other = threading.Thread(target=leave)
        other.start()
        other.join()
        end.forked = True
        leave()
        end.forked = False

    runner.get_ready()
    runner._algorithms.functions[1] = task
    _give(end, 1)
    runner.turn(0.0, 100)
    leave()
    assert _states(end) == []
    assert [error.split(":")[0] for error in errors] == [
        "mwpy.checkpoint() works only in a task, in the thread that runs the task",
        "mwpy.checkpoint() in a process that the task forked",
        "mwpy.checkpoint() works only in a task, in the thread that runs the task",
    ]
    with pytest.raises(mwpy.UsageError, match=r"mwpy\.restored\(\) works only in a task"):
        mwpy.restored()


def test_a_state_does_not_measure_the_memory_of_a_task_that_runs(end: _End, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is for the memory between two tasks."""
    monkeypatch.setattr(memory, "resident_bytes", lambda: 101)
    runner = TaskRunner(cast(SlaveEnd, end), 7, 100, 1000, max_memory_bytes=100)
    _define(end, lambda: mwpy.checkpoint(1))
    _give(end, 1, 2)
    runner.turn(0.0, 100)
    assert [type(message).__name__ for message, _ in end.sent[2:]] == ["Results", "Checkpoint"]


# ---- shared objects ------------------------------------------------------------------------------------------------


def _give_sharing(end: _End, first: int, handle: Shared) -> None:
    """A task that gets the maximum of a shared object."""
    call, _ = CODEC.dumps_call((handle,), {}, "f")
    group = messages.Tasks(7, [first], [1], [1], [1], shares=[handle.shared.share])
    end.arrive(group, [groups.payload(1, [call])])


def _missing(values: list[int]) -> tuple[Shared, Share]:
    """The handle of an object that this process does not know, and how its agent names it."""
    handle = shared_objects.share(values, CODEC)
    shared_objects.KNOWN.clear()
    return handle, handle.shared.share


def test_a_task_starts_when_its_shared_objects_are_here(end: _End) -> None:
    """Tasks before it run, and their results are sent. Tasks behind it wait, too, and can be taken back."""
    handle, share = _missing([3, 5])
    runner = _runner(end)
    _define(end, max)
    _give(end, 1, args=([1, 2],))
    _give_sharing(end, 2, handle)
    _give(end, 3, args=([8],))
    runner.turn(0.0, 10)
    runner.turn(0.0, 10)
    assert (_results(end), runner.num_waiting) == ({1: 2}, 2)
    end.arrive(messages.Revoked(7, [3], [1], [1]))
    runner.turn(0.0, 10)
    assert (runner.num_waiting, end.recalls_heard) == (1, 1)
    end.arrive(messages.ShareGiven(share))
    runner.turn(None, 10)
    runner.flush()
    assert _results(end) == {1: 2, 2: 5}
    assert end.started[-1] == 2


def test_a_task_without_its_shared_object_waits_as_long_as_it_may(end: _End) -> None:
    handle, _ = _missing([3, 6])
    runner = _runner(end)
    _define(end, max)
    _give_sharing(end, 1, handle)
    runner.turn(0.25, 10)
    assert (end.waits, end.started) == ([0.25], [])


def test_a_task_whose_shared_object_cannot_be_kept_fails(end: _End) -> None:
    handle, share = _missing([3, 7])
    runner = _runner(end)
    _define(end, max)
    _give_sharing(end, 1, handle)
    end.arrive(messages.ShareGiven(share, "it does not fit"))
    runner.turn(0.0, 10)
    runner.flush()
    assert _results(end)[1][:2] == ("mwpy.SharedObjectMissing", "it does not fit")


def test_a_slave_forgets_shared_objects(end: _End) -> None:
    handle, share = _missing([3, 8])
    runner = _runner(end)
    end.arrive(messages.ShareGiven(share))
    runner.get_ready()
    assert shared_objects.is_known(share.digest)
    end.arrive(messages.ShareForgotten(share.digest))
    end.arrive(messages.ShareForgotten("unknown"))
    runner.receive()
    assert not shared_objects.is_known(share.digest)
    del handle


def _log(number: int) -> int:
    logging.getLogger("mw_test").warning("task %d", number)
    return number


def test_a_record_of_a_task_is_sent_before_its_result(end: _End, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the journal keeps the result, which the agent may read at any time."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(logging, "captureWarnings", lambda _: None)
    runner = _runner(end)
    runner._logs._sends = Allowance(0, 0)
    _define(end, _log)
    end.arrive(messages.SlaveNamed(7, SlaveId("SLAVE-0"), {"": root.level}))
    for number in (1, 2):
        _give(end, number, args=(number,))
    runner.turn(0.0, 1)
    [(ready, _), (logged, _)] = end.sent
    assert isinstance(ready, messages.SlaveReady)
    assert isinstance(logged, messages.Logged)
    assert [(row.task, row.algorithm, row.text) for row in logged.rows] == [(1, "f1", "task 1")]
    assert end.journal.count == 1
    runner.turn(0.0, 1)
    runner.turn(0.0, 1)
    assert [type(message).__name__ for message, _ in end.sent] == [
        "SlaveReady",
        "Logged",
        "Logged",
        "PeakMemory",
        "Results",
    ]


# ---- results with large buffers ----


def _arrays(end: _End, *counts: int) -> TaskRunner:
    """Give tasks whose results have a large buffer, in groups of these sizes. Return a runner."""
    end.passes = True
    end.fed_at = 1000.0  # no result is due
    runner = _runner(end, 0, 1 << 20)
    _define(end, _array)
    first = 1
    for count in counts:
        _give(end, first, count)
        first += count
    return runner


def _array() -> np.ndarray:
    return np.zeros(1 << 14)


def _sent(end: _End) -> list[int]:
    """How many results were in each message."""
    return [sum(message.counts) for message, _ in end.sent if isinstance(message, messages.Results)]


def test_results_with_large_buffers_are_gathered_in_the_journal(end: _End) -> None:
    """Their buffers are passed at once."""
    end.has_message = True
    runner = _arrays(end, GATHERED + 2)
    runner.turn(0.0, GATHERED - 1)
    assert (len(end.passed), runner.num_unsent, _sent(end)) == (GATHERED - 1, GATHERED - 1, [])
    noted = end.journal.read(7)
    assert noted is not None
    assert (noted[0].buffers, noted[2]) == ([1] * (GATHERED - 1), [*range(1, GATHERED)])
    runner.turn(0.0, 100)
    assert (len(end.passed), runner.num_unsent, end.named) == (GATHERED + 2, 2, [[*range(1, GATHERED + 1)]])
    runner.turn(0.0, 100)
    assert end.named[1:] == [[GATHERED + 1, GATHERED + 2]]


def test_results_with_large_buffers_are_sent_while_as_many_tasks_remain(end: _End) -> None:
    """Then the next tasks arrive before these end. If another message is there already, this is not necessary."""
    runner = _arrays(end, 2, 2)
    runner.turn(0.0, 100)
    assert end.named == [[1, 2], [3], [4]]


def test_a_result_that_cannot_be_passed_ahead_is_sent_at_once(end: _End) -> None:
    runner = _arrays(end, 2)
    end.passes = False
    runner.turn(0.0, 100)
    assert (_sent(end), end.named) == ([1, 1], [])


def test_results_with_large_buffers_are_not_gathered_if_the_size_of_groups_is_fixed(end: _End) -> None:
    """Nobody would read the journal."""
    _arrays(end, 2)
    runner = _runner(end, 100, 1 << 20)
    runner.turn(0.0, 100)
    assert (_sent(end), end.passed) == ([1, 1], [])


def test_a_result_that_is_large_beside_its_buffers_is_sent_at_once(end: _End) -> None:
    runner = _arrays(end)
    _define(end, lambda: (_array(), "x" * GATHERED_BYTES))
    _give(end, 1, 2)
    runner.turn(0.0, 100)
    assert (_sent(end), end.passed) == ([1, 1], [])


def test_a_full_journal_is_sent_before_a_result_with_large_buffers_is_noted(end: _End) -> None:
    end.has_message = True
    runner = _arrays(end)
    _define(end, lambda: "x" * (PAYLOAD_BYTES - 10), _array)
    _give(end, 1)
    _give(end, 2, number=2)
    runner.turn(0.0, 100)
    assert (_sent(end), end.named) == ([1], [])
    assert runner.num_unsent == 1
