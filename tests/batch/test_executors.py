"""`mwpy.Executor` and `mwpy sweep` with real batch systems: they submit slaves, compute on them, and leave no job."""

from __future__ import annotations

import json
import os
import shlex
import signal

import pytest
from tests.batch.desks import CondorDesk, Desk, SlurmDesk
from tests.batch.systems import until

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

STUDY = """
command = "sh run.sh {alpha} grid.dat"
inputs = ["run.sh", "grid.dat"]
templates = { "config.ini" = "config.in" }
outputs = ["out.txt", "STDOUT"]
values = { alpha = "0..1..0.25", word = ["a b", "it's"] }
results = { sum = "sum (.*)", config = { file = "out.txt", pattern = "c=(.*)" } }
collect = [{ to = "all.txt", form = "blocks" }]
"""


def sweep(desk: Desk, *words: object) -> tuple[bytes, bytes]:
    """Make the runs of a study. Return its table of results, and the output of all runs."""
    (desk.folder / "study.toml").write_text(STUDY)
    (desk.folder / "run.sh").write_text("cat config.ini > out.txt; pwd >&2; echo sum $(cat $2 | wc -c) $1\n")
    (desk.folder / "grid.dat").write_bytes(bytes(200_000))
    (desk.folder / "config.in").write_text("c={alpha:} {word}\n")
    run = desk.mwpy("sweep", "study.toml", *words)
    assert run.end() == 0, run.out
    assert "10 of 10 runs succeeded, 0 failed" in run.out
    if "--with" in words:
        assert "submits" in (desk.folder / "study.sweep" / "sweep.rsc.overseer").read_text()
    return (desk.folder / "study.sweep" / "results.csv").read_bytes(), (desk.folder / "all.txt").read_bytes()


def overseen(desk: Desk) -> tuple[str, ...]:
    """Options of a sweep whose slaves are jobs."""
    return "--with", desk.system, "--max", "2", "--oversee", shlex.join(["--interval", "0.5", *map(str, desk.options)])


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


@pytest.mark.parametrize(
    "desk", ["htcondor", "slurm", "ssh", pytest.param("sge", marks=pytest.mark.long)], indirect=True
)
def test_a_sweep_gives_the_same_everywhere(desk: Desk) -> None:
    """Jobs of HTCondor share no files. In Slurm, it is also made without jobs."""
    if desk.system == "slurm":
        assert sweep(desk, "--slaves", 2) == SWEPT
    assert sweep(desk, *overseen(desk), "--again", "all") == SWEPT
    desk.until_empty()


class Detached:
    """A sweep of a desk without a terminal. Its runs wait for files."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        (desk.folder / "wait.sh").write_text(f"while ! test -e {desk.folder}/gate$1; do sleep 0.05; done\n")
        self.command = ("sh wait.sh {x}", "--values", "x=1..4", "--folder", "runs", "--detach", *overseen(desk))

    def start(self) -> None:
        """Start it in a shell that is killed then."""
        line = shlex.join([str(self.desk.folder / ".venv/bin/mwpy"), "sweep", *self.command])
        assert self.desk.start("setsid", "--wait", "sh", "-c", f"{line}; kill -9 $$").end() != 0
        until(lambda: '"at_slaves": 2' in self.asked("status", "runs", "--json")[1], "two runs")

    def asked(self, *words: str) -> tuple[int, str]:
        """Run `mwpy sweep`. Return its exit code and what it prints."""
        run = self.desk.mwpy("sweep", *words)
        return run.end(), run.out

    def kill(self) -> int:
        """Kill its master. Return the process id."""
        job = json.loads((self.desk.folder / "runs" / "job.json").read_text())
        os.kill(job["pid"], signal.SIGKILL)
        return int(job["pid"])

    def let_end(self, *runs: int) -> None:
        for number in runs:
            (self.desk.folder / f"gate{number}").touch()


def test_a_detached_sweep_in_htcondor_starts_again_and_is_stopped(condor_desk: CondorDesk) -> None:
    """Also after an eviction, which does not end `attach`."""
    sweep = Detached(condor_desk)
    sweep.start()
    attached = condor_desk.mwpy("sweep", "attach", "runs")
    attached.says("runs in process ")
    mark = json.loads((condor_desk.folder / "runs" / "job.json").read_text())["mark"]
    condor_desk.pool("condor_vacate_job", "-constraint", f'MwpySweep == "{mark}"')
    attached.says("as job ")
    until(lambda: "runs in process " in sweep.asked("status", "runs")[1], "its next start")
    killed = sweep.kill()
    until(lambda: f"in process {killed}" not in sweep.asked("status", "runs")[1], "another process")
    sweep.let_end(1, 2)
    until(lambda: "2 succeeded" in sweep.asked("status", "runs")[1], "two results")
    assert sweep.asked("stop", "runs", "--now") == (0, "the sweep in runs ends now\n")
    assert attached.end() == ExitCode.INTERRUPTED, attached.out
    condor_desk.until_empty()


def test_a_detached_sweep_in_slurm_says_that_it_was_cancelled(slurm_desk: SlurmDesk) -> None:
    sweep = Detached(slurm_desk)
    sweep.start()
    [job] = [job["id"] for job in slurm_desk.queue() if job["name"].startswith("mwpy-sweep-")]
    slurm_desk.pool("scancel", job)
    code, said = sweep.asked("attach", "runs")
    assert (code, "the same command continues it: cd " in said) == (ExitCode.INTERRUPTED, True), said
    slurm_desk.until_empty()


@pytest.mark.long
def test_a_detached_sweep_that_is_lost_in_slurm_continues_with_the_same_command(slurm_desk: SlurmDesk) -> None:
    sweep = Detached(slurm_desk)
    sweep.start()
    sweep.kill()
    until(lambda: sweep.asked("status", "runs")[0] == ExitCode.UNREACHABLE, "the end of the job")
    assert "the same command continues it: cd " in sweep.asked("attach", "runs")[1]
    assert sweep.asked(*sweep.command)[0] == 0
    sweep.let_end(1, 2, 3, 4)
    code, said = sweep.asked("attach", "runs")
    assert (code, "4 of 4 runs succeeded" in said) == (0, True), said
    slurm_desk.until_empty()


@pytest.mark.parametrize(
    ("desk", "variable"),
    [
        ("htcondor", "_CONDOR_SCRATCH_DIR"),
        ("slurm", "SLURM_JOB_ID"),
        pytest.param("sge", "SGE_TASK_ID", marks=pytest.mark.long),
    ],
    indirect=["desk"],
)
def test_an_executor_computes_in_a_batch_system(desk: Desk, variable: str) -> None:
    """The tasks of the script see a variable that only jobs of the batch system have."""
    (desk.folder / "script.py").write_text(SCRIPT)
    run = desk.start(desk.folder / ".venv/bin/python", "script.py", desk.system, variable, *desk.options)
    log = desk.folder / "executor.rsc.overseer"
    assert run.end() == 0, run.out
    assert run.out.endswith("values: True\n"), log.read_text()
    assert "submits" in log.read_text()
    desk.until_empty()
