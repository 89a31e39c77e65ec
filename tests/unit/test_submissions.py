"""Submitted tasks are combined into spans for the core, and counted."""

from __future__ import annotations

import threading

import pytest
from tests import spans
from tests.interrupts import moments

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.spans import portion_of
from mwpy._core.master.submissions import Submissions
from mwpy._core.master.tasks import MAX_SPAN, Taskjar
from mwpy._values import records
from mwpy._values.bounds import SlaveId
from mwpy._values.errors import UsageError
from mwpy._values.groups import ARGUMENTS, PackedCalls
from mwpy._values.policy import DEFAULT_POLICY, TaskPolicy
from mwpy._values.records import TaskRange
from mwpy._values.task import SlaveKind


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


def test_a_task_that_refers_to_results_is_a_span_of_its_own(
    submissions: Submissions, jar: Taskjar, algorithms: tuple[Defined, Defined]
) -> None:
    """Whatever is added before and after it. Until it is sent or has ended, it counts as pending."""
    highest, lowest = algorithms
    submissions.add(highest, DEFAULT_POLICY, b"a", (), "A")
    assert submissions.add_referring(highest, DEFAULT_POLICY, b"b", [], "B", [1]) == 2
    submissions.add_referring(highest, DEFAULT_POLICY, b"c", [b"large"], "C", [1, 2])
    submissions.add(highest, DEFAULT_POLICY, b"d", (), "D")
    submissions.add_referring(lowest, DEFAULT_POLICY, b"e", [], "E", [1])
    assert (submissions.pending(), submissions.pending(highest), submissions.pending(lowest)) == (5, 4, 1)
    submissions.check()
    taken = submissions.take()
    assert [(each.first, each.payloads, each.buffers, each.tags, each.refers) for each in taken] == [
        (1, (b"a",), (), ("A",), ()),
        (2, (b"b",), (), ("B",), [1]),
        (3, (b"c",), ([b"large"],), ("C",), [1, 2]),
        (4, (b"d",), (), ("D",), ()),
        (5, (b"e",), (), ("E",), [1]),
    ]
    jar.changes[records.TasksSubmitted](records.TasksSubmitted([span.facts() for span in taken]), ())
    assert [*jar.blocked.tasks] == [2, 3, 5]
    submissions.check()
    submissions.add(lowest, DEFAULT_POLICY, b"f", (), "F")
    assert [(each.first, each.refers) for each in submissions.take()] == [(6, ())]


def test_a_portion_is_a_span_of_its_own(
    submissions: Submissions, jar: Taskjar, algorithms: tuple[Defined, Defined]
) -> None:
    """Whatever is added before and after it. Each of its tasks has an id, and all have the same tag."""
    highest, _ = algorithms
    calls = PackedCalls.of(ARGUMENTS, [5, 6, 7])
    submissions.add(highest, DEFAULT_POLICY, b"a", (), "A")
    submissions.add_portion(highest, DEFAULT_POLICY, calls, "P")
    submissions.add_portion(highest, DEFAULT_POLICY, calls[1:], "Q")
    assert submissions.add(highest, DEFAULT_POLICY, b"d", (), "D") == 7
    assert (submissions.pending(), submissions.pending(highest)) == (7, 7)
    submissions.check()
    taken = submissions.take()
    assert [(each.first, each.count, [*each.payloads], each.tags) for each in taken] == [
        (1, 1, [b"a"], ("A",)),
        (2, 3, [b"\x91\5", b"\x91\6", b"\x91\7"], ("P",) * 3),
        (5, 2, [b"\x91\6", b"\x91\7"], ("Q",) * 2),
        (7, 1, [b"d"], ("D",)),
    ]
    jar.changes[records.TasksSubmitted](records.TasksSubmitted([span.facts() for span in taken]), ())
    assert [(span.first, portion_of(span)) for span in jar.pending.queues[0]] == [(1, 0), (2, 3), (5, 2), (7, 0)]
    submissions.check()


