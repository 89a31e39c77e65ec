"""A master whose time is limited, with real processes: its algorithm learns of the end in time, and can save."""

from __future__ import annotations

import json
import signal
import sys
import time

import pytest
from tests.integration.apps.stage import Stage, until

import mwpy

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
    with pytest.raises(mwpy.UsageError, match="lifetime='5': give a number of seconds greater than 0"):
        mwpy.local_master(slaves=0, lifetime="5")  # type: ignore[arg-type]
