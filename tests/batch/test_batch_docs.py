"""Every command that docs/batch-systems.md shows is run in its batch system, as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.batch.condor_jobs import Jobs
from tests.batch.systems import until
from tests.integration.test_docs import BY_HAND, blocks, faults, sections
from tests.systems.condor import CondorPool
from tests.systems.namespace import run
from tests.systems.slurm import SlurmNode
from tests.systems.system import ROOT, System

TEXT = (ROOT / "docs" / "batch-systems.md").read_text(encoding="utf-8")
SECTIONS = sections(TEXT)

CANNOT_RUN = {"make ping": "what it makes is there already, made by the fixture"}
"""Commands that are shown but not run, and why."""

PACKING_S = 300.0
"""Time limit for packing. The package index may be slow."""

REST = "The useful number of slaves changes"
"""A section begins with a first computation, and with the commands that stop one. Then this text follows."""


def follow(system: System, folder: Path, text: str) -> None:
    """Run all commands of a section. Each must succeed and print the lines that are shown."""
    for block in blocks(text):
        if block.is_file:
            path = folder / str(block.name)
            path.write_text(block.text, encoding="utf-8")
            path.chmod(0o644)
        for command in block.commands():
            if command.line in CANNOT_RUN:
                continue
            on = outside if command.words[1:2] == ["pack"] else system
            done = on("bash", "-c", command.line, cwd=folder, check=False)
            story = f"{command.line}\n{done.stdout}{done.stderr}"
            assert done.returncode == 0, f"exit code {done.returncode} of {story}"
            missing = [line for line in command.shown if line not in done.stdout.splitlines()]
            assert not missing, f"{missing} was not printed by {story}"


def outside(*words: str, cwd: Path, check: bool) -> subprocess.CompletedProcess[str]:
    """Run a command on this machine, where pip knows a package index."""
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=PACKING_S, check=check)


def test_the_commands_for_htcondor_work(condor: CondorPool, pool_dir: Path) -> None:
    """They lead from an empty folder to a finished computation, also the second time. Stopped jobs leave the queue."""
    text = SECTIONS["HTCondor"]
    jobs = Jobs(condor, pool_dir)
    follow(condor, pool_dir, text.partition(REST)[0])
    until(lambda: not jobs.queue(), lambda: f"no job left, but {jobs.queue()}")
    follow(condor, pool_dir, text)


def test_the_commands_for_slurm_work(slurm: SlurmNode, slurm_dir: Path) -> None:
    """They lead from an empty folder to a finished computation, also the second time. Stopped jobs leave the queue."""
    text = SECTIONS["Slurm"]

    def jobs() -> list[str]:
        return [line for line in slurm("squeue", "-h", "-o", "%i %j %Z").stdout.splitlines() if str(slurm_dir) in line]

    follow(slurm, slurm_dir, text.partition(REST)[0])
    until(lambda: not jobs(), lambda: f"no job left, but {jobs()}")
    follow(slurm, slurm_dir, text)


@pytest.mark.long
@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "tests/systems/README.md"])
def test_the_commands_for_a_condor_pool_by_hand_work(condor: CondorPool, document: str) -> None:
    """The pool is already up, and stays up while these tests use it."""
    [shown] = [text for title, text in sections((ROOT / document).read_text()).items() if BY_HAND in title.lower()]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for block in blocks(shown):
        for command in block.commands():
            run(["sh", "-c", f"PATH={path}; {command.line}"], cwd=ROOT)
    assert condor.is_up


def test_all_shown_code_is_run() -> None:
    """All code is in fenced blocks of a language that is run."""
    assert not list(faults(TEXT))
