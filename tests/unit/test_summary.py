"""The summary of a computation: what was done and lost."""

from __future__ import annotations

import pytest
from tests.master_state import Books
from tests.spans import MAX, MIN, span

from mwpy._core.master.totals import Totals, summary_of
from mwpy._values.causes import Cause


@pytest.fixture
def kept() -> Totals:
    return Totals(Books().state)


def test_a_summary_shows_tasks_failures_and_losses(kept: Totals) -> None:
    kept.finished(span(1, MAX, 5), "node1", 6.5, 3.0, 3, ["KeyError", "ValueError", "ValueError"])
    kept.lost(span(9, MIN), "node1", Cause.CRASH, 1, 1.0)
    kept.state.jar.failed, kept.state.jar.cancelled = 4, 2
    lines = [" ".join(line.split()) for line in summary_of(kept).splitlines()]
    assert lines == [
        "mwpy: summary",
        "algorithm host tasks failed seconds longest lost lost s",
        "max node1 5 3 6.5 3.000 0 0.0",
        "min node1 0 0 0.0 1.000 1 1.0",
        "failures of max on node1: 2 ValueError, 1 KeyError",
        "lost attempts of min on node1: 1 crash",
        "1 task without a result, because they are unrunnable or could not be sent",
        "2 tasks cancelled",
    ]


def test_a_summary_counts_tasks_that_were_answered_from_the_run_database(kept: Totals) -> None:
    """Their failures are no tasks without a result. Nothing else may have been done."""
    jar = kept.state.jar
    jar.ends.reused = 3
    assert summary_of(kept).splitlines()[2:] == ["3 tasks answered from the run database"]
    jar.failed, jar.ends.reused_failed = 2, 1
    assert summary_of(kept).splitlines()[2:] == [
        "3 tasks answered from the run database, 1 of them with a failure",
        "1 task without a result, because they are unrunnable or could not be sent",
    ]


def test_a_summary_of_nothing_says_so(kept: Totals) -> None:
    assert summary_of(kept) == "mwpy: summary: no task has ended"
