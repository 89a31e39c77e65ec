"""`mwpy oversee --with htcondor` in a real pool: master and overseer run there as a user without privileges."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.batch.systems import PATIENCE_S, until
from tests.systems.condor import CondorPool
from tests.systems.system import ROOT, System

PATIENT_S = 8
"""For less than this time, a resource file may show a busy job as idle."""


class Run:
    """A process in the pool, and its output so far."""

    def __init__(self, process: subprocess.Popen[bytes], written: Path) -> None:
        self._process = process
        self._written = written

    @property
    def out(self) -> str:
        return self._written.read_text(errors="replace")

    def end(self) -> int:
        return self._process.wait(PATIENCE_S)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def says(self, words: str) -> None:
        until(lambda: words in self.out, lambda: f"{words!r} in\n{self.out}")


class Desk:
    """A folder in the pool with a master that follows orders, and its overseers."""

    def __init__(self, pool: System, folder: Path) -> None:
        self.pool = pool
        self.folder = folder
        self.resource = folder / "waves.rsc"
        self._runs: list[Run] = []
        shutil.copy(ROOT / "tests" / "integration" / "apps" / "waves.py", folder)

    def start(self, *words: object, user: str = "submit") -> Run:
        written = self.folder / f"{len(self._runs)}.written"
        with written.open("wb") as file:
            process = subprocess.Popen(
                self.pool.command(*words, user=user, folder=self.folder),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self._runs.append(Run(process, written))
        return self._runs[-1]

    def master(self, app: str = "waves.py") -> Run:
        words = ("--mw-master", "--mw-master-host", "127.0.0.1", "--mw-resource-file", self.resource)
        run = self.start(self.folder / ".venv/bin/python", app, *words, self.folder)
        until(self.resource.exists, lambda: f"a resource file\n{run.out}")
        return run

    def kill_master(self) -> None:
        """Kill the master. Its process id is in the generation."""
        os.kill(int(self.report()["generation"].split("-")[1]), signal.SIGKILL)

    def oversee(self, *words: object) -> Run:
        options = ("--with", "htcondor", "--interval", 0.5, "--memory", "200MB", "--disk", "20MB")
        return self.start(self.folder / ".venv/bin/mwpy", "oversee", self.resource, *options, *words)

    def once(self, *words: object) -> str:
        run = self.oversee("--once", *words)
        assert run.end() == 0, run.out
        return run.out

    def order(self, line: str) -> None:
        with (self.folder / "orders").open("a") as file:
            file.write(f"{line}\n")

    def need(self, slaves: int) -> None:
        """Submit this many tasks that never end, and wait until the resource file asks for slaves."""
        self.need_until("never", slaves)

    def need_until(self, name: str, slaves: int) -> None:
        """Submit this many tasks that end when a file exists, and wait until the resource file asks for all slaves."""
        self.order(f"tasks {slaves} {name}")
        until(lambda: self.report()["slaves-needed"] == slaves, f"a need of {slaves}")

    def report(self) -> Any:
        return json.loads(self.resource.read_text())

    def until_jobs(self, count: int) -> dict[str, int]:
        """Wait until this many jobs are connected and all are busy. Return them."""
        jobs: dict[str, int] = {}

        def come() -> bool:
            jobs.clear()
            jobs.update(self.report()["connected-jobs"])
            return list(jobs.values()) == [1] * count

        until(come, lambda: f"{count} jobs at work, not {jobs}, but\n{self._runs[-1].out}")
        return jobs

    def queue(self) -> list[dict[str, Any]]:
        shown = "ClusterId,ProcId,JobStatus,NumJobStarts,MwpyMark,JobBatchName,LastRejMatchReason,RequestCpus"
        constraint = f'Iwd == "{self.folder}"'
        report = self.pool("condor_q", "-json", "-attributes", shown, "-constraint", constraint).stdout
        jobs: list[dict[str, Any]] = json.loads(report or "[]")
        return jobs

    def end(self) -> None:
        """Kill all processes."""
        for run in self._runs:
            run.send(signal.SIGKILL)
            run.end()


@pytest.fixture
def desk(condor: CondorPool, pool_dir: Path) -> Iterator[Desk]:
    desk = Desk(condor, pool_dir)
    yield desk
    desk.end()


def test_an_overseer_follows_the_needs_of_a_master_and_ends_with_it(desk: Desk) -> None:
    """The overseer is killed while jobs are busy. The next one continues with these jobs and submits none twice."""
    master = desk.master()
    desk.order("tasks 3 first")
    first = desk.oversee("--max", 4, "--patience", PATIENT_S)
    before = desk.until_jobs(3)
    assert [len({job["MwpyMark"] for job in desk.queue()}), len(desk.queue())] == [1, 3]
    assert {job["JobBatchName"] for job in desk.queue()} == {"waves"}
    first.send(signal.SIGKILL)
    first.end()
    again = desk.once("--patience", 60)
    assert "waves.rsc: continues with 3 jobs of an earlier overseer: " in again
    assert "submits" not in again

    desk.need_until("second", 4)  # the whole need, because a complaint is not repeated soon
    second = desk.oversee("--max", 4, "--patience", PATIENT_S)
    assert desk.until_jobs(4).keys() > before.keys()
    second.says("3 more jobs would be useful, but --max allows only 4")
    for name in ("first", "second"):
        (desk.folder / name).touch()
    desk.until_jobs(0)
    assert f", idle for {PATIENT_S} s: " in second.out
    desk.order("tasks 1 third")
    desk.until_jobs(1)
    (desk.folder / "third").touch()
    desk.order("return 0")
    assert (master.end(), second.end()) == (0, 0), second.out
    assert "waves.rsc: is finished, and no job of it is left" in second.out
    assert desk.queue() == []
    assert second.out.count("submits 1 job:") == 2, second.out


def run_two_kinds(desk: Desk, overseer: Run, master: Run, cpus: Callable[[dict[str, Any]], int]) -> None:
    """Tasks of one processor and of two wait: the overseer asks for jobs of both kinds, and all tasks run there."""
    overseer.says("submits 1 job for cpus 1")
    overseer.says("submits 1 job for cpus 2")
    until(lambda: {cpus(job) for job in desk.queue()} == {1, 2}, lambda: f"jobs of both kinds\n{overseer.out}")
    for name in ("narrow", "wide"):
        (desk.folder / name).touch()
    desk.order("return 0")
    assert (master.end(), overseer.end()) == (0, 0), overseer.out


def run_named(desk: Desk, *words: object) -> str:
    """Run a job with a name, an account and a prologue, and perhaps more options. Return its id while it runs."""
    desk.master()
    desk.need(1)
    ran = desk.folder / "prologue.ran"
    names = ("--job-name", "my.own", "--account", "physics", "--prologue", f"echo $MWPY_JOB >{ran}")
    desk.oversee(*names, *words)
    [job] = desk.until_jobs(1)
    assert ran.read_text() == f"{job}\n"
    return job


def test_names_accounts_and_prologues_arrive_in_htcondor(desk: Desk) -> None:
    job = run_named(desk)
    shown = desk.pool("condor_q", job, "-af", "JobBatchName", "AcctGroup").stdout
    assert shown == "my.own physics\n"


def test_the_overseer_asks_htcondor_for_what_tasks_require(desk: Desk) -> None:
    master = desk.master()
    desk.order("tasks 1 narrow 1")
    desk.order("tasks 1 wide 2")
    run_two_kinds(desk, desk.oversee("--max", 4), master, lambda job: int(job["RequestCpus"]))


def test_the_overseer_prints_why_htcondor_refuses_a_submission(desk: Desk) -> None:
    """The overseer prints one line. With --once, the exit code also shows the failure."""
    desk.master()
    desk.need(1)
    run = desk.oversee("--once", "--line", "notification = sometimes")
    assert run.end() == 4, run.out
    assert re.search("submitted nothing, as far as is known: .*Notification must be .*$", run.out)
    assert desk.queue() == []


def test_jobs_that_fail_when_they_start_stop_the_submissions(desk: Desk) -> None:
    """The overseer prints the ends of the jobs' error files. A new master lets it submit again."""
    desk.master()
    desk.need(2)
    overseer = desk.oversee("--command", f"{desk.folder}/.venv/bin/python -c 'import sky'")
    overseer.says("in a row died within 30 s of their start or were held, so nothing is submitted for 60 s")
    overseer.says("exit code 1 (its script failed before it called mwpy.main())")
    overseer.says("    | ModuleNotFoundError: No module named 'sky'")
    submitted = sum(map(int, re.findall(r"submits (\d+) jobs?:", overseer.out)))
    assert 3 <= submitted <= 6, overseer.out  # three failures, and jobs with an unknown outcome
    desk.kill_master()
    desk.master()
    overseer.says("another master has taken over")