def test_tasks_that_differ_only_in_arguments_and_tag_are_one_span(
    submissions: Submissions, algorithms: tuple[Defined, Defined]
) -> None:
    """Tasks keep the order of submission. Another algorithm or policy begins another span."""
    highest, lowest = algorithms
    assert not submissions
    ids = [
        submissions.add(highest, DEFAULT_POLICY, b"a", (), "A"),
        submissions.add(highest, TaskPolicy(), b"b", (), "B"),
        submissions.add(highest, TaskPolicy(retry=False), b"c", (b"large",), "C"),
        submissions.add(lowest, TaskPolicy(retry=False), b"d", (), "D"),
    ]
    assert ids == [1, 2, 3, 4]
    assert submissions
    taken = submissions.take()
    assert [(span.first, span.algorithm, span.policy, span.payloads, span.buffers, span.tags) for span in taken] == [
        (1, highest, DEFAULT_POLICY, (b"a", b"b"), (), ("A", "B")),
        (3, highest, TaskPolicy(retry=False), (b"c",), ((b"large",),), ("C",)),
        (4, lowest, TaskPolicy(retry=False), (b"d",), (), ("D",)),
    ]
    assert [str(span) for span in taken] == ["tasks 1 to 2 (max)", "task 3 (max)", "task 4 (min)"]
    assert not submissions
    assert submissions.take() == []


def test_a_task_is_pending_until_the_core_sends_it_or_ends_it(
    submissions: Submissions, jar: Taskjar, algorithms: tuple[Defined, Defined]
) -> None:
    """The task is pending before and after the core takes it, and again when it comes back."""
    highest, lowest = algorithms

    def pending() -> tuple[int, int, int]:
        submissions.check()
        return submissions.pending(highest), submissions.pending(lowest), submissions.pending()

    def core(record: records.Record) -> None:
        jar.changes[type(record)](record, ())

    sid = SlaveId("SLAVE-0")
    core(records.SlaveConnected(sid, "AGENT-0", "here", SlaveKind.UNORDERED))
    for algorithm in (highest, lowest, highest, highest):
        submissions.add(algorithm, DEFAULT_POLICY, b"", (), None)
    assert pending() == (3, 1, 4)
    core(records.TasksSubmitted([span.facts() for span in submissions.take()]))
    assert pending() == (3, 1, 4)
    for number in (1, 3):
        core(records.TasksAllocated(sid, [TaskRange(number, 1, 1, 0, "max")]))
    assert (*pending(), submissions.runnable()) == (1, 1, 2, 4)
    submissions.add(lowest, DEFAULT_POLICY, b"", (), None)
    assert (*pending(), submissions.runnable()) == (1, 2, 3, 5)
    core(records.TasksReturned(sid, [TaskRange(1, 1, 1, 0, "max")], "lost"))
    assert (*pending(), submissions.runnable()) == (2, 2, 4, 5)
    core(records.TasksGivenUp(sid, True, [TaskRange(3, 1, 1, 0, "max")], "lost"))
    assert (*pending(), submissions.runnable()) == (2, 2, 4, 4)
    core(records.TasksFailed([TaskRange(5, 1, 0, 1, "min")], "too large"))
    submissions.take()
    assert (*pending(), submissions.runnable()) == (2, 1, 3, 3)
    assert submissions.pending(Defined(spans.defined(2, "sum"))) == 0


def test_check_finds_a_lost_task(submissions: Submissions, algorithms: tuple[Defined, Defined]) -> None:
    """`check` compares the counts of both threads with the tasks that the core has not taken."""
    highest, _ = algorithms
    submissions.add(highest, DEFAULT_POLICY, b"", (), None)
    submissions.check()
    submissions.total += 1
    with pytest.raises(AssertionError, match="lost"):
        submissions.check()


