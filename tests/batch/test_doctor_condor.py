"""`mwpy doctor --with htcondor` in a real pool, and packed applications on the pool's own Python, which has nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.batch.systems import ROOT, System, until
from tests.batch.test_oversee_htcondor import Desk, Run

BARE = "/usr/bin/python3"
"""The Python of the pool's own system."""


@pytest.fixture
def desk(condor: System, pool_dir: Path) -> Iterator[Desk]:
    desk = Desk(condor, pool_dir)
    yield desk
    desk.end()


def doctor(desk: Desk, *words: object, file: Path | None = None) -> Run:
    options = ("--with", "htcondor", "--memory", "200MB", "--disk", "200MB")
    return desk.start(desk.folder / ".venv/bin/mwpy", "doctor", file or desk.resource, *options, *words)


def faults(run: Run) -> list[str]:
    """What it called a fault; without the rest of what is long."""
    assert run.end() == 1, run.out
    return re.findall(r"^FAULT +(.+)$", run.out, re.MULTILINE)


def test_a_healthy_computation_is_told_of_as_such(desk: Desk) -> None:
    """One process here and one job in the queue tell what they find, and leave; the master sees them come and go."""
    master = desk.master()
    run = doctor(desk)
    assert run.end() == 0, run.out
    assert run.out.endswith("all is well\n")
    assert re.search(r"^ok +master: let it in as AGENT-1; there and back in [\d.]+ ms$", run.out, re.MULTILINE)
    assert re.search(r"^job \d+\.0 is submitted$", run.out, re.MULTILINE)
    until(lambda: "AGENT-1 -> left: it was an examination" in master.out, "its leaving in the audit trail")
    assert desk.queue() == []


def test_what_is_wrong_there_is_told_of(desk: Desk) -> None:
    """A stale resource file; a Python that has no mwpy; a file that is missing, for which the job is held."""
    desk.master()
    stale = desk.folder / "stale.rsc"
    stale.write_text(json.dumps({**desk.told(), "generation": "earlier"}))
    stale.chmod(0o644)
    runs = [
        doctor(desk, file=stale),
        doctor(desk, "--command", f"{BARE} -m mwpy slave waves.py"),
        doctor(desk, "--transfer", desk.folder / "missing.dat"),
    ]
    told = [faults(run) for run in runs]
    assert [len(each) for each in told] == [1, 1, 1], told
    assert told[0][0].startswith("master: did not let it in: ")
    assert told[1][0].startswith("job: it told nothing: exit code 1.")
    assert "No module named mwpy" in runs[1].out
    assert told[2][0].startswith("job: it is held: ")
    assert "missing.dat" in told[2][0]
    until(lambda: desk.queue() == [], lambda: f"no job left, but {desk.queue()}")


def test_packed_agents_serve_on_a_bare_python_of_another_version(desk: Desk) -> None:
    """Packed here for the pool's Python; the file is carried to the job, and is all that the job has."""
    master = desk.master()
    version = desk.pool(BARE, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").stdout.strip()
    packed = desk.folder / "waves.pex"
    app = ROOT / "tests" / "integration" / "apps" / "waves.py"
    done = subprocess.run(
        [sys.executable, "-m", "mwpy", "pack", app, "--python", version, "-o", packed],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    options = ("--command", f"{BARE} {packed}", "--transfer", packed)
    found = doctor(desk, *options)
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert [each.split(" ")[0] for each in faults(found)] == ([] if version == own else ["Python:"]), found.out
    assert re.search(rf"^(FAULT|ok) +Python: {version}\.", found.out, re.MULTILINE)
    assert re.search(r"^ok +application: imported; its packages: .*pyzmq", found.out, re.MULTILINE)

    desk.order("tasks 2 go")
    overseer = desk.oversee("--max", 1, *options)
    desk.until_jobs(1)
    (desk.folder / "go").touch()
    desk.order("return 0")
    assert (master.end(), overseer.end()) == (0, 0), overseer.out
    if version != own:
        assert f"has Python {version}, the master {own}: " in master.out
