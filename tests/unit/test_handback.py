"""Hand-back: tasks that end without a result."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.master_state import Books, sid
from tests.spans import MAX, ids_of, span

from mwpy._core.master.handback import HandBack
from mwpy._values import records
from mwpy._values.policy import TaskPolicy


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.fixture
def handback(books: Books) -> HandBack:
    books.state.settings = replace(books.state.settings, max_call_bytes=10)
    return HandBack(books.state)


def test_too_large_tasks_fail_and_the_others_stay(books: Books, handback: HandBack) -> None:
    """A span is divided only if one of its tasks is too large; buffers count too."""
    small, large = span(1, MAX, 2), span(3, MAX, 2, b"123456", buffers=[b"12345"])
    large.payloads = b"x", b"123456"
    assert ids_of(handback.small_enough([small, large])) == [1, 2, 3]
    [failed] = books.state.actions.results
    assert failed.task_id == 4
    assert failed.error is not None
    assert failed.error.text.startswith("its arguments are 11 bytes, the limit is 10 bytes")


def test_an_unrunnable_task_comes_back_with_its_tag_and_arguments(books: Books, handback: HandBack) -> None:
    slave = books.slave()
    books.submit(2, policy=TaskPolicy(slave.sid))
    waiting = books.state.jar.pending.addressed[slave.sid][0]
    handback.give_up(slave.sid, [waiting.part(1, 1, 0)], "why", held=False)
    [unrunnable] = books.state.actions.unrunnable
    assert (unrunnable.task_id, unrunnable.tag, unrunnable.sid, unrunnable.reason) == (1, 1, slave.sid, "why")
    assert ids_of(books.state.jar.pending.addressed[slave.sid]) == [2]


def test_addressed_tasks_are_released_as_their_policy_says(books: Books, handback: HandBack) -> None:
    slave = books.slave()
    books.submit(1, policy=TaskPolicy(slave.sid))
    books.submit(1, policy=TaskPolicy(slave.sid, do_it_anyway=True))
    books.submit(1, policy=TaskPolicy(slave.sid))
    handback.release_addressed(slave.sid, "is gone")
    assert [task.task_id for task in books.state.actions.unrunnable] == [1, 3]
    assert ids_of(books.state.jar.pending.queues[0]) == [2]
    assert [task.reason for task in books.state.actions.unrunnable] == [
        "SLAVE-0, to which it was addressed, is gone"
    ] * 2
    books.state.check()


def test_tasks_can_be_addressed_to_a_slave_that_never_was(books: Books, handback: HandBack) -> None:
    books.submit(1, policy=TaskPolicy(sid(9)))
    handback.release_addressed(sid(9), "is gone or never was")
    given_up = [record for record in books.taken() if isinstance(record, records.TasksGivenUp)]
    assert [(each.sid, each.held) for each in given_up] == [(sid(9), False)]


def test_a_task_that_should_have_ended_fails_the_check(books: Books, handback: HandBack) -> None:
    """It is too large, or it waits for a slave that is gone."""
    books.submit(1)
    handback.check()
    books.submit(1, policy=TaskPolicy(sid(9)))
    with pytest.raises(AssertionError, match="tasks wait for SLAVE-9, which is gone"):
        handback.check()
    books.submit(1, payload=b"x" * 11)
    with pytest.raises(AssertionError, match="more than 10 bytes"):
        handback.check()
