"""Results: which of them count, what the master learns from them, and which tasks a slave gives back."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.master_state import Books, kinds_of
from tests.spans import MIN, ids_of, portion

from mwpy._core.master.delays import Delays
from mwpy._core.master.handback import HandBack
from mwpy._core.master.kinds import SlaveKinds
from mwpy._core.master.members import ConnectedSlave
from mwpy._core.master.results import Results
from mwpy._core.master.totals import Totals
from mwpy._transport.codec import Codec
from mwpy._values import records
from mwpy._values.causes import Cause
from mwpy._values.errors import ProtocolError
from mwpy._values.groups import payload, spans_of
from mwpy._values.message_checks import check
from mwpy._values.messages import AlgorithmFailed, Revoked
from mwpy._values.messages import Results as Group
from mwpy._values.packed import ARGUMENTS, PackedCalls
from mwpy._values.policy import TaskPolicy
from mwpy._values.task import SlaveState

CODEC = Codec()


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.fixture
def slave(books: Books) -> ConnectedSlave:
    """A slave that holds the tasks 1 to 3 of one algorithm and 4 to 5 of another."""
    slave = books.slave()
    books.give(slave, 3)
    books.give(slave, 2, MIN)
    return slave


@pytest.fixture
def results(books: Books) -> Results:
    handback = HandBack(books.state)
    kinds, delays = SlaveKinds(books.state, handback), Delays(books.state, handback)
    return Results(books.state, kinds, handback, Totals(books.state), delays, books.hosts(), books.verification())


def receive(
    results: Results, slave: ConnectedSlave, spans: list[tuple[int, int, int]], seconds: float = 0.1, now: float = 0.0
) -> None:
    """Results of spans (first, count, attempt); each value is the task's id."""
    ids = [first + place for first, count, _ in spans for place in range(count)]
    firsts, counts, attempts = map(list, zip(*spans, strict=True))
    group = Group(1, firsts, counts, attempts, [seconds] * len(ids), [])
    results.receive(slave, group, [payload(len(ids), [bytes([number]) for number in ids])], now)


def given_out(books: Books) -> list[tuple[int, object, object]]:
    return [(result.task_id, result.value, result.tag) for result in books.state.actions.results]


def test_each_result_has_its_value_and_tag(books: Books, results: Results, slave: ConnectedSlave) -> None:
    """One span of a result group may belong to several spans of the master, with different algorithms."""
    receive(results, slave, [(1, 4, 1)], now=7.0)
    assert given_out(books) == [(1, 1, 1), (2, 2, 2), (3, 3, 3), (4, 4, 4)]
    assert [result.algorithm for result in books.state.actions.results] == ["max"] * 3 + ["min"]
    assert (ids_of(slave.held.spans), slave.last_heard) == ([5], 7.0)
    books.state.check()


def test_results_may_come_in_another_order_than_the_tasks_were_sent(
    books: Books, results: Results, slave: ConnectedSlave
) -> None:
    receive(results, slave, [(4, 1, 1), (2, 2, 1)])
    assert sorted(given_out(books)) == [(2, 2, 2), (3, 3, 3), (4, 4, 4)]
    assert ids_of(slave.held.spans) == [1, 5]


@pytest.mark.parametrize(
    "spans", [[(1, 1, 2)], [(9, 3, 1)], [(1, 1, 0)]], ids=["another attempt", "not held", "an older attempt"]
)
def test_a_result_that_does_not_count_changes_nothing(
    books: Books, results: Results, slave: ConnectedSlave, spans: list[tuple[int, int, int]]
) -> None:
    books.taken()
    receive(results, slave, spans)
    assert books.taken() == []
    assert ids_of(slave.held.spans) == [1, 2, 3, 4, 5]


def test_the_record_has_only_the_results_that_count(books: Books, results: Results, slave: ConnectedSlave) -> None:
    """A task that is named twice counts once."""
    receive(results, slave, [(1, 1, 1), (1, 2, 1), (3, 1, 9)])
    [record] = [each for each in books.taken() if isinstance(each, records.ResultsReceived)]
    assert (record.results.tasks, record.results.counts) == ([1], [2])
    assert list(record.frames) == [payload(2, [b"\1", b"\2"])]


