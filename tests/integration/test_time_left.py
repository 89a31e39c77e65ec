"""Masters and agents that end at a known time, with real processes: who learns of the end, and what still runs."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from math import inf

import pytest
from tests.integration.apps.stage import APPS, Stage, until

import mwpy
from mwpy import resource_file


def test_tasks_that_are_too_long_for_an_agent_wait_for_another_one(stage: Stage) -> None:
    """The master says why they wait, and asks the batch system for other slaves."""
    options = "--mw-resource-file-update-interval", 0.1
    master = stage.master("several.py", "short_of_time", "ask", 3000, *options)
    short = stage.agent("several.py", "--mw-lifetime", 500)
    until(lambda: "too little time left" in master.err, lambda: f"a reason:\n{master.err}")
    assert "s at most, and the task takes 3000 s" in master.err
    until(lambda: resource_file.read(stage.resource).slaves_needed == 3, "a request for other slaves")
    long = stage.agent("several.py")
    assert (master.end(), short.end(), long.end()) == (0, 0, 0), master.err + short.err + long.err
    assert master.report == [[True, 1]] * 3
    assert stage.audited("SLAVE-0 <- ") == []
    stage.no_process_left()


def test_an_overseer_submits_no_jobs_that_are_too_short(stage: Stage) -> None:
    """It knows the lifetime of the agents from its own command line."""
    stage.master("several.py", "short_of_time", "ask", 3000)
    until(lambda: resource_file.read(stage.resource).slaves_needed == 3, "all tasks to be submitted")
    assert resource_file.read(stage.resource).shortest_task == 3000.0
    command = f"{sys.executable} {APPS / 'several.py'}"
    line = "oversee", stage.resource, "--with", "local", "--dry-run", "--max", 9, "--command"
    found = []
    for lifetime in 3009, 3010:
        run = stage.start("", *line, f"{command} --mw-lifetime {lifetime}", program=[sys.executable, "-m", "mwpy"])
        assert run.end() == 0, run.err
        found.append(run.out)
    assert "submits nothing: a job ends after 3009 s, but each task that waits takes 3000 s" in found[0]
    assert "submits 3 jobs" in found[1]


def test_an_overseer_knows_the_time_limit_from_its_lines(stage: Stage) -> None:
    """Slurm sends SIGTERM a minute before the limit. The queue of this batch system is empty."""
    stage.master("several.py", "short_of_time", "ask", 3000)
    until(lambda: resource_file.read(stage.resource).shortest_task == 3000.0, "the time of the shortest task")
    (stage.folder / "squeue").write_text("#!/bin/sh\n")
    (stage.folder / "squeue").chmod(0o755)
    line = "oversee", stage.resource, "--with", "slurm", "--dry-run", "--line=--time=51"
    variables = {"PATH": f"{stage.folder}:{os.environ['PATH']}"}
    run = stage.run("", *line, program=[sys.executable, "-m", "mwpy"], variables=variables)
    ends = "a job ends after 3000 s (60 s before its time limit, when it gets SIGTERM), but each"
    assert f"submits nothing: {ends} task that waits takes 3000 s" in run.out


def test_a_task_sees_that_its_agent_is_evicted(stage: Stage) -> None:
    """The time that is left shrinks from the lifetime of the agent to its grace period."""
    begun = stage.folder / "begun"
    master = stage.master("several.py", "short_of_time", "watch", begun)
    agent = stage.agent("several.py", "--mw-lifetime", 10_000, "--mw-grace-period", 90)
    until(begun.exists, "a running task")
    agent.send(signal.SIGTERM)
    assert (master.end(), agent.end()) == (0, 5), master.err + agent.err
    [[first, left]] = master.report
    assert 0 < left <= 90 < first <= 10_000
    stage.no_process_left()


@pytest.mark.parametrize(
    ("options", "evicted", "cause"),
    [
        (("--mw-grace-period", 90), True, "evicted"),
        (("--mw-lifetime", 8, "--mw-grace-period", 1), False, "walltime"),
    ],
    ids=["eviction", "end of the lifetime"],
)
def test_a_task_that_gives_up_before_the_end_is_not_charged(
    stage: Stage, options: tuple[object, ...], evicted: bool, cause: str
) -> None:
    """It is warned, leaves its state and gives up. Its slave ends at once when the agent leaves. Although the task may
    lose no attempt by its own fault, it goes on at another agent."""
    begun = stage.folder / "begun"
    master = stage.master("several.py", "short_of_time", "step", begun, 100 if evicted else 3.2)
    agent = stage.agent("several.py", *options)
    until(begun.exists, "a running task")
    if evicted:
        agent.send(signal.SIGTERM)
    assert agent.end() == 5, agent.err
    assert "mwpy: task 1 gives up: the task has" in agent.err
    other = stage.agent("several.py")
    assert (master.end(), other.end()) == (0, 0), master.err + other.err
    [[left], attempts] = master.report
    assert (0 < left < 100, attempts) == (True, 2)
    assert any(cause in line for line in stage.audited("SLAVE-0 -> gone")), stage.audit.read_text()
    stage.no_process_left()


def give_up(seconds: float) -> None:
    with mwpy.warned(seconds):
        raise mwpy.EndIsNear("so it says")


def test_a_task_that_gives_up_before_its_own_limit_is_charged() -> None:
    """As if it had been killed at its limit."""
    with mwpy.local_master(slaves=1) as mw:
        [result] = mw.map_results(give_up, [100], seconds_max=1, attempts_max=1)
    assert isinstance(result.error, mwpy.TaskUnrunnable)
    assert [death.cause for death in result.error.deaths] == [mwpy.Cause.TIME_LIMIT]


def test_a_task_without_a_known_end_that_gives_up_has_failed() -> None:
    with mwpy.local_master(slaves=1) as mw:
        [result] = mw.map_results(give_up, [100])
    assert isinstance(result.error, mwpy.TaskFailed)
    assert "EndIsNear: so it says" in str(result.error)


def ask(fails: bool) -> float:
    if fails:
        raise ValueError(mwpy.seconds_left())
    return mwpy.seconds_left()


def ask_in_a_fork(_: int) -> bool:
    """Whether a process that the task forks knows the same end. (A fork has no channel to the agent.)"""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writing, str(mwpy.seconds_left()).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return 0 < float(os.read(reading, 100)) <= 50


def test_the_limit_of_a_task_ends_its_time() -> None:
    with mwpy.local_master(slaves=1) as mw:
        [limited] = mw.map(ask, [False], seconds_max=50)
        [free] = mw.map(ask, [False])
        [forked] = mw.map(ask_in_a_fork, [0], seconds_max=50)
    assert (0 < limited <= 50, free, forked) == (True, inf, True)


def test_nobody_ends_a_task_in_the_process_of_the_master() -> None:
    """Also when it runs there once more."""
    assert mwpy.seconds_left() == inf
    with mwpy.local_master(slaves=0) as mw:
        assert list(mw.map(ask, [False], seconds_max=50)) == [inf]
        [failed] = mw.map_results(ask, [True], seconds_max=50)
    with pytest.raises(ValueError, match="inf"):
        mwpy.replay(failed.task_id)


APP = """
import sys, time
import mwpy