def test_the_overseer_does_not_replace_an_evicted_job(desk: Desk) -> None:
    """HTCondor runs it again. Until then, it counts as a job on its way."""
    desk.master()
    desk.order("tasks 1 never")
    overseer = desk.oversee()
    [job] = desk.until_jobs(1)
    desk.pool("condor_vacate_job", job)
    until(lambda: [ad.get("NumJobStarts") for ad in desk.queue()] == [2], lambda: f"a second start: {desk.queue()}")
    assert desk.until_jobs(1) == {job: 1}
    assert overseer.out.count("submits") == 1, overseer.out


def test_the_overseer_shows_why_a_job_is_held_and_replaces_it(desk: Desk) -> None:
    """The overseer removes the held job when the computation is finished."""
    master = desk.master()
    desk.order("tasks 1 done")
    overseer = desk.oversee()
    [job] = desk.until_jobs(1)
    desk.pool("condor_hold", "-reason", "for a test", job)
    overseer.says(f"waves.rsc: job {job} is held: for a test")
    until(lambda: job not in desk.report()["connected-jobs"], "a master that misses it")
    desk.until_jobs(1)
    (desk.folder / "done").touch()
    desk.order("return 0")
    assert (master.end(), overseer.end()) == (0, 0), overseer.out
    assert desk.queue() == []


