"""How much memory a task is expected to use, and how much it may use after it ran out of memory."""

from __future__ import annotations

import pytest
from tests.master_state import Books
from tests.spans import MAX, span

from mwpy._core.master.delays import Delays
from mwpy._core.master.dispatch import Dispatch
from mwpy._core.master.handback import HandBack
from mwpy._core.master.isolation import Isolation
from mwpy._core.master.kinds import SlaveKinds
from mwpy._core.master.losses import Losses
from mwpy._core.master.peaks import PEAKS_KEPT, PEAKS_NEEDED, Peaks, more_memory
from mwpy._core.master.shares import Shares
from mwpy._core.master.totals import Totals
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
    handback = HandBack(books.state)
    others = books.definitions(), Shares(books.state)
    Dispatch(books.state, handback, Isolation(books.state), *others).decide(0.0)
    books.state.check()
    return [each.message for each in books.state.take_actions().sends if isinstance(each.message, messages.Tasks)][-1]


def dies(books: Books, allowed: int, cause: Cause = Cause.OUT_OF_MEMORY) -> None:
    """The slave of the last task that was sent dies because its job is short of memory."""
    handback = HandBack(books.state)
    kinds, delays = SlaveKinds(books.state, handback), Delays(books.state, handback)
    losses = Losses(books.state, kinds, handback, Totals(books.state), delays, books.hosts())
    [slave] = books.state.members.slaves.values()
    losses.slave_died(slave.agent, messages.SlaveDied(slave.number, 1, cause, "why", NO_WORDS, allowed=allowed))
    losses.check()
    books.state.check()


def test_the_last_peaks_of_an_algorithm_say_what_its_tasks_will_use() -> None:
    """A fifth is added to what all but a few of the last tasks used. A few peaks say nothing."""
    peaks = Peaks()
    for _ in range(PEAKS_NEEDED - 1):
        peaks.add(100)
    assert peaks.expected is None
    peaks.add(5000)
    assert [peaks.expected] == [120]
    for number in range(PEAKS_KEPT):
        peaks.add(number)
    assert peaks.expected == int(1.2 * 94)


def test_tasks_with_a_limit_of_memory_travel_with_what_they_are_expected_to_use(books: Books) -> None:
    """It is at most their limit. A task without such a limit has no such number."""
    books.slave()
    books.state.members.pace[0] = 0.001
    for _ in range(PEAKS_NEEDED):
        books.state.members.peaks[0].add(500)
    for policy in (LARGE, TaskPolicy(memory_max=550), TaskPolicy(seconds_max=2.5)):
        books.submit(1, policy=policy)
    group = dispatched(books)
    assert group.limits == [Limits(2.5, 1000, 600), Limits(None, 550, 550), Limits(2.5)]


def test_a_task_that_lost_its_memory_to_others_is_tried_again_with_more(books: Books) -> None:
    """It may use twice as much, up to its limit. It does not pause, is not charged, and comes first."""
    books.slave()
    books.submit(1, policy=LARGE)
    assert dispatched(books).limits == [Limits(2.5, 1000, None)]
    for allowed, more in ((300, 600), (600, 1000), (1000, 1000)):
        dies(books, allowed)
        [task] = books.state.jar.pending.queues[0]
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


def test_only_a_task_with_a_limit_that_ran_out_of_memory_gets_more(books: Books) -> None:
    """An agent may say anything."""
    assert more_memory(span(1, MAX), 300) == 0
    books.slave()
    books.submit(1, policy=LARGE)
    dispatched(books)
    dies(books, 300, Cause.CRASH)
    assert [task.task_id for task in books.state.take_actions().unrunnable] == [1]
