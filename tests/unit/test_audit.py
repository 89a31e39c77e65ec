"""The audit file: one line per record, rotation, and failed writes."""

from __future__ import annotations

import io
import os
import resource
import sys
from pathlib import Path

import pytest
from tests.spans import MAX, span

from mwpy import audit
from mwpy._system.streams import RotatedFile, WholeLines
from mwpy._values import records
from mwpy._values.bounds import SlaveId
from mwpy._values.causes import Cause
from mwpy._values.errors import UsageError
from mwpy._values.last_words import NO_WORDS, LastWords
from mwpy._values.messages import Results
from mwpy.audit import KEPT, AuditFile, End, Level, read_ends, text_of

SID = SlaveId("SLAVE-0")
ONE = [records.TaskRange(1, 1, 1, 0, "max")]
RESULT = Results(1, [1], [1], [1], [0.5], [])
TASKS = [*ONE, records.TaskRange(2, 6, 1, 0, "max")]
TEXTS: list[tuple[records.Record, str]] = [
    (records.Started("MASTER", "m", "at 1"), 'INIT MASTER "m" at 1'),
    (records.AgentAway("A", "why"), "A -> away: why"),
    (records.AgentBack("A", "addr"), "A addr -> back"),
    (
        records.Total("f", "n", 2, 1, 0.5, 0.25, {"crash": 1, "time limit": 2}, 3.0),
        "TOTAL f on n: 2 tasks, 1 failed, 0.5 s, longest 0.250 s; lost 3 attempts, 3.0 s, 1 crash, 2 time limit",
    ),
    (records.LossesExplained("A", [SID], Cause.SUSPENDED, "why"), "A was not lost but suspended: why"),
    (
        records.SlaveEnded(SID, Cause.CRASH, "why", "task 1 (f), attempt 2", LastWords("a\tb", "ow\\\n", "", 3 << 20)),
        "SLAVE-0 -> gone while it ran task 1 (f), attempt 2, crash: why; peak memory 3.0 MiB"
        "\tstderr: ow\\\\\\n\tstdout: a\\tb",
    ),
    (records.HostExcluded("node1", "host node1 gets no more work: why"), "EXCLUDED host node1 gets no more work: why"),
    (records.HostReadmitted("node1"), "READMITTED host node1"),
    (records.PackagesCompared("A", ["p 1", "q 2"], ["r 3, not 2"]), "A has as the master p 1, q 2; r 3, not 2"),
    (records.PackagesCompared("A", [], ["q missing, not 2"]), "A has q missing, not 2"),
    (
        records.ResultsReused([records.ReusedTasks(1, 2, 0, "max", b"", [5, 6], [0, 0])]),
        "REUSED 2 stored results (task 1 (max), task 2 (max))",
    ),
    (records.ResultsHandedOver("AGENT-3", "b", 2, SID, RESULT, ()), "AGENT-3 -> 1 result of SLAVE-0 in generation 2"),
    (records.TasksAnswered(None, ONE, RESULT, ()), "ANSWERED by an earlier generation: task 1 (max)"),
    (
        records.TasksReturned(SID, ONE, "why", (records.Charge(SID, Cause.OUT_OF_MEMORY, "what", 3 << 20),)),
        "SLAVE-0 -> 1 task back (task 1 (max)), out of memory, may use 3.0 MiB now: why",
    ),
    (records.TaskCheckpointed(SID, ONE[0], [b"x" * 2000, b"y" * 48]), "SLAVE-0 -> state of task 1 (max), 2.0 KiB"),
    (records.AgentSetUp("AGENT-0", 2.04), "AGENT-0 -> set up in 2.0 s"),
    (records.AgentOffered("AGENT-0", {"gs": "/bin/gs", "tex": ""}), "AGENT-0 has gs: /bin/gs, no tex"),
    (records.OtherValues(7, "code", "RATE"), "OTHER VALUES of RATE in slaves"),
    (records.TasksAwaited(ONE), "AWAITED task 1 (max)"),
    (records.ResultGiven(1, [b"abc"], "", 0), "HELD for later tasks: the result of task 1, 3 bytes"),
    (records.ResultGiven(1, [], "it failed", 1), "HELD for later tasks: the result of task 1, it failed"),
    (records.SlaveStarted(1, 7), "SLAVE PROCESS 1 started, pid 7"),
    (records.SlaveNamed(1, SID), "SLAVE PROCESS 1 is SLAVE-0"),
    (records.TasksReceived(SID, 1), "SLAVE-0 <- 1 task"),
    (records.ResultsSent(SID, 2), "SLAVE-0 -> 2 results"),
    (records.TasksSubmitted([span(1, MAX, 7).facts()]), ""),
]
"""The stories in `tests/scenarios` show the texts of all other records."""


