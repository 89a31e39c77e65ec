"""Every command that docs/batch-systems.md shows is run in its batch system, as a user would."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.integration.test_docs import blocks, faults
from tests.systems.condor import CondorPool
from tests.systems.slurm import SlurmNode
from tests.systems.system import ROOT, System

TEXT = (ROOT / "docs" / "batch-systems.md").read_text(encoding="utf-8")
SECTIONS = {part.split("\n", 1)[0]: part for part in TEXT.split("\n## ")[1:]}

CANNOT_RUN = {"make ping": "what it makes is there already, made by the fixture"}
"""The commands that are shown and not run, and why."""

PACKING_S = 300.0
"""Packages come from an index, which may be slow."""


def follow(system: System, folder: Path, text: str) -> None:
    """Do all that a section shows, and see that each command succeeds and prints what is shown."""
    for block in blocks(text):
        if block.is_script:
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
    """Run a command on this machine, whose pip knows where packages are to be had."""
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=PACKING_S, check=check)


def test_what_is_shown_of_htcondor_works(condor: CondorPool, pool_dir: Path) -> None:
    """A user comes from nothing to a finished computation."""
    follow(condor, pool_dir, SECTIONS["HTCondor"])


def test_what_is_shown_of_slurm_works(slurm: SlurmNode, slurm_dir: Path) -> None:
    """A user comes from nothing to a finished computation."""
    follow(slurm, slurm_dir, SECTIONS["Slurm"])


def test_no_code_escapes() -> None:
    """All code stands in fenced blocks that are run."""
    assert not list(faults(TEXT))
