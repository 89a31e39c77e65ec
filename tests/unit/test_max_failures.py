"""Limits for the number of failures, and the summary of the failures."""

from __future__ import annotations

import pytest

from mwpy._values.bounds import SlaveId, TaskId
from mwpy._values.causes import Cause
from mwpy._values.errors import TaskFailed, TaskUnrunnable, TooManyFailures, UsageError
from mwpy._values.last_words import Death
from mwpy._values.options import parse
from mwpy._values.policy import KINDS_KEPT, LEAST_ENDED, OTHER_KINDS, FailuresByKind, MaxFailures, Policies, TaskPolicy


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        (10, MaxFailures(10)),
        ("10", MaxFailures(10)),
        (" 10, finish", MaxFailures(10, finish=True)),
        ("5%", MaxFailures(5, is_percentage=True)),
        ("0.5 %,finish", MaxFailures(0.5, is_percentage=True, finish=True)),
    ],
)
def test_a_limit_is_a_number_or_a_percentage_and_may_let_tasks_finish(given: int | str, limit: MaxFailures) -> None:
    """Its text gives the same limit again. None is no limit."""
    assert MaxFailures.of("max_failures", None) is None
    assert MaxFailures.of("max_failures", given) == limit
    assert MaxFailures.of("max_failures", str(limit)) == limit


@pytest.mark.parametrize("given", [0, -1, 2.5, "2.5", "0", "0%", "101%", "ten", "10,kill", "", "10%%", [10]])
def test_any_other_limit_is_refused_with_its_forms(given: object) -> None:
    with pytest.raises(
        UsageError, match=r"max_failures=.*: give a whole number from 1 on or a percentage such as '5%'"
    ):
        MaxFailures.of("max_failures", given)  # type: ignore[arg-type]


def test_a_number_is_reached_with_the_last_of_so_many_failures() -> None:
    assert not MaxFailures(10).is_reached(9, 9)
    assert MaxFailures(10).is_reached(10, 1000)


def test_a_percentage_counts_only_after_enough_tasks() -> None:
    """Otherwise the first failure among the first ten tasks would be ten percent."""
    limit = MaxFailures(10, is_percentage=True)
    assert not limit.is_reached(LEAST_ENDED - 1, LEAST_ENDED - 1)
    assert limit.is_reached(LEAST_ENDED // 10, LEAST_ENDED)
    assert not limit.is_reached(LEAST_ENDED // 10, LEAST_ENDED + 1)


def test_the_option_is_for_the_whole_computation() -> None:
    assert parse(["--mw-max-failures", "5%,finish"])[0].max_failures == MaxFailures(5, True, True)
    with pytest.raises(UsageError, match="--mw-max-failures='none': give a whole number from 1 on or a percentage"):
        parse(["--mw-max-failures", "none"])


def test_a_task_has_no_such_policy_and_the_error_says_where_it_belongs() -> None:
    policy: Policies = {"max_failures": 3}  # type: ignore[typeddict-unknown-key]
    with pytest.raises(UsageError, match=r"give it to mw.map_results or mw.as_completed, or for all to mwpy.open"):
        TaskPolicy.of(**policy)


def test_failures_are_summed_up_by_kind_with_the_first_of_each() -> None:
    """The cause of the last loss tells unrunnable tasks apart. The most frequent kind comes first."""
    failures = FailuresByKind()
    killed = Death(SlaveId("SLAVE-1"), 1, Cause.CRASH, "signal 11")
    failures.add(TaskUnrunnable("f", "SLAVE-1", "TaskUnrunnable", "it kills", "", (killed,)))
    for text in ("one", "two\nand more"):
        failures.add(TaskFailed("f", "SLAVE-0", "ValueError", text))
    kinds = failures.take()
    assert [(kind.kind, kind.count, kind.example.text) for kind in kinds] == [
        ("ValueError", 2, "one"),
        ("TaskUnrunnable (crash)", 1, "it kills"),
    ]
    assert failures.take() == ()
    error = TooManyFailures("3", 3, 7, kinds, [TaskId(9), TaskId(8)])
    assert str(error).splitlines() == [
        "the run was stopped: 3 of 7 ended tasks failed (max_failures=3). 2 submitted tasks did not run, from task 8 "
        "to task 9 (see .task_ids and .remaining)",
        "  2 times ValueError. Example: task f failed on SLAVE-0: ValueError: one",
        "  1 time TaskUnrunnable (crash). Example: task f failed on SLAVE-1: TaskUnrunnable: it kills",
    ]
    assert list(error.remaining) == []


def test_only_so_many_kinds_are_counted_apart() -> None:
    """An exception class may be made for each task."""
    failures = FailuresByKind()
    for number in range(KINDS_KEPT + 10):
        failures.add(TaskFailed("f", None, f"Error{number}", "text"))
    kinds = failures.take()
    assert len(kinds) == KINDS_KEPT + 1
    assert (kinds[0].kind, kinds[0].count, kinds[0].example.type_name) == (OTHER_KINDS, 10, f"Error{KINDS_KEPT}")