def work(number):
    time.sleep(0.01)
    return number

@mwpy.master_algorithm
def master(mw, argv):
    done = []
    try:
        for value in mw.map(work, range(10**9)):
            done.append(value)
            if argv[1:] and len(done) == 1:
                print("first", flush=True)
    except mwpy.OutOfTime as error:
        if argv[:1] == ["raise"]:
            raise
        print(len(done) > 0, error.seconds_left < 3, error.unended > 0)
    return 0

if __name__ == "__main__":
    sys.exit(mwpy.main())
"""


@pytest.fixture
def stage(stage: Stage) -> Stage:
    (stage.folder / "app.py").write_text(APP)
    return stage


def submit_for_ever(mw: mwpy.Master) -> None:
    while True:
        mw.submit(mwpy.task(time.sleep, 0.05))
        mw.loop()
        mw.results()


def run(stage: Stage, *arguments: str, variables: dict[str, str] | None = None) -> tuple[int, str, str]:
    own = ("--mw-master", "--mw-local", "2", "--mw-resource-file", str(stage.resource), "--mw-master-host", "127.0.0.1")
    started = stage.start("", *own, *arguments, program=[sys.executable, "app.py"], variables=variables)
    return started.end(), started.out, started.err


def test_the_algorithm_can_save_and_the_computation_is_not_finished(stage: Stage) -> None:
    """So the jobs of agents stay queued, although the algorithm returns 0."""
    code, out, err = run(stage, "--mw-lifetime", "8")
    assert (code, out) == (0, "True True True\n"), err
    assert json.loads(stage.resource.read_text())["computation-status"] == "in-progress"


def test_the_end_of_a_job_limits_a_master_and_an_uncaught_error_is_one_line(stage: Stage) -> None:
    """The exit code is that of an agent whose time is over."""
    code, _, err = run(stage, "raise", variables={"SLURM_JOB_END_TIME": f"{time.time() + 8:.0f}"})
    assert code == 5
    assert "mwpy: the time of the master is nearly over, and " in err
    assert "Traceback" not in err
    assert json.loads(stage.resource.read_text())["computation-status"] == "in-progress"


def test_a_signal_of_the_batch_system_shortly_before_the_end_is_this_end(stage: Stage) -> None:
    """Slurm sends it before the time that the master keeps for its algorithm. The message says how to continue."""
    own = ("--mw-local", "2", "--mw-resource-file", str(stage.resource), "--mw-master-host", "127.0.0.1")
    end = {"SLURM_JOB_END_TIME": f"{time.time() + 110:.0f}"}
    program = [sys.executable, "app.py"]
    started = stage.start("", "--mw-master", *own, "raise", "said", program=program, variables=end)
    until(lambda: "first\n" in started.out, "the first result")
    started.send(signal.SIGTERM)
    assert started.end() == 5, started.err
    assert "mwpy: the time of the master is nearly over, and " in started.err
    assert "continue with another job: the same command with the same --mw-run-database" in started.err
    assert json.loads(stage.resource.read_text())["computation-status"] == "in-progress"


FINITE = """
import sys
import mwpy