@pytest.mark.parametrize(("record", "text"), TEXTS)
def test_the_text_of_a_record(record: records.Record, text: str) -> None:
    assert text_of(record) == text


def test_every_kind_of_record_except_three_has_a_text() -> None:
    silent = {records.AlgorithmDefined, records.AlgorithmsForgotten, records.AgentLeaving}
    assert {*records.Record.__subclasses__()} - {*audit._TEXTS} == silent


def write(file: AuditFile, *happened: records.Record) -> None:
    """Write records that happened half a second after the beginning of 1970, and close the file."""
    file.write(happened, 0.5)
    file.close()


def test_a_record_with_line_breaks_is_one_line_with_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    write(AuditFile("-"), records.Notice("a\nb\\\r"), records.TasksSubmitted([span(1, MAX, 7).facts()]))
    shown = capsys.readouterr()
    assert shown.out == "1970-01-01T00:00:00.500Z [A] NOTICE a\\nb\\\\\\r\n"
    assert shown.err == "mwpy: a\n  b\\\\r\n"


def test_a_text_of_a_member_neither_changes_the_terminal_nor_looks_like_a_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Such a text is in a notice if, for example, an agent has another version of Python."""
    write(AuditFile(), records.Notice("runs \x1b]0;owned\x07\x1b[31m\u202e\nmwpy: a forged line\tend"))
    shown = capsys.readouterr().err
    assert shown == "mwpy: runs \\x1b]0;owned\\x07\\x1b[31m\\u202e\n  mwpy: a forged line\tend\n"


def test_without_a_file_only_notices_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    write(AuditFile(), records.Notice("n"), records.AgentLeft("A", "why"))
    assert capsys.readouterr() == ("", "mwpy: n\n")


def test_standard_error_shows_what_a_person_wants_to_see(capsys: pytest.CaptureFixture[str]) -> None:
    """A slave that died during a task is shown. A slave that ended without a task is not, and no group of tasks is.

    A notice is shown once.
    """
    died = records.SlaveEnded(SID, Cause.CRASH, "killed", "task 12 (max), attempt 1", NO_WORDS)
    ended = records.SlaveEnded(SID, Cause.CRASH, "exit code 0", "", NO_WORDS)
    groups = records.TasksAllocated(SID, TASKS)
    write(AuditFile(shows_events=True), records.AgentLeft("A", "why"), groups, died, ended, records.Notice("n"))
    assert capsys.readouterr() == (
        "",
        "mwpy: n\n"
        "1970-01-01T00:00:00.500Z [A] A -> left: why\n"
        "1970-01-01T00:00:00.500Z [A] SLAVE-0 -> gone while it ran task 12 (max), attempt 1, crash: killed\n",
    )


def test_a_file_has_a_line_for_each_group_unless_only_events_are_wanted(tmp_path: Path) -> None:
    happened = (records.AgentLeft("A", "why"), records.TasksAllocated(SID, TASKS))
    write(AuditFile(tmp_path / "groups"), *happened)
    write(AuditFile(tmp_path / "events", Level.EVENTS), *happened)
    assert (tmp_path / "groups").read_text().splitlines()[1].endswith("SLAVE-0 <- 7 tasks")
    assert len((tmp_path / "events").read_text().splitlines()) == 1


def test_a_full_file_is_rotated_and_four_old_files_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.audit"
    file = AuditFile(path, max_bytes=10)
    for number in range(8):
        file.write([records.AgentLeft("A", str(number))], 0.0)
    file.close()
    files = [path, *(tmp_path / f"x.audit.{n}" for n in range(1, KEPT + 1))]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert [file.read_text()[-2] for file in files] == ["7", "6", "5", "4", "3"]


def test_an_existing_file_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "x.audit"
    path.write_text("old\n")
    write(AuditFile(path), records.AgentLeft("A", "why"))
    assert path.read_text().startswith("old\n1970-")


def test_an_unwritable_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write the audit file .*--mw-audit-file"):
        AuditFile(tmp_path / "missing" / "x.audit")


def test_a_failed_write_is_reported_once_and_raises_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    file = AuditFile("-")
    for _ in range(2):
        file.write([records.AgentLeft("A", "why")], 0.0)
    file.close()
    assert capsys.readouterr().err.count("lines are missing in the audit file") == 1


def test_a_pipe_that_nobody_reads_stops_no_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no room is left out. When the pipe is read again, a line says how many lines are missing."""
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as stream, os.fdopen(read_end, encoding="utf-8") as reader:
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "__stdout__", stream)
        file = AuditFile("-")
        long = records.AgentLeft("A", "x" * 100_000)
        for _ in range(100):
            file.write([long], 0.0)
        lines = iter(reader)
        for _ in range(20):
            next(lines)
        while True:  # until the thread has written enough that there is room again
            file.write([records.AgentLeft("B", "later")], 0.0)
            if " lines are missing here" in (line := next(lines)):
                break
        assert int(line.split(" lines")[0].rpartition(" ")[2]) > 10
        file.close()


