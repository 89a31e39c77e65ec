"""A computation in a real HTCondor pool, started with the submit files, by a user without privileges.

No overseer runs here. The exit codes of the slaves, and the rules for them in slaves.sub, keep the computation going.
The master is a job, too.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.batch.condor_jobs import HELD, RUNNING, Jobs
from tests.batch.systems import until
from tests.batch.test_oversee_peculiar import schedd_down

SHORT = "--mw-grace-period 1 --mw-reconnect-seconds 0"
"""For slaves whose tasks do not end, and which do not look for a master that was killed."""

SUBMIT_UID = 20001

LIMIT_S = 25
"""A lifetime that is long enough for the start of a slave on a slow machine."""

LEASE_S = 20
"""The shortest lease that HTCondor allows."""

CROWD_S = 600.0


def started(jobs: Jobs, tasks: int, slaves: int, at_work: int = 0) -> tuple[int, int, dict[str, Any]]:
    """Submit a master of the gated application and its slaves, and wait until this many slaves (or all) are busy.

    Returns:
        The cluster of the master, the cluster of the slaves, and the resource file.
    """
    master = jobs.submit("master.sub", APP="gated.py", ARGS=f"{tasks} gate", TRIES=1)
    resource = jobs.until_resource_file("gated.rsc")
    cluster = jobs.submit("slaves.sub", APP="gated.py", ARGS=SHORT, SLAVES=slaves)
    until(lambda: busy(jobs, master) >= (at_work or slaves), f"{at_work or slaves} slaves at work")
    return master, cluster, resource


def busy(jobs: Jobs, master: int, since: int = 0) -> int:
    """Count the slaves that got a task, according to the trail without its first `since` lines."""
    return len({line.split()[0] for line in jobs.audit(master)[since:] if re.search("SLAVE-[0-9]+ <- ", line)})


def open_gate(jobs: Jobs) -> None:
    (jobs.folder / "gate").touch()


def kill_master(resource: dict[str, Any]) -> None:
    """Kill a master. Its process id is in the generation."""
    os.kill(int(resource["generation"].split("-")[1]), signal.SIGKILL)


def end_master(jobs: Jobs, master: int, resource: dict[str, Any]) -> None:
    """Kill a master that was submitted with TRIES=1, so that its job is held, and remove its job."""
    kill_master(resource)
    jobs.until_all(master, lambda job: job["JobStatus"] == HELD, "are on hold")
    jobs.do("condor_rm", master)
    jobs.until_gone(master)


def total(lines: list[str], pattern: str) -> int:
    """Add the numbers that a pattern finds in lines."""
    return sum(int(found[1]) for line in lines if (found := re.search(pattern, line)))


def test_ping_finishes_and_all_jobs_leave_the_queue(jobs: Jobs) -> None:
    """The audit trails of the master and of its slaves contain the same numbers of tasks and results."""
    master = jobs.submit("master.sub", ARGS="--pings 20000")
    resource = jobs.until_resource_file("ping.rsc")
    slaves = jobs.submit("slaves.sub", SLAVES=4, ARGS="--mw-audit-file -")
    jobs.until_gone()
    assert jobs.exit_codes(master) == [0]
    assert jobs.exit_codes(slaves) == [0] * 4
    assert "20000 pings: 20000 good, 0 bad" in jobs.text("master.*.out")
    assert jobs.text("slaves.*.err").replace("mwpy: the computation is finished, says ping.rsc\n", "") == ""
    file = jobs.folder / "ping.rsc"
    assert (file.stat().st_uid, file.stat().st_mode & 0o777) == (SUBMIT_UID, 0o600)
    assert json.loads(file.read_text())["computation-status"] == "finished"
    assert resource["member-id"] == f"{master}.0"

    trail = jobs.audit(master)
    assert re.fullmatch(rf'INIT MASTER "{master}\.0" READY tcp://.*', trail[0])
    assert trail.count(f'FINI SHUTDOWN "{master}.0"') == 1
    back = total(trail, r"-> ([0-9]+) tasks? back")
    assert total(trail, r"<- ([0-9]+) tasks?$") - back == total(trail, r"-> ([0-9]+) results?$") == 20000
    assert total(jobs.text(f"slaves.{slaves}.*.out").splitlines(), r"-> ([0-9]+) results?$") == 20000
    for whose in ("AGENT", "SLAVE"):
        came = {line.split()[0] for line in trail if re.match(f"{whose}-[0-9]+ .*-> connect", line)}
        went = {
            line.split()[0]
            for line in trail
            if re.match(f"{whose}-[0-9]+ -> (left: shut down by the master|gone: )", line)
        }
        assert came == went, jobs.shown_at_failure()
        assert came, jobs.shown_at_failure()


def test_the_slaves_of_a_job_share_its_threads(jobs: Jobs) -> None:
    """HTCondor sets the number of threads of a job to the number of its processors."""
    master = jobs.submit("master.sub", APP="threads.py", ARGS="6")
    jobs.until_resource_file("threads.rsc")
    file = jobs.folder / "condor" / "slaves.sub"
    file.write_text(re.sub(r"(?m)^request_cpus .*", "request_cpus = 4", file.read_text()))
    of_four = jobs.submit("slaves.sub", APP="threads.py", SLAVES=1, PROCESSES=4)
    of_two = jobs.submit("slaves.sub", APP="threads.py", SLAVES=1, PROCESSES=2)
    jobs.until_gone()
    shown = [[f"{of_four}.0", "1"]] * 4 + [[f"{of_two}.0", "2"]] * 2
    assert json.loads(jobs.text(f"master.{master}.0.out")) == {"threads": sorted(shown)}


def test_slaves_join_the_next_master_when_theirs_is_killed(jobs: Jobs) -> None:
    """The exit code of the slaves keeps them in the queue. Each new run has a new copy of the resource file."""
    first, slaves, resource = started(jobs, tasks=9, slaves=3)
    end_master(jobs, first, resource)
    jobs.until_all(slaves, lambda job: job["NumJobCompletions"] >= 1, "have ended")
    assert len(jobs.queue(slaves)) == 3
    assert {job["ExitCode"] for job in jobs.queue(slaves)} <= {255, 4}
    assert not [job for job in jobs.queue(slaves) if job["JobStatus"] == HELD]

    second = jobs.submit("master.sub", APP="gated.py", ARGS="9 gate")
    again = jobs.until_resource_file("gated.rsc", resource["generation"])
    assert again["member-id"] == f"{second}.0"
    until(lambda: busy(jobs, second) >= 3, "all slaves at the second master")
    open_gate(jobs)
    jobs.until_gone()
    assert jobs.exit_codes(second) == [0]
    assert jobs.exit_codes(slaves) == [0] * 3
    assert json.loads(jobs.text(f"master.{second}.0.out")) == {"came": list(range(9)), "unrunnable": []}
    assert jobs.count(second, "REFUSED") == 0


def test_evictions_are_charged_to_no_task(jobs: Jobs) -> None:
    """Slaves are evicted, killed, held, released and removed while they run a task.

    A task that kills three slaves becomes unrunnable. Each task here loses its slave more often.
    """
    master, slaves, _ = started(jobs, tasks=4, slaves=4)
    for _ in range(3):
        lines = len(jobs.audit(master))
        jobs.do("condor_vacate_job", f"{slaves}.0")
        jobs.do("condor_vacate_job", "-fast", f"{slaves}.1")
        jobs.do("condor_hold", f"{slaves}.2")
        until(lambda: "RemoteHost" not in jobs.queue(slaves)[2], "a job that has ended, and is on hold")
        jobs.do("condor_release", f"{slaves}.2")
        until(lambda since=lines: busy(jobs, master, since) >= 3, "three slaves at work again")  # type: ignore[misc]
    jobs.do("condor_rm", f"{slaves}.3")
    until(lambda: len(jobs.queue(slaves)) == 3, "one slave less")
    open_gate(jobs)
    jobs.until_gone()
    assert jobs.exit_codes(master) == [0]
    assert jobs.exit_codes(slaves) == [0, 0, 0, None]
    assert json.loads(jobs.text(f"master.{master}.0.out")) == {"came": list(range(4)), "unrunnable": []}
    assert jobs.count(master, "AGENT-.* -> left: evicted") == 3 + 3 + 1
    assert jobs.count(master, "AGENT-.* -> lost: ") == 3
    assert jobs.count(master, "SLAVE-.* back .*, evicted: AGENT") == 3 + 3 + 1
    assert jobs.count(master, "SLAVE-.* back .*, agent lost: AGENT") == 3
    assert jobs.count(master, "UNRUNNABLE|its slave died") == 0


@pytest.mark.long
def test_slaves_leave_before_their_time_limit_and_run_again(jobs: Jobs) -> None:
    """The slave is not held: it leaves before its time limit, and TRIES does not apply after exit code 5."""
    limits = {"allowed_execute_duration": LIMIT_S, "TRIES": 1}
    master = jobs.submit("master.sub", APP="gated.py", ARGS="1 gate")
    jobs.until_resource_file("gated.rsc")
    slaves = jobs.submit("slaves.sub", APP="gated.py", ARGS=SHORT, SLAVES=1, **limits)
    until(lambda: jobs.count(master, "SLAVE-.* back .*, walltime: AGENT") >= 1, "a task that came back")
    until(lambda: busy(jobs, master) >= 2, "the next run, which has the task again")
    [job] = jobs.queue(slaves)
    assert (job["JobStatus"], job["ExitCode"]) == (RUNNING, 5), job
    open_gate(jobs)
    jobs.until_gone()
    assert jobs.exit_codes(master) == jobs.exit_codes(slaves) == [0]
    assert jobs.count(master, "AGENT-.* -> left: its time limit is near") >= 1
    assert jobs.count(master, "UNRUNNABLE") == 0


@contextmanager
def killed_at_failure(process: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        process.kill()
        raise


@pytest.mark.long
def test_a_job_whose_lease_has_expired_runs_again(jobs: Jobs) -> None:
    """The schedd is gone for longer than the lease. The master is not its job, so it sees how its slaves end."""
    outside = 0
    words = ("--mw-master", "--mw-resource-file", "gated.rsc", "--mw-audit-file", f"condor/master.{outside}.0.audit")
    command = jobs.pool.command(".venv/bin/python", "gated.py", 4, "gate", *words, folder=jobs.folder)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as master, killed_at_failure(master):
        jobs.until_resource_file("gated.rsc")
        slaves = jobs.submit("slaves.sub", APP="gated.py", ARGS=SHORT, SLAVES=2, LEASE=LEASE_S)
        assert jobs.pool("condor_q", slaves, "-af", "JobLeaseDuration").stdout.split() == [str(LEASE_S)] * 2
        until(lambda: busy(jobs, outside) >= 2, "two slaves at work")
        with schedd_down(jobs.pool):
            until(lambda: jobs.count(outside, "AGENT-.* -> (left: evicted|lost: )") == 2, "two slaves less")
            lines = len(jobs.audit(outside))
        until(lambda: busy(jobs, outside, lines) >= 2, "two slaves at work again")
        open_gate(jobs)
        jobs.until_gone()
        assert jobs.exit_codes(slaves) == [0] * 2
        assert json.loads(master.communicate()[0]) == {"came": list(range(4)), "unrunnable": []}


def test_many_agents_all_get_an_answer(jobs: Jobs, num_agents: int) -> None:
    """Only a few of them have slots at first. Each is shut down, or reads that the computation is finished."""
    master, slaves, _ = started(jobs, tasks=1000, slaves=num_agents, at_work=8)
    open_gate(jobs)
    until(lambda: not jobs.queue(), "no job left in the queue", CROWD_S)
    assert jobs.exit_codes(master) == [0]
    assert jobs.exit_codes(slaves) == [0] * num_agents
    served = jobs.count(master, "AGENT-.* -> left: shut down by the master")
    finished = jobs.text(f"slaves.{slaves}.*.err").count("mwpy: the computation is finished")
    assert served + finished >= num_agents, jobs.shown_at_failure()
