"""`mwpy.Executor` and `mwpy sweep` with real batch systems: they submit slaves, compute on them, and leave no job."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.batch.systems import until
from tests.batch.test_oversee_htcondor import Desk
from tests.batch.test_oversee_sge import SgeDesk
from tests.batch.test_oversee_slurm import SlurmDesk
from tests.batch.test_oversee_ssh import SshDesk
from tests.systems.condor import CondorPool
from tests.systems.sge import SgeNode
from tests.systems.slurm import SlurmNode
from tests.systems.ssh import SshNode

from mwpy import ExitCode

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


STUDY = """
command = "sh run.sh {alpha} grid.dat"
inputs = ["run.sh", "grid.dat"]
templates = { "config.ini" = "config.in" }
outputs = ["out.txt", "STDOUT"]
values = { alpha = "0..1..0.25", word = ["a b", "it's"] }
results = { sum = "sum (.*)", config = { file = "out.txt", pattern = "c=(.*)" } }
collect = [{ to = "all.txt", form = "blocks" }]
"""


def compute(desk: Desk, *words: str) -> None:
    """Run the script, whose tasks see a variable that only jobs of the batch system have."""
    (desk.folder / "script.py").write_text(SCRIPT)
    run = desk.start(desk.folder / ".venv/bin/python", "script.py", *words)
    log = desk.folder / "executor.rsc.overseer"
    assert run.end() == 0, run.out
    assert run.out == "values: True\n", log.read_text()
    assert "submits" in log.read_text()
    until(lambda: desk.queue() == [], "no job left")


def sweep(desk: Desk, *words: object, user: str = "submit") -> tuple[bytes, bytes]:
    """Make the runs of a study. Return its table of results, and the output of all runs."""
    (desk.folder / "study.toml").write_text(STUDY)
    (desk.folder / "run.sh").write_text("cat config.ini > out.txt; pwd >&2; echo sum $(cat $2 | wc -c) $1\n")
    (desk.folder / "grid.dat").write_bytes(bytes(200_000))
    (desk.folder / "config.in").write_text("c={alpha:} {word}\n")
    run = desk.start(desk.folder / ".venv/bin/mwpy", "sweep", "study.toml", *words, user=user)
    assert run.end() == 0, run.out
    assert "10 of 10 runs succeeded, 0 failed" in run.out
    if "--with" in words:
        assert "submits" in (desk.folder / "study.sweep" / "sweep.rsc.overseer").read_text()
    return (desk.folder / "study.sweep" / "results.csv").read_bytes(), (desk.folder / "all.txt").read_bytes()


SWEPT = (
    b"alpha,word,sum,config\n"
    + b"".join(
        f"{alpha:.2f},{word},200000 {alpha:.2f},{alpha:.2f} {word}\n".encode()
        for alpha in (0, 0.25, 0.5, 0.75, 1)
        for word in ("a b", "it's")
    ),
    b"".join(
        f"# alpha={alpha:.2f}, word={word}\nsum 200000 {alpha:.2f}\n".encode()
        for alpha in (0, 0.25, 0.5, 0.75, 1)
        for word in ("a b", "it's")
    ),
)
"""The table of a sweep, and the output of all runs: the same everywhere, byte for byte."""


def test_a_sweep_gives_the_same_in_htcondor_without_shared_files(condor_desk: Desk) -> None:
    options = "--interval 0.5 --memory 200MB --disk 20MB"
    assert sweep(condor_desk, "--with", "htcondor", "--max", 2, "--oversee", options) == SWEPT
    until(lambda: condor_desk.queue() == [], "no job left")


def test_a_sweep_gives_the_same_in_slurm_and_without_a_batch_system(slurm_desk: SlurmDesk) -> None:
    assert sweep(slurm_desk, "--slaves", 2) == SWEPT
    options = ("--with", "slurm", "--max", 2, "--oversee", "--interval 0.5", "--again", "all")
    assert sweep(slurm_desk, *options) == SWEPT
    until(lambda: slurm_desk.queue() == [], "no job left")


def test_a_sweep_gives_the_same_over_ssh(ssh_node: SshNode, ssh_dir: Path) -> None:
    desk = SshDesk(ssh_node, ssh_dir)
    desk.hosts("node1 slots=1\nnode2 slots=1\n")
    options = f"--hosts hosts --ssh-options '-F {desk.config}' --interval 0.5"
    assert sweep(desk, "--with", "ssh", "--max", 2, "--oversee", options, user="root") == SWEPT
    desk.end()


class Detached:
    """A sweep of a desk without a terminal. Its runs wait for files."""

    def __init__(self, desk: Desk, *options: str) -> None:
        self.desk = desk
        (desk.folder / "wait.sh").write_text(f"while ! test -e {desk.folder}/gate$1; do sleep 0.05; done\n")
        self.command = ("sh wait.sh {x}", "--values", "x=1..4", "--folder", "runs", "--detach", *options)

    def start(self) -> None:
        """Start it in a shell that is killed then."""
        line = shlex.join([str(self.desk.folder / ".venv/bin/mwpy"), "sweep", *self.command])
        assert self.desk.start("setsid", "--wait", "sh", "-c", f"{line}; kill -9 $$").end() != 0
        until(lambda: '"at_slaves": 2' in self.asked("status", "runs", "--json")[1], "two runs")

    def asked(self, *words: str) -> tuple[int, str]:
        """Run `mwpy sweep`. Return its exit code and what it prints."""
        run = self.desk.start(self.desk.folder / ".venv/bin/mwpy", "sweep", *words)
        return run.end(), run.out

    def kill(self) -> int:
        """Kill its master. Return the process id."""
        job = json.loads((self.desk.folder / "runs" / "job.json").read_text())
        os.kill(job["pid"], signal.SIGKILL)
        return int(job["pid"])

    def let_end(self, *runs: int) -> None:
        for number in runs:
            (self.desk.folder / f"gate{number}").touch()


def test_a_detached_sweep_in_htcondor_starts_again_and_is_stopped(condor_desk: Desk) -> None:
    options = "--interval 0.5 --memory 200MB --disk 20MB"
    sweep = Detached(condor_desk, "--with", "htcondor", "--max", "2", "--oversee", options)
    sweep.start()
    killed = sweep.kill()
    until(lambda: f"in process {killed}" not in sweep.asked("status", "runs")[1], "another process")
    sweep.let_end(1, 2)
    until(lambda: "2 succeeded" in sweep.asked("status", "runs")[1], "two results")
    assert sweep.asked("stop", "runs", "--now") == (0, "the sweep in runs ends now\n")
    code, said = sweep.asked("attach", "runs")
    assert code == ExitCode.INTERRUPTED, said
    until(lambda: condor_desk.queue() == [], "no job left")


def test_a_detached_sweep_in_slurm_says_that_it_was_cancelled(slurm_desk: SlurmDesk) -> None:
    sweep = Detached(slurm_desk, "--with", "slurm", "--max", "2", "--oversee", "--interval 0.5")
    sweep.start()
    [job] = [job["id"] for job in slurm_desk.queue() if job["name"].startswith("mwpy-sweep-")]
    slurm_desk.pool("scancel", job)
    code, said = sweep.asked("attach", "runs")
    assert (code, "the same command continues it: cd " in said) == (ExitCode.INTERRUPTED, True), said
    until(lambda: slurm_desk.queue() == [], "no job left")


@pytest.mark.long
def test_a_detached_sweep_that_is_lost_in_slurm_continues_with_the_same_command(slurm_desk: SlurmDesk) -> None:
    sweep = Detached(slurm_desk, "--with", "slurm", "--max", "2", "--oversee", "--interval 0.5")
    sweep.start()
    sweep.kill()
    until(lambda: sweep.asked("status", "runs")[0] == ExitCode.UNREACHABLE, "the end of the job")
    assert "the same command continues it: cd " in sweep.asked("attach", "runs")[1]
    assert sweep.asked(*sweep.command)[0] == 0
    sweep.let_end(1, 2, 3, 4)
    code, said = sweep.asked("attach", "runs")
    assert (code, "4 of 4 runs succeeded" in said) == (0, True), said
    until(lambda: slurm_desk.queue() == [], "no job left")


def test_an_executor_computes_in_htcondor(condor_desk: Desk) -> None:
    compute(condor_desk, "htcondor", "_CONDOR_SCRATCH_DIR", *SMALL)


def test_an_executor_computes_in_slurm(slurm_desk: SlurmDesk) -> None:
    compute(slurm_desk, "slurm", "SLURM_JOB_ID")


@pytest.mark.long
def test_an_executor_and_a_sweep_compute_in_grid_engine(sge: SgeNode, sge_dir: Path) -> None:
    desk = SgeDesk(sge, sge_dir)
    compute(desk, "sge", "SGE_TASK_ID")
    assert sweep(desk, "--with", "sge", "--max", 2, "--oversee", "--interval 0.5") == SWEPT
    desk.end()
