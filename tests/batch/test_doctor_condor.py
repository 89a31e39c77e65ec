"""`mwpy doctor --with htcondor` in a real pool, and packed applications on the pool's Python without packages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.batch.systems import until
from tests.batch.test_oversee_htcondor import Desk, Run
from tests.systems.condor import CondorPool

BARE = "/usr/bin/python3"
"""The Python of the pool's Debian."""


@pytest.fixture
def desk(condor: CondorPool, pool_dir: Path) -> Iterator[Desk]:
    desk = Desk(condor, pool_dir)
    yield desk
    desk.end()


def doctor(desk: Desk, *words: object, file: Path | None = None) -> Run:
    options = ("--with", "htcondor", "--memory", "200MB", "--disk", "200MB")
    return desk.start(desk.folder / ".venv/bin/mwpy", "doctor", file or desk.resource, *options, *words)


def faults(run: Run) -> list[str]:
    """Return the lines in which the doctor reports faults, shortened."""
    assert run.end() == 1, run.out
    return re.findall(r"^FAULT +(.+)$", run.out, re.MULTILINE)


def test_the_doctor_finds_no_fault_in_a_healthy_computation(desk: Desk) -> None:
    """One local process and one job examine it and leave. The master sees both connect and leave."""
    master = desk.master()
    run = doctor(desk, "--line", "allowed_execute_duration = 599")
    assert run.end() == 0, run.out
    assert run.out.endswith("all is well\n")
    assert re.search(r"^ok +master: accepted it as AGENT-1; round trip [\d.]+ ms$", run.out, re.MULTILINE)
    assert re.search(r"^ok +time left: 5\d\d s$", run.out, re.MULTILINE), run.out
    assert re.search(r"^job \d+\.0 is submitted$", run.out, re.MULTILINE)
    until(lambda: "AGENT-1 -> left: it was an examination" in master.out, "its leaving in the audit trail")
    assert desk.queue() == []


@pytest.mark.long
def test_the_doctor_reports_faults_of_jobs(desk: Desk) -> None:
    """A stale resource file, a Python without mwpy, and a missing file for which the job is held."""
    desk.master()
    stale = desk.folder / "stale.rsc"
    stale.write_text(json.dumps({**desk.report(), "generation": "earlier"}))
    stale.chmod(0o644)
    runs = [
        doctor(desk, file=stale),
        doctor(desk, "--command", f"{BARE} -m mwpy slave waves.py"),
        doctor(desk, "--transfer", desk.folder / "missing.dat"),
    ]
    report = [faults(run) for run in runs]
    assert [len(each) for each in report] == [1, 1, 1], report
    assert report[0][0].startswith("master: did not accept it: ")
    assert report[1][0].startswith("job: there is no report: exit code 1.")
    assert "No module named mwpy" in runs[1].out
    assert report[2][0].startswith("job: it is held: ")
    assert "missing.dat" in report[2][0]
    until(lambda: desk.queue() == [], lambda: f"no job left, but {desk.queue()}")
