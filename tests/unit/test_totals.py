"""Totals: what was done and lost, for each algorithm on each host."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.master_state import Books
from tests.spans import MAX, MIN, span

from mwpy import cli
from mwpy._core.master.algorithms import Defined
from mwpy._core.master.core import MasterCore
from mwpy._core.master.state import MasterSettings, Received
from mwpy._core.master.totals import STATED_EVERY_S, Totals
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


def test_mwpy_logs_shows_the_totals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.audit"
    audit = AuditFile(path)
    rows = [
        records.Total("g", "node1", 0, 0, 0.0, 0.0, {"crash": 1, "evicted": 3}, 9.0),
        records.Total("f", "node1", 20, 3, 12.5, 7.125, {"crash": 1}, 1.5),
    ]
    audit.write(rows, 0.0)
    audit.close()
    assert cli.main(["logs", str(path), "--stats"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["algorithm", "host", "tasks", "failed", "time", "longest", "lost", "lost", "time"],
        ["f", "node1", "20", "3", "12.5", "s", "7.12", "s", "1", "1.5", "s"],
        ["g", "node1", "0", "0", "0", "s", "0", "s", "4", "9", "s"],
        ["3", "attempts", "lost:", "evicted"],
        ["2", "attempts", "lost:", "crash"],
    ]


def test_mwpy_logs_compares_what_was_asked_for_with_what_was_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is a line for each algorithm that had limits, or whose memory was measured, and a request for memory."""
    path = tmp_path / "x.audit"
    audit = AuditFile(path)
    rows = [
        records.Total("g", "node1", 1, 0, 2.0, 2.0, {}, 0.0, 60.0, seconds_expected=5.0),
        records.Total("f", "node1", 1, 0, 1.0, 1.0, {}, 0.0, 0.0, 4 << 30, 1 << 30),
        records.Total("f", "node2", 1, 0, 3.0, 3.0, {}, 0.0, 10.0, 2 << 30, 3 << 29),
        records.Total("h", "node1", 1, 0, 1.0, 1.0, {}, 0.0),
    ]
    audit.write(rows, 0.0)
    audit.close()
    assert cli.main(["logs", str(path), "--stats"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()[5:]] == [
        ["asked", "for", "and", "used", "seconds_max", "seconds_expected", "longest", "memory_max", "peak"],
        ["f", "10", "s", "-", "3", "s", "4.0", "GiB", "1.5", "GiB"],
        ["g", "60", "s", "5", "s", "2", "s", "-", "-"],
        "a job needs about 1850 MiB of memory for each slave, and 50 MiB for its agent".split(),  # noqa: SIM905
    ]


def test_an_audit_file_without_totals_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.audit"
    path.touch()
    assert cli.main(["logs", str(path), "--stats"]) == 2
    assert "has no totals: the master writes them when it ends" in capsys.readouterr().err
