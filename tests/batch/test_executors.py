"""`mwpy.Executor` with real batch systems: it submits its slaves itself, computes on them, and leaves no job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.batch.systems import until
from tests.batch.test_oversee_htcondor import Desk
from tests.batch.test_oversee_slurm import SlurmDesk
from tests.systems.condor import CondorPool
from tests.systems.slurm import SlurmNode

SCRIPT = """
import os
import sys

import mwpy

SCALE = 7


def scaled(number, variable):
    return SCALE * number, variable in os.environ


system, variable, *options = sys.argv[1:]
with mwpy.Executor(
    resource_file="executor.rsc", system=system, max_jobs=2, overseer_options=["--interval", "0.5", *options]
) as executor:
    futures = [executor.submit(scaled, number, variable) for number in range(50)]
    print("values:", [future.result() for future in futures] == [(7 * number, True) for number in range(50)])
"""

SMALL = ("--memory", "200MB", "--disk", "20MB")


@pytest.fixture
def condor_desk(condor: CondorPool, pool_dir: Path) -> Iterator[Desk]:
    desk = Desk(condor, pool_dir)
    yield desk
    desk.end()


@pytest.fixture
def slurm_desk(slurm: SlurmNode, slurm_dir: Path) -> Iterator[SlurmDesk]:
    desk = SlurmDesk(slurm, slurm_dir)
    yield desk
    desk.end()


def compute(desk: Desk, *words: str) -> None:
    """Run the script, whose tasks see a variable that only jobs of the batch system have."""
    (desk.folder / "script.py").write_text(SCRIPT)
    run = desk.start(desk.folder / ".venv/bin/python", "script.py", *words)
    log = desk.folder / "executor.rsc.overseer"
    assert run.end() == 0, run.out
    assert run.out == "values: True\n", log.read_text()
    assert "submits" in log.read_text()
    until(lambda: desk.queue() == [], "no job left")


def test_an_executor_computes_in_htcondor(condor_desk: Desk) -> None:
    compute(condor_desk, "htcondor", "_CONDOR_SCRATCH_DIR", *SMALL)


def test_an_executor_computes_in_slurm(slurm_desk: SlurmDesk) -> None:
    compute(slurm_desk, "slurm", "SLURM_JOB_ID")