SUBMITTING = """
import sys
from pathlib import Path
from mwpy._batch import Launch
from mwpy._batch.htcondor import HTCondor
folder = Path.cwd()
(folder / "r.rsc").touch()
command = ("/bin/sh", "-c", "sleep 300", "--mw-slave")
for avoided in ((), (sys.argv[1],)):
    print(*HTCondor("20MB", "20MB").submit(Launch("m", f"{folder}/r.rsc", command, 1, str(folder), (), avoided), 1))
"""

LISTING = """
from mwpy._batch.htcondor import HTCondor
print(*(job.host for job in HTCondor().jobs() if job.host))
"""


@pytest.mark.long
def test_a_job_does_not_start_on_a_machine_that_it_avoids(desk: Desk) -> None:
    """The overseer knows this machine by the name that its running jobs have."""
    python = desk.folder / ".venv/bin/python"
    machine = desk.pool("condor_status", "-af", "Machine").stdout.split()[0]
    submitting = desk.start(python, "-c", SUBMITTING, machine)
    assert submitting.end() == 0, submitting.out

    def states() -> list[tuple[int, bool]]:
        return [(job["JobStatus"], "LastRejMatchReason" in job) for job in desk.queue()]

    until(lambda: [state for state, _ in states()] == [2, 1] and states()[1][1], lambda: f"one that runs: {states()}")
    listing = desk.start(python, "-c", LISTING)
    assert (listing.end(), {*listing.out.split()}) == (0, {machine}), listing.out


@pytest.mark.long
def test_an_overseer_can_be_a_job_itself(desk: Desk) -> None:
    """After a restart by HTCondor, the overseer continues with the same jobs. At the end, it leaves the queue."""
    master = desk.master()
    desk.order("tasks 2 done")
    ours = [f"RESOURCE={desk.resource.name}", "OPTIONS=--interval 0.5 --memory 200MB"]
    report = desk.pool("condor_submit", "-terse", "condor/overseer.sub", *ours, cwd=desk.folder).stdout
    [overseer] = report.split()[:1]
    jobs = desk.until_jobs(2)
    desk.pool("condor_hold", overseer)
    [written] = desk.folder.glob("condor/overseer.*.out")
    until(lambda: "stops; its jobs stay" in written.read_text(), "an overseer that stops")
    desk.pool("condor_release", overseer)
    until(lambda: "continues with 2 jobs of an earlier overseer" in written.read_text(), "another life of it")
    assert desk.until_jobs(2) == jobs
    (desk.folder / "done").touch()
    desk.order("return 0")
    assert master.end() == 0
    until(lambda: desk.queue() == [], lambda: f"an empty queue, not {desk.queue()}\n{written.read_text()}")
    assert "is finished, and no job of it is left" in written.read_text()
    assert "submits" not in written.read_text()


@contextmanager
def schedd_down(pool: System) -> Iterator[None]:
    pool("condor_off", "-fast", "-schedd", user="root")
    until(lambda: pool("condor_q", check=False).returncode != 0, "no schedd")
    try:
        yield
    finally:
        pool("condor_on", "-schedd", user="root")
        until(lambda: pool("condor_q", check=False).returncode == 0, "a schedd")


@contextmanager
def schedd_hangs(pool: System) -> Iterator[None]:
    signal_to = "pkill -{} -x --ns $$ --nslist mnt condor_schedd"  # only the schedd of this pool
    pool("sh", "-c", signal_to.format("STOP"), user="root")
    try:
        yield
    finally:
        pool("sh", "-c", signal_to.format("CONT"), user="root")


@pytest.mark.long
@pytest.mark.parametrize("fails", [schedd_down, schedd_hangs])
def test_the_overseer_waits_for_a_schedd_that_does_not_answer(
    desk: Desk, fails: Callable[[System], AbstractContextManager[None]]
) -> None:
    """The overseer reports this once and decides nothing. Then it finds its jobs again, and submits none twice."""
    master = desk.master()
    desk.need_until("done", 2)
    overseer = desk.oversee()
    desk.until_jobs(2)
    with fails(desk.pool):
        overseer.says("nothing is decided, the batch system does not answer: HTCondor does not show its queue: ")
        desk.need_until("done", 1)
    overseer.says("the batch system answers again")
    desk.until_jobs(3)
    assert overseer.out.count("nothing is decided") == 1
    assert overseer.out.count("submits 1 job:") == 1, overseer.out
    (desk.folder / "done").touch()
    desk.order("return 0")
    assert (master.end(), overseer.end()) == (0, 0), overseer.out