def test_a_slave_without_tasks_is_idle(books: Books, results: Results, slave: ConnectedSlave) -> None:
    receive(results, slave, [(1, 5, 1)])
    assert slave.state is SlaveState.IDLE
    assert kinds_of(books.taken())[-2:] == ["ResultsReceived", "SlaveChanged"]


def test_compute_times_teach_the_pace_of_each_algorithm(books: Books, results: Results, slave: ConnectedSlave) -> None:
    receive(results, slave, [(1, 2, 1)], seconds=0.5)
    assert slave.pace == pytest.approx({0: 0.500005})
    receive(results, slave, [(3, 2, 1)], seconds=1.5)
    assert slave.pace == pytest.approx({0: 0.800005, 1: 1.500005})
    assert books.state.members.pace == slave.pace


@pytest.fixture
def runner(books: Books) -> ConnectedSlave:
    """A slave that holds the tasks 1 to 4 of a portion, and the tasks 5 and 6."""
    slave = books.slave()
    calls = PackedCalls.of(ARGUMENTS, [7] * 4)
    books.state.record(records.TasksSubmitted([portion(1, calls).facts()]), [("tag",) * 4])
    books.tasks = 4
    books.send(slave, 4)
    books.give(slave, 2)
    return slave


def test_plain_values_of_a_portion_are_given_out_together(
    books: Books, results: Results, runner: ConnectedSlave
) -> None:
    """Tasks of no portion have a result each. If only the sum of the times is known, each has its share."""
    group = Group(1, [2], [4], [1], [2.0], [], plain=True)
    check(group, [payload(4, [b"\7"] * 4)])
    results.receive(runner, group, [payload(4, [b"\7"] * 4)], 0.0)
    [stretch] = books.state.actions.stretches
    assert (stretch.first, stretch.values, stretch.tag, stretch.seconds) == (2, [7] * 3, "tag", [1.5])
    assert [(each.tag, each.compute_seconds, each.value) for each in stretch.results("abc")] == [
        ("a", 0.5, 7),
        ("b", 0.5, 7),
        ("c", 0.5, 7),
    ]
    [result] = books.state.actions.results
    assert (result.task_id, result.value, result.compute_seconds) == (5, 7, 0.5)
    [row] = results.totals.rows.values()
    assert (row.tasks, row.seconds, row.longest_s) == (4, 2.0, 0.5)
    assert runner.pace == {0: pytest.approx(0.5000005)}
    assert ids_of(runner.held.spans) == [1, 6]
    books.state.check()


def test_pickled_values_of_a_portion_are_given_out_together(
    books: Books, results: Results, runner: ConnectedSlave
) -> None:
    """If there is no failure among them."""
    values = [Codec().dumps_value(value)[0] for value in ((1, 2), 7, {3})]
    results.receive(runner, Group(1, [2], [3], [1], [1.5], []), [payload(3, values)], 0.0)
    [stretch] = books.state.actions.stretches
    assert not stretch.plain
    assert [stretch.value_at(place, "abc") for place in range(3)] == [(1, 2), 7, {3}]
    assert [result.value for result in stretch.results("abc")] == [(1, 2), 7, {3}]


def test_values_that_were_timed_one_by_one_keep_their_times(
    books: Books, results: Results, runner: ConnectedSlave
) -> None:
    group = Group(1, [1], [2], [1], [0.5, 1.0], [], plain=True)
    results.receive(runner, group, [payload(2, [b"\7"] * 2)], 0.0)
    [stretch] = books.state.actions.stretches
    assert [each.compute_seconds for each in stretch.results("ab")] == [0.5, 1.0]
    assert stretch.count == 2


def test_a_failure_in_a_stretch_is_a_result_with_its_call(
    books: Books, results: Results, runner: ConnectedSlave
) -> None:
    group = Group(1, [1], [3], [1], [0.3], [1])
    frames = [payload(3, [b"\7", CODEC.dumps_failure(ValueError("wrong")), b"\7"])]
    check(group, frames)
    results.receive(runner, group, frames, 0.0)
    assert not books.state.actions.stretches
    assert [(result.task_id, result.ok) for result in books.state.actions.results] == [(1, True), (2, False), (3, True)]
    [call] = books.state.actions.failed
    assert (call.task_id, call.payload) == (2, b"\x91\7")
    [algorithm] = {span.algorithm for span in runner.held.spans}
    assert algorithm.succeeded == 2
    assert algorithm.succeeded_s == pytest.approx(0.2)