# ---- reading the file -----------------------------------------------------------------------------------------------

AWKWARD = "".join(map(chr, range(256))) + "\\n\\\\t\\x41\u2028\u2029\ud800é€😀\r\n\tstderr: no\n"


def test_last_words_are_read_back_exactly(tmp_path: Path) -> None:
    """Each record is one line, whatever the slave wrote. Rotation loses none, and no other record counts as an end."""
    path = tmp_path / "x.audit"
    ends = [
        records.SlaveEnded(
            SID, Cause.CRASH, "why: \t\\ it", "task 12 (a: b, attempt), attempt 2", LastWords(AWKWARD, AWKWARD, "", 3)
        ),
        records.SlaveEnded(SlaveId("AGENT-0/1"), Cause.CRASH, "before", "", LastWords("", "", AWKWARD)),
        records.SlaveEnded(SID, Cause.CRASH, "exit code 0", "", NO_WORDS),
    ]
    file = AuditFile(path, max_bytes=200)
    file.write(
        [records.AgentLeft("A", "SLAVE-9 -> gone: no"), records.AgentLost("A -> gone", "no", Cause.AGENT_LOST)], 0.0
    )
    for end in ends:
        file.write([end], 0.0)
    file.close()
    assert len(list(tmp_path.iterdir())) > 2
    lines = [line for part in tmp_path.iterdir() for line in part.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 5
    time = "1970-01-01T00:00:00.000Z"
    assert list(read_ends(path)) == [
        End(
            *(time, SID, "why: \t\\ it", "task 12 (a: b, attempt), attempt 2", "crash"),
            *(12, "3 bytes", LastWords(AWKWARD, AWKWARD)),
        ),
        End(time, "AGENT-0/1", "before", "", "", 0, "", LastWords("", "", AWKWARD)),
        End(time, SID, "exit code 0", "", "", 0, "", NO_WORDS),
    ]


def test_a_missing_audit_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the audit file .*No such file.*--mw-audit-file FILE"):
        list(read_ends(tmp_path / "x.audit"))


def test_a_line_that_was_cut_stays_a_line_of_its_own(tmp_path: Path) -> None:
    """The file can take some bytes of a line before the disk is full. Later lines say how many lines are missing."""
    path = tmp_path / "x"
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    reports: list[Exception] = []
    writer = WholeLines(RotatedFile(path, 1 << 20, 1).put, "{} are missing\n".format, reports.append)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, old[1]))
        writer.write("12345\n67890\nabc\n")
        writer.write("lost\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    writer.write("whole\n")
    assert path.read_text().splitlines() == ["12345", "6789", "3 are missing", "whole"]
    assert len(reports) == 1
