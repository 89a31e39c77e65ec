"""Submitted tasks are combined into spans for the core, and counted."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from tests.spans import MAX as DEFINED_MAX
from tests.spans import MIN as DEFINED_MIN
from tests.spans import defined

from mwpy._core.master.submissions import Submissions
from mwpy._values.errors import UsageError
from mwpy._values.task import DEFAULT_POLICY, TaskPolicy

MAX, MIN = DEFINED_MAX.definition, DEFINED_MIN.definition


@pytest.fixture
def submissions() -> Submissions:
    return Submissions()


def test_tasks_that_differ_only_in_arguments_and_tag_are_one_span(submissions: Submissions) -> None:
    """Tasks keep the order of submission. Another algorithm or policy begins another span."""
    assert not submissions
    ids = [
        submissions.add(MAX, DEFAULT_POLICY, b"a", (), "A"),
        submissions.add(MAX, TaskPolicy(), b"b", (), "B"),
        submissions.add(MAX, TaskPolicy(retry=False), b"c", (b"large",), "C"),
        submissions.add(MIN, TaskPolicy(retry=False), b"d", (), "D"),
    ]
    assert ids == [1, 2, 3, 4]
    assert submissions
    spans = submissions.take()
    assert [(span.first, span.algorithm, span.policy, span.payloads, span.buffers, span.tags) for span in spans] == [
        (1, MAX, DEFAULT_POLICY, [b"a", b"b"], [], ["A", "B"]),
        (3, MAX, TaskPolicy(retry=False), [b"c"], [(b"large",)], ["C"]),
        (4, MIN, TaskPolicy(retry=False), [b"d"], [], ["D"]),
    ]
    assert [str(span) for span in spans] == ["tasks 1 to 2 (max)", "task 3 (max)", "task 4 (min)"]
    assert not submissions
    assert submissions.take() == []


def test_a_task_is_pending_until_the_core_publishes_that_it_is_not(submissions: Submissions) -> None:
    """The task is pending before and after the core takes it."""

    def pending() -> tuple[int, int, int]:
        submissions.check()
        return submissions.pending(MAX), submissions.pending(MIN), submissions.pending()

    for algorithm in (MAX, MIN, MAX, MAX):
        submissions.add(algorithm, DEFAULT_POLICY, b"", (), None)
    assert pending() == (3, 1, 4)
    submissions.take()
    assert pending() == (3, 1, 4)
    submissions.publish({0: 3, 1: 1}, 4)
    assert pending() == (3, 1, 4)
    submissions.publish({0: 1}, 3)
    assert (*pending(), submissions.runnable()) == (1, 0, 1, 3)
    submissions.add(MIN, DEFAULT_POLICY, b"", (), None)
    assert (*pending(), submissions.runnable()) == (1, 1, 2, 4)
    submissions.publish({}, 0)
    assert (*pending(), submissions.runnable()) == (0, 1, 1, 1)
    assert submissions.pending(defined(2, "sum").definition) == 0


def test_check_finds_a_lost_task(submissions: Submissions) -> None:
    """`check` compares the counts of both threads with the tasks that the core has not taken."""
    submissions.add(MAX, DEFAULT_POLICY, b"", (), None)
    submissions.take()
    submissions.check()
    submissions.total += 1
    with pytest.raises(AssertionError, match="lost"):
        submissions.check()


def test_one_thread_can_take_tasks_while_another_adds_tasks(submissions: Submissions) -> None:
    """No task is lost or taken twice, and no count is wrong."""
    total = 20_000

    def add() -> None:
        for number in range(1, total + 1):
            submissions.add(MAX if number // 7 % 2 else MIN, DEFAULT_POLICY, b"%d" % number, (), number)

    adder = threading.Thread(target=add)
    adder.start()
    taken = []
    while adder.is_alive() or submissions:
        spans = submissions.take()
        pending = Counter[int]()
        for span in spans:
            pending[span.algorithm.number] += span.count
        submissions.publish(pending, pending.total())  # as if the core had sent all that it took before
        taken += spans
    adder.join()
    submissions.check()
    assert [number for span in taken for number in span.ids] == [*range(1, total + 1)]
    assert all(span.payloads == [b"%d" % number for number in span.ids] for span in taken)
    assert all(span.tags == [*span.ids] for span in taken)


def test_tasks_that_two_threads_add_at_once_are_an_error(submissions: Submissions) -> None:
    """Otherwise their tasks would get each other's results."""
    first = submissions.add(MAX, DEFAULT_POLICY, b"", (), None)
    submissions.total = first - 1  # the number that a second thread reads before the first thread stores its own
    submissions.add(MAX, DEFAULT_POLICY, b"", (), None)
    with pytest.raises(UsageError, match="two threads"):
        submissions.take()
