"""`mwpy oversee` and `mwpy doctor` with a real batch system: what is peculiar to one."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from tests.batch.desks import CondorDesk, SgeDesk, SlurmDesk, SshDesk
from tests.batch.systems import until
from tests.systems.system import ROOT, System

# HTCondor.


def test_the_overseer_prints_why_htcondor_refuses_a_submission(condor_desk: CondorDesk) -> None:
    """The overseer prints one line. With --once, the exit code also shows the failure."""
    condor_desk.master()
    condor_desk.need(1)
    run = condor_desk.oversee("--once", "--line", "notification = sometimes")
    assert run.end() == 4, run.out
    assert re.search("submitted nothing, as far as is known: .*Notification must be .*$", run.out)
    assert condor_desk.queue() == []


def test_an_evicted_job_is_not_replaced_and_a_held_one_is(condor_desk: CondorDesk) -> None:
    """HTCondor runs the evicted one again. The overseer shows why the other one is held, and removes it at the end."""
    desk = condor_desk
    master = desk.master()
    desk.order("tasks 1 done")
    overseer = desk.oversee()
    [job] = desk.until_jobs(1)
    desk.pool("condor_vacate_job", job)
    until(lambda: [job["starts"] for job in desk.queue()] == ["2"], lambda: f"a second start: {desk.queue()}")
    assert desk.until_jobs(1) == {job: 1}
    assert overseer.out.count("submits") == 1, overseer.out
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
def test_a_job_does_not_start_on_a_machine_that_it_avoids(condor_desk: CondorDesk) -> None:
    """The overseer knows this machine by the name that its running jobs have."""
    desk, python = condor_desk, condor_desk.folder / ".venv/bin/python"
    machine = desk.pool("condor_status", "-af", "Machine").stdout.split()[0]
    submitting = desk.start(python, "-c", SUBMITTING, machine)
    assert submitting.end() == 0, submitting.out

    def states() -> list[tuple[str, bool]]:
        return [(job["state"], job["why"] != "") for job in desk.queue()]

    until(lambda: [state for state, _ in states()] == ["2", "1"] and states()[1][1], lambda: f"one runs: {states()}")
    listing = desk.start(python, "-c", LISTING)
    assert (listing.end(), {*listing.out.split()}) == (0, {machine}), listing.out


@pytest.mark.long
def test_an_overseer_can_be_a_job_itself(condor_desk: CondorDesk) -> None:
    """After a restart by HTCondor, the overseer continues with the same jobs. At the end, it leaves the queue."""
    desk = condor_desk
    master = desk.master()
    desk.order("tasks 2 done")
    ours = [f"RESOURCE={desk.resource.name}", "OPTIONS=--interval 0.5 --memory 200MB"]
    [overseer] = desk.pool("condor_submit", "-terse", "condor/overseer.sub", *ours, cwd=desk.folder).stdout.split()[:1]
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
    desk.until_empty()
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
    condor_desk: CondorDesk, fails: Callable[[System], AbstractContextManager[None]]
) -> None:
    """The overseer reports this once and decides nothing. Then it finds its jobs again, and submits none twice."""
    desk = condor_desk
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


@pytest.mark.long
def test_the_doctor_reports_faults_of_jobs(condor_desk: CondorDesk) -> None:
    """A stale resource file, a Python without mwpy, and a missing file for which the job is held."""
    desk = condor_desk
    desk.master()
    stale = desk.folder / "stale.rsc"
    stale.write_text(json.dumps({**desk.report(), "generation": "earlier"}))
    stale.chmod(0o644)
    runs = [
        desk.mwpy("doctor", *words, "--with", "htcondor", *desk.options)
        for words in (
            (stale,),
            (desk.resource, "--command", "/usr/bin/python3 -m mwpy slave waves.py"),
            (desk.resource, "--transfer", desk.folder / "missing.dat"),
        )
    ]
    report = []
    for run in runs:
        assert run.end() == 1, run.out
        report.append(re.findall(r"^FAULT +(.+)$", run.out, re.MULTILINE))
    assert [len(each) for each in report] == [1, 1, 1], report
    assert report[0][0].startswith("master: did not accept it: ")
    assert report[1][0].startswith("job: there is no report: exit code 1.")
    assert "No module named mwpy" in runs[1].out
    assert report[2][0].startswith("job: it is held: ")
    assert "missing.dat" in report[2][0]
    desk.until_empty()


# Grid Engine.


def test_a_job_that_a_person_deletes_is_replaced(sge_desk: SgeDesk) -> None:
    """Its agent gives back its task, and ends before it is killed."""
    desk = sge_desk
    master = desk.master()
    desk.order("tasks 1 done")
    overseer = desk.oversee("--command", f"{desk.folder}/.venv/bin/python waves.py --mw-grace-period 0.5")
    [job] = desk.until_jobs(1)
    desk.pool("qdel", job)
    until(lambda: job not in desk.report()["connected-jobs"], "a master that misses it")
    [other] = desk.until_jobs(1)
    assert other != job
    [written] = desk.folder.glob(f"waves.rsc.jobs/*.{job}.end")
    assert written.read_text().split()[0] == "5"
    (desk.folder / "done").touch()
    desk.order("return 0")
    assert (master.end(), overseer.end()) == (0, 0), overseer.out
    assert desk.queue() == []


# Slurm.


@pytest.mark.long
def test_a_surrounding_job_does_not_change_the_jobs(slurm_desk: SlurmDesk) -> None:
    """An overseer may be a job itself. The end of this job is not the end of the jobs that it submits."""
    desk = slurm_desk
    desk.master()
    desk.order("tasks 1 never")
    words = ("env", "SLURM_JOB_END_TIME=1", "SLURM_MEM_PER_GPU=5", desk.folder / ".venv/bin/mwpy", "oversee")
    overseer = desk.start(*words, desk.resource, "--with", "slurm", "--interval", 0.5)
    [job] = desk.until_jobs(1)
    assert overseer.out.count("submits 1 job:") == 1, overseer.out
    assert "removed 1 job" in desk.once("--remove")
    until(lambda: job not in desk.report()["connected-jobs"], "no job left")


# Hosts.


ELSEWHERE = """\
#!/bin/sh
exec unshare --map-root-user --uts sh -c 'hostname bad-host && exec "$0" "$@"' {python} "$@"
"""


@pytest.mark.long
def test_no_job_is_submitted_to_a_host_that_the_master_has_excluded(ssh_desk: SshDesk) -> None:
    """All tasks fail on `node2`, which names itself `bad-host`. The overseer finds its name by its job."""
    desk = ssh_desk
    elsewhere = desk.folder / "elsewhere"
    elsewhere.write_text(ELSEWHERE.format(python=desk.folder / ".venv/bin/python"))
    elsewhere.chmod(0o755)
    desk.hosts(f"node1 slots=1\nnode2 slots=1 python={elsewhere}\nnode3 slots=1\n")
    shutil.copy(ROOT / "tests" / "integration" / "apps" / "unwell.py", desk.folder)
    master = desk.master("unwell.py")
    overseer = desk.oversee("--max", 3)
    overseer.says("waves.rsc: tasks fail on node2 that succeed elsewhere, so the master sends no more work there")
    overseer.says("waves.rsc: submits 1 job, not to node2: ")
    assert list(desk.report()["excluded-hosts"]) == ["bad-host"]
    assert "host bad-host gets no more work for 1 h" in master.out
    before, _, _ = overseer.out.partition("waves.rsc: submits 1 job, not to node2: ")
    (desk.folder / "enough").touch()
    until(lambda: "{" in master.out, lambda: f"the end of the tasks\n{master.out}")
    assert "bad-host" not in master.out[master.out.index("{") :]
    until(lambda: len(desk.report()["connected-jobs"]) == 2, lambda: f"two jobs, not {desk.report()}")
    (desk.folder / "done").touch()
    assert (master.end(), overseer.end()) == (0, 0), overseer.out
    after = overseer.out.removeprefix(before)
    assert not re.findall(r"submits \d+ jobs?: .*", after), overseer.out
    assert overseer.out.count("(the master refused it") <= sum(map(int, re.findall(r"submits (\d+) jobs?", before)))


def test_a_host_that_does_not_answer_is_reported_and_hides_no_other(ssh_desk: SshDesk) -> None:
    """The overseer and the doctor use the other hosts. The doctor starts a process on each."""
    desk = ssh_desk
    desk.hosts("node1 slots=3\nno-such-host\nnode2 slots=3\n")
    desk.master()
    desk.order("tasks 3 never")
    overseer = desk.oversee()
    desk.until_jobs(3)
    overseer.says("host no-such-host cannot be used: ssh: Could not resolve hostname no-such-host")
    run = desk.mwpy("doctor", desk.resource, "--with", "ssh", *desk.options)
    assert run.end() == 1, run.out
    for host in ("node1", "node2"):
        assert re.search(rf"^ok +{host}: master: accepted it as AGENT-", run.out, re.MULTILINE), run.out
    assert re.search(r"^FAULT +no-such-host: batch system: .*Could not resolve hostname", run.out, re.MULTILINE)
    assert run.out.endswith("1 fault found\n")
