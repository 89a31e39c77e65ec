"""Tasks on their way to the core, put to spans."""

from __future__ import annotations

import threading

import pytest

from mwpy._core.master.submissions import Submissions
from mwpy._values.algorithm import algorithm_of
from mwpy._values.errors import UsageError
from mwpy._values.task import DEFAULT_POLICY, TaskPolicy

MAX, MIN = algorithm_of(max), algorithm_of(min)


@pytest.fixture
def submissions() -> Submissions:
    return Submissions()


def test_tasks_that_differ_in_nothing_but_arguments_and_tag_are_one_span(submissions: Submissions) -> None:
    """In the order in which they were submitted; another algorithm or policy begins another."""
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


def test_what_was_taken_is_still_counted(submissions: Submissions) -> None:
    for algorithm in (MAX, MIN, MAX, MAX):
        submissions.add(algorithm, DEFAULT_POLICY, b"", (), None)
        submissions.take()
    assert (submissions.total, submissions.count(MAX), submissions.count(MIN)) == (4, 3, 1)
    assert submissions.count(algorithm_of(sum)) == 0


def test_one_thread_takes_while_another_adds(submissions: Submissions) -> None:
    """Nothing is lost and nothing comes twice, whatever is added meanwhile."""
    total = 20_000

    def add() -> None:
        for number in range(1, total + 1):
            submissions.add(MAX if number // 7 % 2 else MIN, DEFAULT_POLICY, b"%d" % number, (), number)

    adder = threading.Thread(target=add)
    adder.start()
    taken = []
    while adder.is_alive() or submissions:
        taken += submissions.take()
    adder.join()
    assert [number for span in taken for number in span.ids] == [*range(1, total + 1)]
    assert all(span.payloads == [b"%d" % number for number in span.ids] for span in taken)
    assert all(span.tags == [*span.ids] for span in taken)


def test_two_threads_that_add_at_once_are_told(submissions: Submissions) -> None:
    """Their tasks would get each other's results."""
    first = submissions.add(MAX, DEFAULT_POLICY, b"", (), None)
    submissions.total = first - 1  # what the second thread saw, when it looked before the first had put back
    submissions.add(MAX, DEFAULT_POLICY, b"", (), None)
    with pytest.raises(UsageError, match="two threads"):
        submissions.take()
