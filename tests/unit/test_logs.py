"""`mwpy logs` shows which slaves died, and their last output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mwpy import cli
from mwpy._values import records
from mwpy._values.bounds import SlaveId
from mwpy._values.causes import Cause
from mwpy._values.last_words import NO_WORDS, LastWords
from mwpy.audit import AuditFile

SOURCE = str(Path(__file__).parents[2] / "src")
LONG = "".join(f"line {number}\n" for number in range(100))


@pytest.fixture
def path(tmp_path: Path) -> str:
    audit = AuditFile(tmp_path / "x.audit")
    ended = [
        (0, "SLAVE-0", "killed", "task 7 (f), attempt 1", LastWords(LONG, "ow", "Fatal\n", 3 << 20)),
        (1, "SLAVE-1", "exit code 0", "", LastWords("asked to leave\n", peak_bytes=1 << 30)),
        (1, "SLAVE-3", "replaced after 10 tasks", "", NO_WORDS),
        (2, "SLAVE-2", "exit code 1\nof two lines", "task 7 (f), attempt 2", NO_WORDS),
    ]
    for time, sid, cause, running, words in ended:
        audit.write([records.SlaveEnded(SlaveId(sid), Cause.CRASH, cause, running, words)], time)
    audit.close()
    return str(tmp_path / "x.audit")


DEATHS = [
    "1970-01-01T00:00:00.000Z SLAVE-0         3.0 MiB  killed while it ran task 7 (f), attempt 1, crash",
    "1970-01-01T00:00:02.000Z SLAVE-2               -  exit code 1 ... while it ran task 7 (f), attempt 2, crash",
]
LEFT = "1970-01-01T00:00:01.000Z SLAVE-1         1.0 GiB  exit code 0"
REPLACED = "1970-01-01T00:00:01.000Z SLAVE-3               -  replaced after 10 tasks"


def test_without_an_id_it_lists_the_slaves_that_died(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["logs", path]) == 0
    assert capsys.readouterr().out.splitlines() == DEATHS
    assert cli.main(["logs", "--all", path]) == 0
    assert capsys.readouterr().out.splitlines() == [DEATHS[0], LEFT, REPLACED, DEATHS[1]]


def test_with_the_id_of_a_slave_it_prints_its_last_output(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["logs", path, "SLAVE-0"]) == 0
    assert capsys.readouterr().out == f"{DEATHS[0]}\nfault:\nFatal\nstderr:\now\nstdout:\n{LONG}"


@pytest.mark.parametrize("name", ["7", "task 7"])
def test_with_the_number_of_a_task_it_prints_all_slaves_that_died_while_running_it(
    path: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["logs", path, name]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(DEATHS[0])
    assert shown.endswith(f"{DEATHS[1]}\n(no output is known)\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([], "the following arguments are required: AUDIT_FILE"),
        (["a", "b", "c"], "unrecognized arguments: c; `mwpy logs --help` shows the options"),
        (["a", "--every"], "unrecognized arguments: --every"),
        (["no.audit"], "cannot read the audit file no.audit: No such file"),
        (["."], "cannot read the audit file .: Is a directory"),
        (["FILE", "SLAVE-7"], "contains no end of a slave SLAVE-7: `mwpy logs "),
        (["FILE", "8"], "contains no slave that ended while it ran task 8"),
    ],
)
def test_a_fault_prints_one_line(path: str, line: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["logs", *(path if each == "FILE" else each for each in line)]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("mwpy: ")
    assert message in printed
    assert printed.count("\n") == 1


def test_an_audit_file_without_deaths_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    AuditFile(tmp_path / "x.audit").close()
    assert cli.main(["logs", str(tmp_path / "x.audit")]) == 0
    assert capsys.readouterr().err == f"mwpy: no slave died, according to {tmp_path / 'x.audit'}\n"


@pytest.mark.parametrize("content", [b"SQLite format 3\0 and more", b"a text"])
def test_another_file_than_an_audit_file_is_an_error(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.db"
    path.write_bytes(content)
    assert cli.main(["logs", str(path)]) == 2
    assert f"{path} is not an audit file: a computation writes one" in capsys.readouterr().err


def test_scripts_read_the_totals_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is a list with one object for each algorithm on each host. Other output is no JSON."""
    audit = AuditFile(tmp_path / "x.audit")
    audit.write([records.Total("f", "node1", 10, 1, 2.5, 0.5, {"crash": 2}, 1.5)], 0.0)
    audit.close()
    assert cli.main(["logs", str(tmp_path / "x.audit"), "--stats", "--json"]) == 0
    [total] = json.loads(capsys.readouterr().out)
    assert (total["algorithm"], total["host"], total["tasks"], total["lost"]) == ("f", "node1", 10, {"crash": 2})
    assert cli.main(["logs", str(tmp_path / "x.audit"), "--json"]) == 2
    assert capsys.readouterr().err.startswith("mwpy: --json is for --stats")


def test_a_closed_pipe_is_not_an_error(path: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "mwpy", "logs", path, "7"],
        stdout=writing,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": SOURCE},
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