@mwpy.master_algorithm
def master(mw, argv):
    print(sum(mw.map(abs, range(10))))
    return 0

if __name__ == "__main__":
    sys.exit(mwpy.main())
"""


def test_the_end_of_a_job_that_has_passed_is_named_and_limits_neither_master_nor_agent(stage: Stage) -> None:
    """The variable can come from a shell in an allocation that has ended."""
    (stage.folder / "app.py").write_text(FINITE)
    program, variables = [sys.executable, "app.py"], {"SLURM_JOB_END_TIME": f"{time.time() - 60:.0f}"}
    own = ("--mw-resource-file", str(stage.resource), "--mw-master-host", "127.0.0.1")
    master = stage.start("", "--mw-master", *own, program=program, variables=variables)
    until(lambda: stage.resource.exists() or master.process.poll() is not None, "a resource file")
    agent = stage.start("", "--mw-slave", "--mw-resource-file", stage.resource, program=program, variables=variables)
    assert (master.end(), agent.end(), master.out) == (0, 0, "45\n"), master.err + agent.err
    for err in (master.err, agent.err):
        assert err.count("SLURM_JOB_END_TIME says that this job ended") == 1, err


@pytest.mark.parametrize("slaves", [0, 1])
def test_after_the_error_results_can_be_fetched_and_only_endless_waits_raise_it_again(slaves: int) -> None:
    with mwpy.local_master(slaves=slaves, lifetime=2.0) as mw:
        with pytest.raises(mwpy.OutOfTime, match="the time of the master is nearly over, and "):
            submit_for_ever(mw)
        mw.loop(0.2)
        assert all(result.ok for result in mw.results())
        for number in range(3):
            mw.submit(mwpy.task(abs, number))
        with pytest.raises(mwpy.OutOfTime):
            submit_for_ever(mw)
        assert mw.num_runnable_tasks() >= 3


def test_a_lifetime_is_a_number_of_seconds() -> None:
    with pytest.raises(mwpy.UsageError, match="lifetime='long': give a number of seconds from"):
        mwpy.local_master(slaves=0, lifetime="long")  # type: ignore[arg-type]
