"""`mwpy oversee` and `mwpy doctor` with each real batch system: what all have in common."""

from __future__ import annotations

import re
import signal

import pytest
from tests.batch.desks import PATIENT_S, Desk
from tests.batch.systems import until

QUEUED = ["htcondor", "slurm", "sge"]


@pytest.mark.parametrize("desk", [*QUEUED, "ssh"], indirect=True)
def test_an_overseer_follows_the_needs_of_a_master_and_ends_with_it(desk: Desk) -> None:
    """The overseer is killed while jobs are busy. The next one continues with these jobs and submits none twice."""
    master = desk.master()
    desk.order("tasks 3 first")
    first = desk.oversee("--max", 4, "--patience", PATIENT_S)
    before = desk.until_jobs(3)
    assert len(desk.queue()) == 3
    first.send(signal.SIGKILL)
    first.end()
    again = desk.once("--patience", 60)
    assert "waves.rsc: continues with 3 jobs of an earlier overseer: " in again
    assert "submits" not in again

    desk.need_until("second", 4)  # the whole need, because a complaint is not repeated soon
    second = desk.oversee("--max", 4, "--patience", PATIENT_S)
    assert desk.until_jobs(4).keys() > before.keys()
    second.says("3 more jobs would be useful, but ")
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


@pytest.mark.parametrize("desk", QUEUED, indirect=True)
def test_the_overseer_asks_for_what_tasks_require(desk: Desk) -> None:
    """Tasks of one processor and of two wait. It asks for jobs of both kinds, and all tasks run there."""
    master = desk.master()
    desk.order("tasks 1 narrow 1")
    desk.order("tasks 1 wide 2")
    overseer = desk.oversee("--max", 4)
    overseer.says("submits 1 job for cpus 1")
    overseer.says("submits 1 job for cpus 2")
    until(lambda: {job["cpus"] for job in desk.queue()} == {"1", "2"}, lambda: f"jobs of both kinds\n{overseer.out}")
    for name in ("narrow", "wide"):
        (desk.folder / name).touch()
    desk.order("return 0")
    assert (master.end(), overseer.end()) == (0, 0), overseer.out


@pytest.mark.parametrize(
    ("desk", "queue", "name"),
    [
        ("htcondor", "", r"my\.own"),
        ("slurm", "other", r"my\.own\.mwpy\.waves-\w+"),
        ("sge", "other.q", r"my\.own\.mwpy\.waves-\w+"),
    ],
    indirect=["desk"],
)
def test_names_accounts_queues_and_prologues_arrive(desk: Desk, queue: str, name: str) -> None:
    desk.master()
    desk.need(1)
    ran = desk.folder / "prologue.ran"
    names = ("--job-name", "my.own", "--account", "physics", "--prologue", f"echo $MWPY_JOB >{ran}")
    desk.oversee(*names, *(("--queue", queue) if queue else ()))
    [job] = desk.until_jobs(1)
    assert ran.read_text() == f"{job}\n"
    [shown] = desk.queue()
    assert re.fullmatch(name, shown["name"]), shown
    assert (shown["account"], shown.get("queue", "")) == ("physics", queue)


@pytest.mark.parametrize(
    ("desk", "option", "value", "lines"),
    [
        (
            *("htcondor", "--command", ".venv/bin/python -c 'import sky'"),
            (
                "exit code 1 (its script failed before it called mwpy.main())",
                "    | ModuleNotFoundError: No module named 'sky'",
            ),
        ),
        (
            *("sge", "--prologue", "module load no-such-module"),
            (
                "exit code 8 (its prologue failed)",
                "mwpy: the prologue failed, exit code 127: module load no-such-module",
            ),
        ),
    ],
    indirect=["desk"],
)
def test_jobs_that_fail_when_they_start_stop_the_submissions(
    desk: Desk, option: str, value: str, lines: tuple[str, ...]
) -> None:
    """The overseer prints the ends of the jobs' error files. A new master lets it submit again."""
    desk.master()
    desk.need(2)
    overseer = desk.oversee(option, value.replace(".venv", f"{desk.folder}/.venv"))
    overseer.says("in a row died within 30 s of their start or were held, so nothing is submitted for 60 s")
    for line in lines:
        overseer.says(line)
    submitted = sum(map(int, re.findall(r"submits (\d+) jobs?:", overseer.out)))
    assert 3 <= submitted <= 6, overseer.out  # three failures, and jobs with an unknown outcome
    desk.kill_master()
    desk.master()
    overseer.says("another master has taken over")


@pytest.mark.parametrize(
    ("desk", "line", "left"),
    [("htcondor", "allowed_execute_duration = 599", "5"), ("slurm", "--time=9", "[45]")],
    indirect=["desk"],
)
def test_the_doctor_finds_no_fault_in_a_healthy_computation(desk: Desk, line: str, left: str) -> None:
    """One local process and one job examine it and leave. The master sees both connect and leave."""
    master = desk.master()
    run = desk.mwpy("doctor", desk.resource, "--with", desk.system, *desk.options, f"--line={line}")
    assert run.end() == 0, run.out
    assert run.out.endswith("all is well\n")
    assert re.search(r"^ok +master: accepted it as AGENT-1; round trip [\d.]+ ms$", run.out, re.MULTILINE)
    assert re.search(rf"^ok +time left: {left}\d\d s$", run.out, re.MULTILINE), run.out
    assert re.search(r"^job \d+[._]0 is submitted$", run.out, re.MULTILINE)
    until(lambda: "AGENT-1 -> left: it was an examination" in master.out, "its leaving in the audit trail")
    assert desk.queue() == []