def test_late_tasks_are_pending_again(books: Books, results: Results, runner: ConnectedSlave) -> None:
    """The slave may still be asked to give unstarted tasks back."""
    runner.asked_back = True
    results.take_back(runner, Revoked(1, [1], [2], [1], late=True))
    assert runner.asked_back
    [queue] = books.state.jar.pending.queues.values()
    assert [(span.first, span.count, span.payloads[0]) for span in queue] == [(1, 2, b"\x91\7")]
    assert runner.sid not in books.state.members.hungry
    books.state.check()


def test_measured_peaks_are_counted_for_the_algorithm_of_their_task(
    books: Books, results: Results, slave: ConnectedSlave
) -> None:
    """The results of a group may come in any order."""
    group = Group(1, [3, 1], [2, 2], [1, 1], [0.1] * 4, [], peaks=[(1, 500), (2, 700), (3, 600)])
    check(group, [payload(4, [b"\7"] * 4)])
    results.receive(slave, group, [payload(4, [b"\7"] * 4)], 0.0)
    used = {algorithm: row.memory_used for (algorithm, _), row in results.totals.rows.items()}
    assert used == {"max": 700, "min": 500}


def test_a_failure_must_have_a_description(books: Books, results: Results, slave: ConnectedSlave) -> None:
    group = Group(1, [1], [1], [1], [0.1], [0])
    with pytest.raises(ProtocolError, match="a failure without a description"):
        results.receive(slave, group, [payload(1, [b"\7"])], 0.0)
    value, _ = Codec().dumps_value([1])
    with pytest.raises(ProtocolError, match="a failure without a description"):
        results.receive(slave, group, [payload(1, [value])], 0.0)
    results.receive(slave, group, [payload(1, [Codec().dumps_failure(ValueError("wrong"))])], 0.0)
    [result] = books.state.actions.results
    assert result.error is not None
    assert result.error.text == "wrong"


def raise_error(
    results: Results, slave: ConnectedSlave, tasks: dict[int, str], again: list[int], attempt: int = 1
) -> None:
    """Tasks end in the same attempt: with the exceptions of these texts, or with values where the text is empty."""
    values = [CODEC.dumps_failure(OSError(text)) if text else b"\7" for text in tasks.values()]
    failed = [place for place, text in enumerate(tasks.values()) if text]
    group = Group(1, *spans_of([*tasks], [attempt] * len(tasks)), [0.1] * len(tasks), failed, again=again)
    check(group, [payload(len(values), values)])
    results.receive(slave, group, [payload(len(values), values)], 0.0)
    results.state.check()


def errors_of(books: Books) -> list[tuple[int, str]]:
    """The tasks that ended, and the texts of their exceptions; empty for a value."""
    return [(each.task_id, "" if each.error is None else each.error.text) for each in books.state.actions.results]


RETRIES = TaskPolicy(retries_errors=True)


def test_a_task_is_tried_again_after_an_exception_and_charged(books: Books, results: Results) -> None:
    """It goes to the tail of its queue. When its attempts are used up, it has failed with its last exception."""
    slave = books.slave()
    books.submit(3, policy=RETRIES)
    books.send(slave, 2)
    raise_error(results, slave, {1: "busy", 2: ""}, [0])
    assert (ids_of(books.state.jar.pending.queues[0]), errors_of(books)) == ([3, 1], [(2, "")])
    books.send(slave, 2)
    raise_error(results, slave, {1: "still busy"}, [0], attempt=2)
    [queue] = books.state.jar.pending.queues.values()
    assert [str(death) for death in queue[-1].deaths] == [
        "attempt 1 on SLAVE-0: error: OSError: busy",
        "attempt 2 on SLAVE-0: error: OSError: still busy",
    ]
    books.send(slave, 1)
    raise_error(results, slave, {1: "full"}, [0], attempt=3)
    assert errors_of(books) == [(2, ""), (1, "full")]
    [total] = results.totals.rows.values()
    assert (total.tasks, total.failed, total.lost, total.lost_s) == (2, 1, {Cause.ERROR: 2}, 0.2)
    assert [call.task_id for call in books.state.actions.failed] == [1]
    assert books.state.actions.unrunnable == []


