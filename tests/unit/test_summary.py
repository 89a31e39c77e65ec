"""The summary of a computation: what was done and lost."""

from __future__ import annotations

import re

import pytest
from tests.master_state import Books
from tests.spans import MAX, MIN, defined, span

from mwpy._core.master.totals import Totals, summary_of
from mwpy._values.causes import Cause
from mwpy._values.policy import TaskPolicy


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
        "algorithm host tasks failed time longest lost lost time",
        "max node1 5 3 6.5 s 3 s 0 0 s",
        "min node1 0 0 0 s 1 s 1 1 s",
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


def test_a_summary_fits_on_a_terminal(kept: Totals) -> None:
    """Names are shortened in the middle, numbers are not."""
    algorithm = defined(5, "relax_the_lattice_of_one_crystal_with_many_defects")
    policy = TaskPolicy(seconds_max=86400.0, seconds_expected=7500.0, memory_max=10 << 30)
    kinds = [f"AnErrorWithALongName{number}" for number in range(10)]
    host = "node0017.cluster.physics.example.org"
    kept.finished(span(1, algorithm, 20_000_000, policy=policy), host, 123_456_789.0, 80_000.0, 12_345_678, kinds)
    kept.lost(span(30_000_000, algorithm), host, Cause.CRASH, 7_654_321, 98_765_432.0)
    kept.measured(algorithm.definition.name, host, 9 << 30)
    lines = summary_of(kept).splitlines()
    assert max(map(len, lines)) <= 80
    figures = re.split(" {2,}", lines[2])
    assert figures[2:] == ["20000000", "12345678", "1429 days", "1143 days", "7654321", "1143 days"]
    assert figures[0].startswith("rel")
    assert figures[1].startswith("nod")
    asked = next(re.split(" {2,}", line) for line in lines if "24 h 00 min" in line)
    assert asked[1:] == ["24 h 00 min", "2 h 05 min", "1143 days", "10.0 GiB", "9.0 GiB"]
    assert all(kind in " ".join(lines) for kind in kinds)


def test_a_summary_of_nothing_says_so(kept: Totals) -> None:
    assert summary_of(kept) == "mwpy: summary: no task has ended"