def test_many_tasks_become_several_spans(submissions: Submissions, algorithms: tuple[Defined, Defined]) -> None:
    """A thousand slaves would otherwise each cut their tasks from one span, and copy the remaining tasks each time."""
    for number in range(2 * MAX_SPAN + 1):
        submissions.add(algorithms[0], DEFAULT_POLICY, b"a", (), number)
    taken = submissions.take()
    assert [(span.first, span.count) for span in taken] == [
        (1, MAX_SPAN),
        (MAX_SPAN + 1, MAX_SPAN),
        (2 * MAX_SPAN + 1, 1),
    ]
    assert [tag for span in taken for tag in span.tags] == [*range(2 * MAX_SPAN + 1)]


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
            new = TaskRange(span.first, span.count, 0, span.algorithm.number, span.algorithm.name)
            jar.changes[records.TasksFailed](records.TasksFailed([new], "too large"), ())  # the shortest life
            taken.append(span)
        assert submissions.pending() >= 0
    adder.join()
    submissions.check()
    assert [number for span in taken for number in span.ids] == [*range(1, total + 1)]
    assert all([*span.payloads] == [b"%d" % number for number in span.ids] for span in taken)
    assert all(span.tags == (*span.ids,) for span in taken)


def test_tasks_that_two_threads_add_at_once_are_an_error(
    submissions: Submissions, algorithms: tuple[Defined, Defined]
) -> None:
    """Otherwise their tasks would get each other's results."""
    highest, _ = algorithms
    first = submissions.add(highest, DEFAULT_POLICY, b"", (), None)
    submissions.total = first - 1  # the number that a second thread reads before the first thread stores its own
    submissions.add(highest, DEFAULT_POLICY, b"", (), None)
    with pytest.raises(UsageError, match="two threads"):
        submissions.take()


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
            new = TaskRange(span.first, span.count, 0, span.algorithm.number, span.algorithm.name)
            jar.changes[records.TasksFailed](records.TasksFailed([new], "too large"), ())
            taken += span.count
        submissions.check()
        assert taken == submissions.total, moment
    assert moment.number >= 5


def test_with_a_run_database_each_task_has_a_key(jar: Taskjar, algorithms: tuple[Defined, Defined]) -> None:
    """Keys of plain arguments follow from the encoded call; those of other arguments are given."""
    highest, lowest = algorithms
    keyed, plain, given = Submissions(jar, keyed=True), b"\x91\x05".ljust(16, b"\0"), b"k" * 16
    calls = PackedCalls.of(ARGUMENTS, [5, 5])
    assert keyed.add(highest, DEFAULT_POLICY, b"\x91\x05", (), "A") == 1
    assert keyed.add_keyed(highest, DEFAULT_POLICY, b"call", [b"large"], "B", given) == 2
    keyed.add_portion(highest, DEFAULT_POLICY, calls, "C")
    keyed.add_referring(lowest, DEFAULT_POLICY, b"call", [], "E", [1], given)
    keyed.add_keyed(lowest, DEFAULT_POLICY, b"call", (), "F", given)
    keyed.check()
    taken = keyed.take()
    assert [(each.first, each.count, each.keys) for each in taken] == [
        (1, 2, plain + given),
        (3, 2, plain + plain),
        (5, 1, given),
        (6, 1, given),
    ]
    assert [each.tags for each in taken] == [("A", "B"), ("C", "C"), ("E",), ("F",)]
    assert (taken[0].buffers, taken[0].payloads) == (((), [b"large"]), (b"\x91\x05", b"call"))


def test_many_tasks_with_keys_are_cut_between_tasks(jar: Taskjar, algorithms: tuple[Defined, Defined]) -> None:
    keyed = Submissions(jar, keyed=True)
    for number in range(MAX_SPAN + 1):
        keyed.add_keyed(algorithms[0], DEFAULT_POLICY, b"call", (), None, number.to_bytes(16, "big"))
    first, second = keyed.take()
    assert (first.count, second.count, second.keys) == (MAX_SPAN, 1, MAX_SPAN.to_bytes(16, "big"))
