"""The taskjar: records move tasks between its queues and the slaves, and nothing else does."""

from __future__ import annotations

import pytest
from tests.master_state import Books, sid
from tests.spans import MAX, MIN, ids_of

from mwpy._core.master.pending import MAX_SPAN
from mwpy._values import records
from mwpy._values.causes import Cause
from mwpy._values.errors import InternalError
from mwpy._values.groups import payload
from mwpy._values.last_words import NO_WORDS, LastWords
from mwpy._values.messages import Results
from mwpy._values.policy import TaskPolicy
from mwpy._values.records import Charge, TaskRange
from mwpy._values.task import TaskState


@pytest.fixture
def books() -> Books:
    return Books()


def results(first: int, count: int, attempt: int = 1) -> records.ResultsReceived:
    group = Results(1, [first], [count], [attempt], [0.1] * count, [])
    return records.ResultsReceived(sid(0), group, [payload(count, [b"\0"] * count)])


def waiting(books: Books, algorithm: int = 0) -> list[int]:
    return ids_of(books.state.jar.pending.queues.get(algorithm, ()))


def test_submitted_tasks_wait_by_algorithm_in_the_order_of_submission(books: Books) -> None:
    """A span is extended by the next one until it is long."""
    books.submit(2)
    books.submit(1, MIN)
    books.submit(MAX_SPAN)
    books.submit(1)
    jar = books.state.jar
    assert [span.count for span in jar.pending.queues[0]] == [2, MAX_SPAN, 1]
    assert (waiting(books, 1), jar.pending.counts, jar.runnable) == ([3], {0: MAX_SPAN + 3, 1: 1}, MAX_SPAN + 4)


def test_the_head_of_a_queue_is_chosen_by_number_and_size(books: Books) -> None:
    """At least one task is chosen. The choice changes nothing."""
    books.submit(4, payload=b"12345")
    books.submit(1, payload=b"large" * 100)
    jar = books.state.jar
    queue = jar.pending.queues[0]
    assert jar.pending.heads(queue, 3, 1000) == [TaskRange(1, 3, 1, 0, "max")]
    assert jar.pending.heads(queue, 100, 12) == [TaskRange(1, 2, 1, 0, "max")]
    assert jar.pending.heads(queue, 100, 1) == [TaskRange(1, 1, 1, 0, "max")]
    assert sum(each.count for each in jar.pending.heads(queue, 100, 1000)) == 5
    assert waiting(books) == [1, 2, 3, 4, 5]


def test_a_choice_ends_before_a_span_that_does_not_fit(books: Books) -> None:
    books.submit(2, payload=b"12345")
    books.submit(1, payload=b"x" * 50, policy=TaskPolicy(retry=False))
    pending = books.state.jar.pending
    assert pending.heads(pending.queues[0], 10, 20) == [TaskRange(1, 2, 1, 0, "max")]


def test_a_choice_ends_before_an_algorithm_that_the_slave_refuses(books: Books) -> None:
    slave = books.slave()
    policy = TaskPolicy(slave.sid)
    for algorithm in (MAX, MAX, MIN, MAX):
        books.submit(1, algorithm, policy=policy)
    queue = books.state.jar.pending.addressed[slave.sid]
    assert sum(each.count for each in books.state.jar.pending.heads(queue, 10, 1000, {1: "cannot"})) == 2


def test_allocated_tasks_are_at_their_slave_in_a_new_attempt(books: Books) -> None:
    slave = books.slave()
    books.submit(3)
    books.send(slave, 2)
    [span] = slave.held.spans
    assert (span.first, span.count, span.attempt, span.sid, span.state) == (1, 2, 1, sid(0), TaskState.ALLOCATED)
    assert (waiting(books), dict(slave.held.load), books.state.jar.num_allocated) == ([3], {0: 2}, 2)


def test_finished_tasks_leave_the_jar_with_their_tags(books: Books) -> None:
    """The caller of `apply` gets the spans, so that the results can be given out."""
    slave = books.slave()
    books.give(slave, 3)
    [span] = books.state.record(results(2, 1))
    assert (span.tags, span.state) == ((2,), TaskState.FINISHED)
    assert (ids_of(slave.held.spans), books.state.jar.runnable) == ([1, 3], 2)


