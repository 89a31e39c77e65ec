"""Every command of docs/clusters and of docs/guides/program-on-htcondor.md is run in its batch system."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.batch.condor_jobs import Jobs
from tests.batch.packing import OF_THE_POOL
from tests.batch.systems import until
from tests.batch.test_condor_packed import nothing_shared
from tests.integration.test_docs import BY_HAND, blocks, faults, sections
from tests.systems.condor import CondorPool
from tests.systems.debian import install
from tests.systems.namespace import run
from tests.systems.sge import SgeNode
from tests.systems.slurm import SlurmNode
from tests.systems.system import ROOT

TEXTS = {
    name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("clusters/htcondor", "clusters/slurm", "clusters/others", "guides/program-on-htcondor")
}
OTHERS = sections(TEXTS["clusters/others"])

CANNOT_RUN = {
    "make ping": "what it makes is there already, made by the fixture",
    "sudo apt-get install nec2c gnuplot-nox": "the test installs them, as root",
    "python3 -m venv .venv": "the fixture has made it",
    ".venv/bin/pip install 'mwpy-cluster[htcondor,pack]'": "it needs a package index",
}
"""Commands that are shown but not run, and why."""

PACKING_S = 300.0
"""Time limit for packing. The package index may be slow."""

REST = "The useful number of slaves changes"
"""A section begins with a first computation, and with the commands that stop one. Then this text follows."""


def follow(system: Callable[..., subprocess.CompletedProcess[str]], folder: Path, text: str) -> None:
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
    text = TEXTS["clusters/htcondor"]
    jobs = Jobs(condor, pool_dir)
    follow(condor, pool_dir, text.partition(REST)[0])
    until(lambda: not jobs.queue(), lambda: f"no job left, but {jobs.queue()}")
    follow(condor, pool_dir, text)


def test_the_commands_for_slurm_work(slurm: SlurmNode, slurm_dir: Path) -> None:
    """They lead from an empty folder to a finished computation, also the second time. Stopped jobs leave the queue."""
    text = TEXTS["clusters/slurm"]

    def jobs() -> list[str]:
        return [line for line in slurm("squeue", "-h", "-o", "%i %j %Z").stdout.splitlines() if str(slurm_dir) in line]

    follow(slurm, slurm_dir, text.partition(REST)[0])
    until(lambda: not jobs(), lambda: f"no job left, but {jobs()}")
    follow(slurm, slurm_dir, text)


def test_the_commands_for_grid_engine_work(sge: SgeNode, sge_dir: Path) -> None:
    """The commands use the script of an earlier section."""
    [script] = [block for block in blocks(TEXTS["clusters/slurm"]) if block.is_file]
    (sge_dir / str(script.name)).write_text(script.text)
    follow(sge, sge_dir, OTHERS["Grid Engine"])


def test_the_commands_of_the_tutorial_for_programs_work_here_and_in_htcondor(jobs: Jobs) -> None:
    """The machines of the pool have Python, and neither the program nor mwpy nor the files of the user."""
    install("nec2c", "gnuplot-nox")
    parts = sections(TEXTS["guides/program-on-htcondor"])
    packing, in_the_pool, comparison = (
        parts.pop(title) for title in ("One file for other machines", "In HTCondor", "The same results")
    )
    with ThreadPoolExecutor() as beside:
        packed = beside.submit(follow, outside, jobs.folder, packing)  # it takes as long as all of the rest
        follow(outside, jobs.folder, "\n".join(parts.values()))
        packed.result()
    assert "sea water" in (jobs.folder / "resistance.svg").read_text()
    with nothing_shared(jobs):
        assert jobs.pool(OF_THE_POOL, "-c", "import mwpy", check=False).returncode == 1
        follow(jobs.pool, jobs.folder, in_the_pool)
    follow(outside, jobs.folder, comparison)
    until(lambda: not jobs.queue(), lambda: f"no job left, but {jobs.queue()}")


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


@pytest.mark.parametrize("document", TEXTS)
def test_all_shown_code_is_run(document: str) -> None:
    """All code is in fenced blocks of a language that is run."""
    assert not list(faults(TEXTS[document]))