def test_tasks_with_the_same_exception_and_pause_come_back_in_one_record(books: Books, results: Results) -> None:
    slave = books.slave()
    books.submit(3, policy=RETRIES)
    books.submit(1, policy=replace(RETRIES, after=1.0))
    books.send(slave, 4)
    books.taken()
    raise_error(results, slave, {1: "a", 2: "b", 3: "a", 4: "a"}, [0, 1, 2, 3])
    returned = [record for record in books.taken() if isinstance(record, records.TasksReturned)]
    assert [([each.first for each in record.tasks], record.pause_s) for record in returned] == [
        ([1, 3], 0.0),
        ([2], 0.0),
        ([4], 1.0),
    ]
    assert returned[1].reason == "it raised OSError: b"
    assert returned[1].charges == (records.Charge(slave.sid, Cause.ERROR, "OSError: b"),)


@pytest.mark.parametrize("policy", [TaskPolicy(), TaskPolicy(retries_errors=True, attempts_max=1)])
def test_a_task_without_another_attempt_has_failed(books: Books, results: Results, policy: TaskPolicy) -> None:
    """This holds even if a slave says that a task is tried again whose policy does not allow it."""
    slave = books.slave()
    books.submit(1, policy=policy)
    books.send(slave, 1)
    raise_error(results, slave, {1: "busy"}, [0])
    assert errors_of(books) == [(1, "busy")]


def test_a_cancelled_task_that_may_finish_is_not_tried_again(books: Books, results: Results) -> None:
    slave = books.slave()
    books.submit(2, policy=RETRIES)
    books.send(slave, 2)
    books.state.record(records.TasksCancelling(slave.sid, [slave.held.spans[0].part(1, 1, 1)]))
    raise_error(results, slave, {1: "busy", 2: "busy"}, [0, 1])
    assert (errors_of(books), ids_of(books.state.jar.pending.queues[0])) == ([(1, "busy")], [2])


def test_results_that_do_not_count_are_not_tried_again(books: Books, results: Results) -> None:
    slave = books.slave()
    books.submit(3, policy=RETRIES)
    books.send(slave, 3)
    raise_error(results, slave, {9: "busy", 2: "busy", 3: "busy"}, [0, 1])
    assert (errors_of(books), ids_of(books.state.jar.pending.queues[0])) == ([(3, "busy")], [2])
    assert ids_of(slave.held.spans) == [1]
    assert slave.state is SlaveState.BUSY


def test_unstarted_tasks_are_pending_again(books: Books, results: Results, slave: ConnectedSlave) -> None:
    slave.asked_back = True
    results.take_back(slave, Revoked(1, [3, 9], [2, 1], [1, 1]))
    assert (ids_of(slave.held.spans), slave.asked_back, slave.gave_nothing_back) == ([1, 2, 5], False, False)
    assert {number: ids_of(queue) for number, queue in books.state.jar.pending.queues.items()} == {0: [3], 1: [4]}


def test_a_slave_that_gives_nothing_back_is_not_asked_again_at_once(
    books: Books, results: Results, slave: ConnectedSlave
) -> None:
    results.take_back(slave, Revoked(1, [], [], []))
    assert slave.gave_nothing_back
    receive(results, slave, [(1, 1, 1)])
    assert not slave.gave_nothing_back


def test_tasks_that_a_slave_cannot_run_are_pending_again(books: Books, results: Results, slave: ConnectedSlave) -> None:
    books.taken()
    results.refuse(slave, AlgorithmFailed(1, 1, "no module", [4], [2], [1]))
    [returned] = [each for each in books.taken() if isinstance(each, records.TasksReturned)]
    assert (returned.reason, ids_of(slave.held.spans)) == ("its slave cannot run it", [1, 2, 3])


def test_a_slave_that_is_asked_again_too_soon_fails_the_check(results: Results, slave: ConnectedSlave) -> None:
    results.check()
    slave.asked_back = slave.gave_nothing_back = True
    with pytest.raises(AssertionError, match="SLAVE-0 was asked again too soon"):
        results.check()


def test_a_slave_that_gave_tasks_back_gets_no_more_until_its_next_result(
    books: Books, results: Results, slave: ConnectedSlave
) -> None:
    """Else the tasks that were taken back for idle slaves would return to it."""
    results.take_back(slave, Revoked(1, [5], [1], [1]))
    assert slave.sid not in books.state.members.hungry
    receive(results, slave, [(1, 1, 1)])
    assert slave.sid in books.state.members.hungry
