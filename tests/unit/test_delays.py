"""Delays: when the pauses of tasks end, and what happens to delayed tasks before."""

from __future__ import annotations

import pytest
from tests.master_state import Books, kinds_of
from tests.spans import ids_of

from mwpy._core.master.delays import OUTDATED_ALLOWED, Delays
from mwpy._core.master.handback import HandBack
from mwpy._core.master.members import SlaveEvent
from mwpy._core.master.spans import PAUSE_MAX_S
from mwpy._values import records
from mwpy._values.causes import Cause
from mwpy._values.errors import InternalError
from mwpy._values.ids import SlaveId
from mwpy._values.last_words import NO_WORDS
from mwpy._values.policy import TaskPolicy
from mwpy._values.records import Charge, TaskRange
from mwpy._values.task import SlaveKind, TaskState


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.fixture
def delays(books: Books) -> Delays:
    return Delays(books.state, HandBack(books.state))


def delay(
    books: Books, delays: Delays, pause_s: float, now: float, count: int = 1, policy: TaskPolicy | None = None
) -> None:
    """Send new tasks to a slave, and return them for later."""
    slave = books.slave() if policy is None or policy.sid is None else books.state.members.slaves[policy.sid]
    books.submit(count, policy=policy or TaskPolicy(after=pause_s))
    books.send(slave, count)
    charge = Charge(slave.sid, Cause.CRASH, "killed")
    delays.give_back(slave.sid, [span.whole for span in slave.held.spans], "it died", (charge,), pause_s)
    books.state.change(slave, SlaveEvent.DRAIN)
    delays.check()
    delays.decide(now)
    delays.check()


def end(books: Books, slave: SlaveId) -> None:
    """A slave ends."""
    books.state.record(records.SlaveEnded(slave, Cause.CRASH, "killed", "", NO_WORDS))


def delayed(books: Books) -> list[int]:
    books.state.check()
    return list(books.state.jar.delayed.tasks)


def test_pauses_end_in_their_order(books: Books, delays: Delays) -> None:
    delay(books, delays, 20.0, 100.0)
    delay(books, delays, 10.0, 100.0, count=2)
    assert (delayed(books), delays.deadline) == ([1, 2, 3], 110.0)
    delays.decide(109.9)
    assert delayed(books) == [1, 2, 3]
    delays.decide(110.0)
    assert (delayed(books), delays.deadline) == ([1], 120.0)
    delays.decide(500.0)
    assert (delayed(books), delays.deadline) == ([], None)
    assert ids_of(books.state.jar.pending.queues[0]) == [2, 3, 1]
    assert {span.state for span in books.state.jar.spans()} == {TaskState.PENDING}
    delays.check()


def test_delayed_tasks_are_runnable_and_not_pending(books: Books, delays: Delays) -> None:
    books.submit(1)
    delay(books, delays, 1.0, 0.0, count=2)
    jar = books.state.jar
    assert (jar.runnable, jar.pending.count, jar.num_allocated) == (3, 1, 0)


def test_a_task_that_is_returned_without_a_pause_is_pending_at_once(books: Books, delays: Delays) -> None:
    delay(books, delays, 0.0, 0.0)
    assert (delayed(books), delays.deadline, books.state.jar.pending.count) == ([], None, 1)


def test_the_pause_doubles_up_to_an_hour(books: Books) -> None:
    """With a longer `after`, it does not grow. The number of attempts has no limit."""
    pauses: dict[float, list[float]] = {}
    for after in (0.0, 1000.0, 7200.0):
        slave = books.slave()
        books.submit(1, policy=TaskPolicy(after=after, attempts_max=5000))
        pauses[after] = []
        for attempt in range(4):
            books.send(slave, 1)
            [span] = slave.held.spans
            pauses[after].append(span.next_pause_s)
            span.deaths *= 1000 if attempt == 3 else 1
            charge = Charge(slave.sid, Cause.CRASH, "killed")
            books.state.record(records.TasksReturned(slave.sid, [span.whole], "", (charge,)))
        books.send(slave, 1)
        pauses[after].append(slave.held.spans[0].next_pause_s)
    assert pauses == {
        0.0: [0.0] * 5,
        1000.0: [1000.0, 2000.0, PAUSE_MAX_S, PAUSE_MAX_S, PAUSE_MAX_S],
        7200.0: [7200.0] * 5,
    }


def test_an_eviction_causes_no_longer_pause(books: Books) -> None:
    slave = books.slave()
    books.submit(1, policy=TaskPolicy(after=1.0))
    for cause in (Cause.EVICTED, Cause.CRASH):
        books.send(slave, 1)
        charge = Charge(slave.sid, cause, "gone")
        books.state.record(records.TasksReturned(slave.sid, [slave.held.spans[0].whole], "", (charge,)))
    books.send(slave, 1)
    assert slave.held.spans[0].next_pause_s == 2.0


def test_the_end_of_the_pause_of_a_cancelled_task_is_forgotten(books: Books, delays: Delays) -> None:
    delay(books, delays, 10.0, 0.0, count=3)
    delay(books, delays, 20.0, 0.0)
    HandBack(books.state).cancel(None, [TaskRange(1, 3, 1, 0, "max")], "in the pause before its next attempt")
    assert (delayed(books), delays.deadline) == ([4], 20.0)
    delays.decide(10.0)
    assert delayed(books) == [4]
    assert len(books.state.actions.results) == 3


def test_many_outdated_ends_are_dropped(books: Books, delays: Delays) -> None:
    count = OUTDATED_ALLOWED + 2
    delay(books, delays, 20.0, 0.0, count=count)
    HandBack(books.state).cancel(None, [TaskRange(1, count, 1, 0, "max")], "in its pause", discard=True)
    delay(books, delays, 10.0, 0.0)
    assert len(delays._ends) == 1
    assert delays.deadline == 10.0


def test_delayed_tasks_are_handed_back_when_the_slave_is_gone_to_which_they_are_addressed(
    books: Books, delays: Delays
) -> None:
    """A task that may run elsewhere stays delayed, and then any slave may run it."""
    slave = books.slave(SlaveKind.ORDERED)
    for anyway in (False, True, False):
        delay(books, delays, 10.0, 0.0, policy=TaskPolicy(slave.sid, do_it_anyway=anyway))
    end(books, slave.sid)
    HandBack(books.state).release_addressed(slave.sid, "is gone")
    assert delayed(books) == [2]
    reason = "SLAVE-0, to which it was addressed, is gone"
    assert [(task.task_id, task.reason) for task in books.state.actions.unrunnable] == [(1, reason), (3, reason)]
    books.taken()
    delays.decide(10.0)
    assert kinds_of(books.taken()) == ["TasksDue", "TasksUnaddressed"]
    assert ids_of(books.state.jar.pending.queues[0]) == [2]
    assert not books.state.jar.delayed.addressed


def test_a_task_that_is_due_goes_to_the_slave_to_which_it_is_addressed(books: Books, delays: Delays) -> None:
    slave = books.slave(SlaveKind.ORDERED)
    delay(books, delays, 10.0, 0.0, policy=TaskPolicy(slave.sid))
    delays.decide(10.0)
    assert ids_of(books.state.jar.pending.addressed[slave.sid]) == [1]


def test_a_task_that_is_not_delayed_cannot_be_due(books: Books) -> None:
    books.submit(1)
    with pytest.raises(InternalError, match="task 1 is not delayed"):
        books.state.record(records.TasksDue([TaskRange(1, 1, 0, 0, "max")]))
