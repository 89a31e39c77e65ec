"""Totals and the summary: what was done and lost, for each algorithm on each host."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.master_state import Books
from tests.spans import MAX, MIN, defined, span

from mwpy import cli
from mwpy._core.master.algorithms import Defined
from mwpy._core.master.core import MasterCore
from mwpy._core.master.state import MasterSettings, Received
from mwpy._core.master.totals import STATED_EVERY_S, Totals, summary_of
from mwpy._values import messages, records
from mwpy._values.causes import Cause
from mwpy._values.policy import TaskPolicy
from mwpy.audit import AuditFile, read_totals

F, G = span(1, MAX), span(2, MIN)


@pytest.fixture
def books() -> Books:
    return Books()


def stated(books: Books) -> list[records.Total]:
    return [record for record in books.taken() if isinstance(record, records.Total)]


def test_a_slave_says_how_much_memory_an_algorithm_has_used() -> None:
    """An algorithm may have been forgotten meanwhile."""
    core = MasterCore(MasterSettings("m", "g"))
    core.definitions.add(Defined(MAX))
    number = core.state.jar.algorithms.highest
    messages_of_agent = (
        messages.Hello("m", "g", "node1", 1, "3.11", 1),
        messages.SlaveReady(1),
        messages.PeakMemory(1, number, 500),
        messages.PeakMemory(1, number, 300),
        messages.PeakMemory(1, number + 1, 700),
        messages.PeakMemory(2, number, 900),
    )
    for message in messages_of_agent:
        core.handle(Received(b"a", "here", message, ()), 0.0)
    [(total, _)] = core.totals.copies()
    assert (total.algorithm, total.host, total.memory_used) == ("max", "node1", 500)


def test_what_the_policies_ask_for_is_compared_with_what_was_used(books: Books) -> None:
    """The largest numbers count, of results and of lost attempts."""
    kept = Totals(books.state)
    timed, large = TaskPolicy(seconds_max=60.0, memory_max=1000, seconds_expected=7.0), TaskPolicy(memory_max=4000)
    kept.finished(span(1, MAX, policy=timed), "node1", 0.5, 0.5, 0)
    kept.measured("max", "node1", 700)
    kept.measured("max", "node1", 500)
    kept.lost(span(2, MAX, policy=large), "node1", Cause.OUT_OF_MEMORY, 1, 0.5)
    kept.state_all()
    lost = {"out of memory": 1}
    assert stated(books) == [records.Total("max", "node1", 1, 0, 0.5, 0.5, lost, 0.5, 60.0, 4000, 700, 7.0)]


def test_totals_are_stated_from_time_to_time_if_they_have_changed(books: Books) -> None:
    kept = Totals(books.state)
    kept.decide(1000.0)
    kept.finished(F, "node1", 1.0, 1.0, 0)
    kept.finished(G, "node1", 1.0, 1.0, 0)
    kept.decide(999.0 + STATED_EVERY_S)
    assert stated(books) == []
    kept.decide(1000.0 + STATED_EVERY_S)
    assert len(stated(books)) == 2
    kept.finished(G, "node1", 1.0, 1.0, 0)
    kept.decide(1000.0 + 2 * STATED_EVERY_S)
    assert [(total.algorithm, total.tasks) for total in stated(books)] == [("min", 2)]


@pytest.mark.parametrize(
    "total",
    [
        records.Total("f", "node1", 1, 0, 0.5, 0.25, {}, 0.0),
        records.Total("a lambda on\tb: 3 tasks", "n", 20, 3, 1e6, 7.125, {"crash": 1, "slave start-up": 12}, 99.5),
        records.Total("f", "n", 2, 0, 0.5, 0.25, {"crash": 1}, 0.5, 1e9, 4 << 30, 1 << 20),
        records.Total("f", "n", 2, 0, 0.5, 0.25, {}, 0.0, seconds_max=1.5e-05),
        records.Total("f", "n", 2, 0, 0.5, 0.25, {}, 0.0, seconds_expected=1.5e-05, memory_max=5),
    ],
)
def test_totals_are_read_back_from_the_audit_file(tmp_path: Path, total: records.Total) -> None:
    """The last line of each row counts, and only lines of the last run."""
    path = tmp_path / "x.audit"
    audit = AuditFile(path)
    old = records.Total("old", "n", 1, 0, 0.0, 0.0, {}, 0.0)
    earlier = records.Total(total.algorithm, total.host, 0, 0, 0.0, 0.0, {}, 0.0)
    audit.write([old, records.Started("MASTER", "m", "READY"), earlier, total], 0.0)
    audit.close()
    assert read_totals(path) == [total]


def stats_of(path: Path, capsys: pytest.CaptureFixture[str], *rows: records.Total) -> list[str]:
    """What `mwpy logs --stats` prints, with one space between words."""
    audit = AuditFile(path)
    audit.write(rows, 0.0)
    audit.close()
    assert cli.main(["logs", str(path), "--stats"]) == 0
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_mwpy_logs_shows_the_totals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = records.Total("g", "node1", 0, 0, 0.0, 0.0, {"crash": 1, "evicted": 3}, 9.0)
    second = records.Total("f", "node1", 20, 3, 12.5, 7.125, {"crash": 1}, 1.5)
    assert stats_of(tmp_path / "x.audit", capsys, first, second) == [
        "algorithm host tasks failed time longest lost lost time",
        "f node1 20 3 12.5 s 7.12 s 1 1.5 s",
        "g node1 0 0 0 s 0 s 4 9 s",
        "3 attempts lost: evicted",
        "2 attempts lost: crash",
    ]


def test_mwpy_logs_compares_what_was_asked_for_with_what_was_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is a line for each algorithm that had limits, or whose memory was measured, and a request for memory."""
    rows = [
        records.Total("g", "node1", 1, 0, 2.0, 2.0, {}, 0.0, 60.0, seconds_expected=5.0),
        records.Total("f", "node1", 1, 0, 1.0, 1.0, {}, 0.0, 0.0, 4 << 30, 1 << 30),
        records.Total("f", "node2", 1, 0, 3.0, 3.0, {}, 0.0, 10.0, 2 << 30, 3 << 29),
        records.Total("h", "node1", 1, 0, 1.0, 1.0, {}, 0.0),
    ]
    assert stats_of(tmp_path / "x.audit", capsys, *rows)[5:] == [
        "asked for and used seconds_max seconds_expected longest memory_max peak",
        "f 10 s - 3 s 4.0 GiB 1.5 GiB",
        "g 60 s 5 s 2 s - -",
        "a job needs about 1850 MiB of memory for each slave, and 50 MiB for its agent",
    ]


def test_an_audit_file_without_totals_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.audit"
    path.touch()
    assert cli.main(["logs", str(path), "--stats"]) == 2
    assert "has no totals: the master writes them when it ends" in capsys.readouterr().err


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
