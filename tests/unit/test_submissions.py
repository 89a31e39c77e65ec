"""Submitted tasks are combined into spans for the core, and counted."""

from __future__ import annotations

import threading

import pytest
from tests import spans
from tests.interrupts import moments

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.spans import Span
from mwpy._core.master.submissions import Submissions
from mwpy._core.master.tasks import Taskjar
from mwpy._values import records
from mwpy._values.groups import ARGUMENTS, PackedCalls
from mwpy._values.policy import DEFAULT_POLICY


@pytest.fixture
def jar() -> Taskjar:
    return Taskjar()


@pytest.fixture
def submissions(jar: Taskjar) -> Submissions:
    return Submissions(jar)


@pytest.fixture
def algorithms(jar: Taskjar) -> tuple[Defined, Defined]:
    """`max` and `min`, which the core already knows."""
    both = Defined(spans.MAX), Defined(spans.MIN)
    for each in both:
        jar.algorithms.add(each.record)
        jar.algorithms.adopt(each)
    return both


def no_task_is_left(submissions: Submissions, *algorithms: Defined) -> bool:
    """Whether no task is pending, of all algorithms and of each, and none is runnable."""
    return not any([submissions.pending(), submissions.runnable(), *map(submissions.pending, algorithms)])


def end_at_once(jar: Taskjar, span: Span) -> None:
    """The shortest life of a task."""
    jar.changes[records.TasksSubmitted](records.TasksSubmitted([span.facts()]))
    jar.changes[records.TasksFailed](records.TasksFailed([span.whole], "too large"))


def test_one_thread_can_take_tasks_while_another_adds_tasks(
    submissions: Submissions, jar: Taskjar, algorithms: tuple[Defined, Defined]
) -> None:
    """No task is lost or taken twice, and no count is wrong."""
    highest, lowest = algorithms
    total = 20_000

    def add() -> None:
        for number in range(1, total + 1):
            submissions.add(highest if number // 7 % 2 else lowest, DEFAULT_POLICY, b"%d" % number, (), number)

    adder = threading.Thread(target=add)
    adder.start()
    taken = []
    while adder.is_alive() or submissions:
        for span in submissions.take():
            end_at_once(jar, span)
            taken.append(span)
        assert submissions.pending() >= 0
    adder.join()
    assert no_task_is_left(submissions, *algorithms)
    assert [number for span in taken for number in span.ids] == [*range(1, total + 1)]
    assert all([*span.payloads] == [b"%d" % number for number in span.ids] for span in taken)
    assert all(span.tags == (*span.ids,) for span in taken)


def test_an_interrupt_while_a_task_is_added_adds_it_or_not(
    submissions: Submissions, jar: Taskjar, algorithms: tuple[Defined, Defined]
) -> None:
    """All counts agree at each moment. The task begins another span."""
    highest, lowest = algorithms
    taken = 0
    for moment in moments():
        submissions.add(highest, DEFAULT_POLICY, b"", (), None)
        moment.interrupt(lambda: submissions.add(lowest, DEFAULT_POLICY, b"", (), None))
        for span in submissions.take():
            end_at_once(jar, span)
            taken += span.count
        assert no_task_is_left(submissions, *algorithms)
        assert taken == submissions.total, moment
    assert moment.number >= 5


def test_with_a_run_database_each_task_has_a_key(jar: Taskjar, algorithms: tuple[Defined, Defined]) -> None:
    """Keys of plain arguments follow from the encoded call; those of other arguments are given."""
    highest, lowest = algorithms
    keyed, plain, given = Submissions(jar, keyed=True), b"\x91\x05".ljust(16, b"\0"), b"k" * 16
    calls, owner = PackedCalls.of(ARGUMENTS, [5, 5]), object()
    assert keyed.add(highest, DEFAULT_POLICY, b"\x91\x05", (), "A") == 1
    assert keyed.add(highest, DEFAULT_POLICY, b"call", [b"large"], "B", given) == 2
    keyed.add_portion(highest, DEFAULT_POLICY, calls, "C", owner)
    keyed.add(lowest, DEFAULT_POLICY, b"call", [], "E", given, [1])
    keyed.add(lowest, DEFAULT_POLICY, b"call", (), "F", given)
    assert [keyed.pending(), keyed.pending(highest), keyed.pending(lowest), keyed.runnable()] == [6, 4, 2, 6]
    taken = keyed.take()
    assert [(each.first, each.count, each.keys) for each in taken] == [
        (1, 2, plain + given),
        (3, 2, plain + plain),
        (5, 1, given),
        (6, 1, given),
    ]
    assert [each.owner for each in taken] == [None, owner, None, None]
    assert [each.tags for each in taken] == [("A", "B"), ("C", "C"), ("E",), ("F",)]
    assert (taken[0].buffers, taken[0].payloads) == (((), [b"large"]), (b"\x91\x05", b"call"))
