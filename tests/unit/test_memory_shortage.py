"""How much memory a task may use after it was killed because its job was short of memory."""

from __future__ import annotations

import pytest
from tests.master_state import Books

from mwpy._values import messages
from mwpy._values.causes import BLAMELESS_ALLOWED, Cause
from mwpy._values.last_words import NO_WORDS
from mwpy._values.policy import Limits, TaskPolicy

LARGE = TaskPolicy(memory_max=1000, seconds_max=2.5, after=5.0, attempts_max=1)


@pytest.fixture
def books() -> Books:
    return Books()


def dispatched(books: Books) -> messages.Tasks:
    """Send the pending tasks."""
    books.core.dispatch.decide(0.0)
    books.state.check()
    return [each.message for each in books.state.take_actions().sends if isinstance(each.message, messages.Tasks)][-1]


def dies(books: Books, allowed: int, cause: Cause = Cause.OUT_OF_MEMORY) -> None:
    """The slave of the last task that was sent dies because its job is short of memory."""
    [slave] = books.state.members.slaves.values()
    books.core.losses.slave_died(
        slave.agent, messages.SlaveDied(slave.number, 1, cause, "why", NO_WORDS, allowed=allowed)
    )
    books.state.check()


def test_a_task_that_lost_its_memory_to_others_is_tried_again_with_more(books: Books) -> None:
    """It may use twice as much, up to its limit. It does not pause, is not charged, and comes first."""
    books.slave()
    books.submit(1, policy=LARGE)
    assert dispatched(books).limits == [Limits(2.5, 1000, None)]
    for allowed, more in ((300, 600), (600, 1000), (1000, 1000)):
        dies(books, allowed)
        [[task]] = books.state.jar.pending.queues.values()
        assert (task.charged, task.deaths[-1].more_memory) == (0, more)
        books.slave()
        assert dispatched(books).limits == [Limits(2.5, 1000, more)]
    dies(books, 0)
    assert [task.task_id for task in books.state.take_actions().unrunnable] == [1], "it is charged at last"


def test_the_number_of_such_losses_is_limited(books: Books) -> None:
    books.submit(1, policy=LARGE)
    for number in range(BLAMELESS_ALLOWED):
        assert not books.state.actions.unrunnable, f"given up after {number} losses"
        books.slave()
        dispatched(books)
        dies(books, 300)
    [given_up] = books.state.take_actions().unrunnable
    assert f"it was lost {BLAMELESS_ALLOWED} times without its fault" in given_up.reason


def test_only_a_task_with_a_limit_that_ran_out_of_memory_gets_more() -> None:
    """An agent may say anything."""
    for policy, cause in ((LARGE, Cause.CRASH), (TaskPolicy(attempts_max=1), Cause.OUT_OF_MEMORY)):
        others = Books()
        others.slave()
        others.submit(1, policy=policy)
        dispatched(others)
        dies(others, 300, cause)
        assert len(others.state.take_actions().unrunnable) == 1