def test_returned_tasks_go_to_the_head_and_charged_ones_to_the_tail(books: Books) -> None:
    slave = books.slave()
    books.submit(5)
    books.send(slave, 3)
    returned = TaskRange(3, 1, 1, 0, "max")
    books.state.record(records.TasksReturned(slave.sid, [returned], "why"))
    assert waiting(books) == [3, 4, 5]
    books.state.record(records.SlaveEnded(slave.sid, Cause.CRASH, "it died", "", LastWords("out")))
    charged, rest = TaskRange(1, 1, 1, 0, "max"), TaskRange(2, 1, 1, 0, "max")
    charge = Charge(slave.sid, Cause.CRASH, "it died")
    books.state.record(records.TasksReturned(slave.sid, [charged], "why", (charge,)))
    books.state.record(records.TasksReturned(slave.sid, [rest], "why"))
    assert waiting(books) == [2, 3, 4, 5, 1]
    [death] = books.state.jar.pending.queues[0][-1].deaths
    assert (death.sid, death.attempt, death.reason, death.words.stdout) == (sid(0), 1, "it died", "out")


def test_tasks_that_come_back_from_several_slaves_are_in_the_order_of_their_ids(books: Books) -> None:
    """The slaves give them back one after the other. Those that killed a slave stay at the tail."""
    slaves = [books.slave() for _ in range(3)]
    killer = books.submit(1)
    books.send(slaves[0], 1)
    books.state.record(records.SlaveEnded(slaves[0].sid, Cause.CRASH, "it died", "", NO_WORDS))
    charge = Charge(slaves[0].sid, Cause.CRASH, "it died")
    books.state.record(records.TasksReturned(slaves[0].sid, [TaskRange(1, 1, 1, 0, "max")], "why", (charge,)))
    books.submit(6)
    books.state.jar.pending.queues[0].rotate(-1)
    for slave, count in ((slaves[1], 2), (slaves[2], 3)):
        books.send(slave, count)
    for slave, first, count in ((slaves[1], 2, 2), (slaves[2], 4, 3)):
        books.state.record(records.TasksReturned(slave.sid, [TaskRange(first, count, 1, 0, "max")], "why"))
    assert waiting(books) == [2, 3, 4, 5, 6, 7, *killer]


def test_unaddressed_tasks_wait_for_any_slave(books: Books) -> None:
    slave = books.slave()
    first, _ = books.submit(2, policy=TaskPolicy(slave.sid, do_it_anyway=True))
    assert books.state.jar.pending.num_unaddressed == 0
    named = TaskRange(first, 2, 0, 0, "max")
    books.state.record(records.TasksUnaddressed(slave.sid, [named]))
    assert (waiting(books), books.state.jar.pending.addressed) == ([1, 2], {})
    assert books.state.jar.pending.queues[0][0].policy == TaskPolicy(do_it_anyway=True)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (results(1, 1, attempt=2), "does not hold them"),
        (results(2, 5), "does not hold them"),
        (records.TasksAllocated(sid(0), [TaskRange(5, 1, 1, 0, "max")]), "not at the head of the queue"),
        (records.TasksAllocated(sid(0), [TaskRange(4, 9, 1, 0, "max")]), "not at the head of the queue"),
        (records.TasksAllocated(sid(0), [TaskRange(4, 1, 1, 1, "min")]), "not at the head of the queue"),
        (records.TasksGivenUp(sid(0), True, [TaskRange(4, 1, 1, 0, "max")], "why"), "does not hold them"),
        (records.TasksCancelled(None, [TaskRange(3, 2, 1, 0, "max")], "why"), "not where the record says"),
        (records.TasksCancelled(None, [TaskRange(9, 1, 1, 1, "min")], "why"), "not where the record says"),
        (records.TasksCancelled(sid(0), [TaskRange(3, 2, 1, 0, "max")], "why"), "does not hold them"),
        (records.TasksCancelling(sid(0), [TaskRange(3, 2, 1, 0, "max")]), "not where the record says"),
    ],
)
def test_a_record_that_contradicts_the_tasks_is_an_internal_error(
    books: Books, record: records.Record, message: str
) -> None:
    """Tasks 1 to 3 are at the slave, in their first attempt; 4 and 5 are pending."""
    slave = books.slave()
    books.submit(5)
    books.send(slave, 3)
    with pytest.raises(InternalError, match=message):
        books.state.record(record)


def test_a_task_cannot_finish_while_it_is_pending(books: Books) -> None:
    """The message names the task, its state and its history."""
    slave = books.slave()
    books.give(slave, 1)
    slave.held.spans[0].state = TaskState.PENDING
    with pytest.raises(InternalError, match=r"task 1 \(max\): PENDING \(attempt 1 on SLAVE-0\), which cannot finish"):
        books.state.record(results(1, 1))


def test_a_miscounted_jar_fails_its_check(books: Books) -> None:
    books.submit(2)
    books.state.jar.check()
    books.state.jar.pending.num_queued[0] += 1
    with pytest.raises(AssertionError, match="miscounted"):
        books.state.jar.check()
