"""`mwpy oversee --with sge` in a real Grid Engine: master and overseer run there as a user without privileges."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from tests.batch.stages import Stages
from tests.batch.systems import until
from tests.batch.test_oversee_htcondor import Desk, Run, run_named, run_two_kinds
from tests.systems.sge import SgeNode
from tests.systems.system import ROOT

STAGES = ROOT / "tests" / "batch" / "apps" / "stages.py"


class SgeDesk(Desk):
    """A desk whose overseer uses Grid Engine."""

    def oversee(self, *words: object) -> Run:
        program = (self.folder / ".venv/bin/mwpy", "oversee", self.resource)
        return self.start(*program, "--with", "sge", "--interval", 0.5, *words)

    def queue(self) -> list[dict[str, Any]]:
        """Return the jobs of this test. Others of this user may be in the queue, too."""
        shown = ET.fromstring(self.pool("qstat", "-xml", "-g", "d").stdout)
        jobs = [{each.tag: each.text for each in job} for job in shown.iter("job_list")]
        return [job for job in jobs if self._is_mine(str(job["JB_job_number"]))]

    def details(self, array: str) -> str:
        return self.pool("qstat", "-j", array, check=False).stdout

    def _is_mine(self, array: str) -> bool:
        return re.search(rf"^cwd: +{self.folder}$", self.details(array), re.MULTILINE) is not None


@pytest.fixture
def desk(sge: SgeNode, sge_dir: Path) -> Iterator[SgeDesk]:
    desk = SgeDesk(sge, sge_dir)
    yield desk
    desk.end()


def test_twenty_agents_in_grid_engine_compute_an_exact_result(desk: SgeDesk) -> None:
    """They are one array. At the end, no job is left."""
    stages = Stages(desk.folder, 1)
    shutil.copy(STAGES, desk.folder)
    options = ("--mw-master", "--mw-master-host", "127.0.0.1", "--mw-resource-file", desk.resource)
    python = desk.folder / ".venv/bin/python"
    master = desk.start(python, "stages.py", *options, *stages.arguments.split())
    until(desk.resource.exists, lambda: f"a resource file\n{master.out}")
    overseer = desk.oversee("--max", 20)
    jobs = desk.until_jobs(20)
    assert len({job.partition(".")[0] for job in jobs}) == 1, jobs
    stages.open(0)
    assert (master.end(), overseer.end()) == (0, 0), overseer.out
    stages.check("\n".join(line for line in master.out.splitlines() if line.startswith("{")))
    assert desk.queue() == []


def test_a_job_that_a_person_deletes_is_replaced(desk: SgeDesk) -> None:
    """Its agent gives back its task, and ends before it is killed. The next overseer continues with the new job."""
    master = desk.master()
    desk.order("tasks 1 done")
    program = f"{desk.folder}/.venv/bin/python waves.py --mw-grace-period 0.5"
    overseer = desk.oversee("--command", program)
    [job] = desk.until_jobs(1)
    desk.pool("qdel", job)
    until(lambda: job not in desk.report()["connected-jobs"], "a master that misses it")
    [other] = desk.until_jobs(1)
    assert other != job
    [written] = desk.folder.glob(f"waves.rsc.jobs/*.{job}.end")
    assert written.read_text().split()[0] == "5"
    overseer.send(signal.SIGKILL)
    overseer.end()
    again = desk.once("--patience", 60)
    assert "continues with 1 job of an earlier overseer: " in again
    assert "submits" not in again
    last = desk.oversee()
    (desk.folder / "done").touch()
    desk.order("return 0")
    assert (master.end(), last.end()) == (0, 0), last.out
    assert desk.queue() == []


def test_the_overseer_asks_grid_engine_for_what_tasks_require(desk: SgeDesk) -> None:
    master = desk.master()
    desk.order("tasks 1 narrow 1")
    desk.order("tasks 1 wide 2")
    run_two_kinds(desk, desk.oversee("--max", 4), master, lambda job: int(job["slots"]))


def test_names_accounts_queues_and_prologues_arrive_in_grid_engine(desk: SgeDesk) -> None:
    job = run_named(desk, "--queue", "other.q")
    details = desk.details(job.partition(".")[0])
    for shown in (r"job_name: +my\.own\.mwpy\.waves-\w+", "account: +physics", r"hard_queue_list: +other\.q"):
        assert re.search(rf"^{shown}$", details, re.MULTILINE), details
    assert [each["queue_name"].partition("@")[0] for each in desk.queue()] == ["other.q"]


def test_a_failing_prologue_ends_a_job_in_grid_engine(desk: SgeDesk) -> None:
    """The overseer says so, with the line that failed, and submits no more jobs for a while."""
    desk.master()
    desk.need(2)
    overseer = desk.oversee("--prologue", "module load no-such-module")
    overseer.says("in a row died within 30 s of their start or were held, so nothing is submitted for 60 s")
    overseer.says("exit code 8 (its prologue failed)")
    overseer.says("mwpy: the prologue failed, exit code 127: module load no-such-module")
