"""`mwpy oversee --with slurm` in a real Slurm: master and overseer run there as a user without privileges."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.batch.systems import until
from tests.batch.test_oversee_htcondor import PATIENT_S, Desk, Run, run_named, run_two_kinds
from tests.systems.slurm import SlurmNode


class SlurmDesk(Desk):
    """A desk whose overseer uses Slurm."""

    def oversee(self, *words: object, variables: Sequence[str] = ()) -> Run:
        program = ("env", *variables, self.folder / ".venv/bin/mwpy", "oversee", self.resource)
        return self.start(*program, "--with", "slurm", "--interval", 0.5, *words)

    def queue(self) -> list[dict[str, Any]]:
        lines = self.pool("squeue", "-h", "-r", "-o", "%i|%T|%j|%C|%Z").stdout.splitlines()
        fields = [dict(zip(("id", "state", "name", "cpus", "folder"), line.split("|"), strict=True)) for line in lines]
        return [job for job in fields if job["folder"] == str(self.folder)]


@pytest.fixture
def desk(slurm: SlurmNode, slurm_dir: Path) -> Iterator[SlurmDesk]:
    desk = SlurmDesk(slurm, slurm_dir)
    yield desk
    desk.end()


def test_an_overseer_follows_the_needs_of_a_master_and_ends_with_it(desk: SlurmDesk) -> None:
    """The overseer is killed. The next overseer submits nothing twice, removes idle jobs, and ends with the master."""
    master = desk.master()
    desk.order("tasks 3 first")
    first = desk.oversee("--max", 4, "--patience", PATIENT_S)
    before = desk.until_jobs(3)
    first.send(signal.SIGKILL)
    first.end()
    assert "submits" not in desk.once("--patience", 60)
    assert sorted(job["id"] for job in desk.queue()) == sorted(before)

    desk.order("tasks 4 second")
    second = desk.oversee("--max", 4, "--patience", PATIENT_S)
    assert desk.until_jobs(4).keys() > before.keys()
    assert len({job["name"] for job in desk.queue()}) == 1
    (desk.folder / "first").touch()
    second.says("3 more jobs would be useful, but --max allows only 4")
    desk.until_jobs(4)
    (desk.folder / "second").touch()
    desk.until_jobs(0)
    desk.order("return 0")
    assert (master.end(), second.end()) == (0, 0), second.out
    assert "waves.rsc: is finished, and no job of it is left" in second.out
    assert desk.queue() == []
    assert second.out.count("submits 1 job:") == 1, second.out


def test_the_overseer_asks_slurm_for_what_tasks_require(desk: SlurmDesk) -> None:
    master = desk.master()
    desk.order("tasks 1 narrow 1")
    desk.order("tasks 1 wide 2")
    run_two_kinds(desk, desk.oversee("--max", 4), master, lambda job: int(job["cpus"]))


def test_names_accounts_queues_and_prologues_arrive_in_slurm(desk: SlurmDesk) -> None:
    job = run_named(desk, "--queue", "other")
    name, account, partition = desk.pool("squeue", "-h", "-j", job, "-o", "%j|%a|%P").stdout.strip().split("|")
    assert name.startswith("my.own.mwpy.waves-")
    assert (account, partition) == ("physics", "other")


@pytest.mark.long
def test_a_surrounding_job_does_not_change_the_jobs(desk: SlurmDesk) -> None:
    """An overseer may be a job itself. The end of this job is not the end of the jobs that it submits."""
    desk.master()
    desk.order("tasks 1 never")
    overseer = desk.oversee(variables=("SLURM_JOB_END_TIME=1", "SLURM_MEM_PER_GPU=5"))
    [job] = desk.until_jobs(1)
    assert overseer.out.count("submits 1 job:") == 1, overseer.out
    assert "removed 1 job" in desk.once("--remove")
    until(lambda: job not in desk.report()["connected-jobs"], "no job left")
