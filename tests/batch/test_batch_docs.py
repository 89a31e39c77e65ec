"""Every command of docs/clusters is run in its batch system."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.batch.condor_jobs import Jobs
from tests.batch.packing import OF_THE_POOL
from tests.batch.systems import until
from tests.batch.test_condor_packed import nothing_shared
from tests.integration.test_docs import BY_HAND, Block, blocks, faults, sections
from tests.systems.condor import CondorPool
from tests.systems.namespace import run
from tests.systems.sge import SgeNode
from tests.systems.slurm import SlurmNode
from tests.systems.system import ROOT

TEXTS = {
    name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("clusters/htcondor", "clusters/slurm", "clusters/others")
}
OTHERS = sections(TEXTS["clusters/others"])
SCRIPT = next(block for block in blocks(TEXTS["clusters/htcondor"]) if block.is_file)
"""The script of all pages."""

PACKING_S = 300.0
"""Time limit for packing. The package index may be slow."""

SHARED_NOTHING = "Machines that share no files"
"""The section of the page on HTCondor whose commands run where jobs see neither the folder nor mwpy."""


def follow(system: Callable[..., subprocess.CompletedProcess[str]], folder: Path, text: str) -> None:
    """Run all blocks of a text, each as one script, as in a terminal. It must succeed and print the lines shown.

    A block that packs runs on this machine, where pip knows a package index.
    """
    path = f"PATH={folder}/.venv/bin:$PATH"
    for block in blocks(text):
        if block.is_file:
            write(folder, block)
            continue
        script = block.text if block.language == "sh" else shlex.join(["python", "-c", block.text])
        on = outside if script.startswith("mwpy pack ") else system
        done = on("bash", "-ec", f"{path}\n{script}", cwd=folder, check=False)
        story = f"{script}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, f"exit code {done.returncode} of {story}"
        missing = [line for line in block.output.splitlines() if line not in done.stdout.splitlines()]
        assert not missing, f"{missing} was not printed by {story}"


def without_a_clone(folder: Path) -> Path:
    """Remove the files of a clone from a folder. Its environment stays."""
    for name in ("condor", "slurm", "examples"):
        shutil.rmtree(folder / name)
    return folder


def write(folder: Path, block: Block) -> None:
    """Save a file that a document shows."""
    path = folder / str(block.name)
    path.write_text(block.text, encoding="utf-8")
    path.chmod(0o644)


def outside(*words: str, cwd: Path, check: bool) -> subprocess.CompletedProcess[str]:
    """Run a command on this machine."""
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=PACKING_S, check=check)


def test_the_commands_for_htcondor_work(condor: CondorPool, pool_dir: Path) -> None:
    """They lead from an empty folder to a finished computation, several times. No job is left."""
    jobs = Jobs(condor, pool_dir)
    parts = sections(TEXTS["clusters/htcondor"])
    del parts[SHARED_NOTHING]
    follow(condor, without_a_clone(pool_dir), "\n".join(parts.values()))
    until(lambda: not jobs.queue(), lambda: f"no job left, but {jobs.queue()}")


def test_the_commands_for_slurm_work(slurm: SlurmNode, slurm_dir: Path) -> None:
    """They lead from an empty folder to a finished computation, several times. No job is left."""

    def jobs() -> list[str]:
        return [line for line in slurm("squeue", "-h", "-o", "%i %j %Z").stdout.splitlines() if str(slurm_dir) in line]

    write(slurm_dir, SCRIPT)
    follow(slurm, without_a_clone(slurm_dir), TEXTS["clusters/slurm"])
    until(lambda: not jobs(), lambda: f"no job left, but {jobs()}")


def test_the_commands_for_grid_engine_work(sge: SgeNode, sge_dir: Path) -> None:
    """The commands use the script of another page."""
    write(sge_dir, SCRIPT)
    follow(sge, sge_dir, OTHERS["Grid Engine"])


def test_packed_files_run_in_htcondor_where_nothing_is_shared(jobs: Jobs) -> None:
    """The machines of the pool have Python, and neither mwpy nor the files of the user."""
    write(jobs.folder, SCRIPT)
    with nothing_shared(jobs):
        assert jobs.pool(OF_THE_POOL, "-c", "import mwpy", check=False).returncode == 1
        follow(jobs.pool, jobs.folder, sections(TEXTS["clusters/htcondor"])[SHARED_NOTHING])
    rows = (jobs.folder / "pool" / "results.csv").read_text().splitlines()
    assert len(rows) == 51
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
