"""What a user of HTCondor sees after a mistake: why nothing runs, in `condor_q -hold` or at the master."""

from __future__ import annotations

import pytest
from tests.batch.condor_jobs import HELD, IDLE, Jobs
from tests.batch.systems import until


def held(jobs: Jobs, cluster: int) -> str:
    """Wait until a job is held. Return the reason."""
    jobs.until_all(cluster, lambda job: job["JobStatus"] == HELD, "are on hold")
    reason: str = jobs.queue(cluster)[0]["HoldReason"]
    return reason


def test_the_master_reports_a_script_that_jobs_cannot_import(jobs: Jobs) -> None:
    """The traceback is in the standard error of the master. The slaves are held after two attempts."""
    master = jobs.submit("master.sub", APP="lacking.py")
    jobs.until_resource_file("lacking.rsc")
    slaves = jobs.submit("slaves.sub", APP="lacking.py", SLAVES=2)
    missing = "ModuleNotFoundError: No module named 'module_of_the_submit_machine'"
    until(lambda: missing in jobs.text(f"master.{master}.0.err"), "the reason at the master")
    report = held(jobs, slaves)
    assert report == f"slaves cannot start (exit code 6): the end of condor/slaves.{slaves}.0.err says why"
    assert missing in jobs.text(f"slaves.{slaves}.0.err")


@pytest.mark.long
def test_slaves_without_their_resource_file_are_held_until_it_exists(jobs: Jobs) -> None:
    """Slaves that were submitted before their master are released automatically, and serve this master."""
    slaves = jobs.submit("slaves.sub", SLAVES=2)
    report = held(jobs, slaves)
    assert f"{jobs.folder}/ping.rsc: (errno 2) No such file or directory" in report
    master = jobs.submit("master.sub", ARGS="--pings 100")
    jobs.until_gone(master, slaves)
    assert jobs.exit_codes(slaves) == [0] * 2


@pytest.mark.long
def test_slaves_give_up_a_master_that_does_not_return(jobs: Jobs) -> None:
    """After some attempts they are held with a reason. Released slaves get the same number of attempts again."""
    master = jobs.submit("master.sub", APP="lacking.py")
    jobs.until_resource_file("lacking.rsc")
    jobs.do("condor_rm", master)
    slaves = jobs.submit("slaves.sub", APP="lacking.py", SLAVES=1, TRIES=2)
    for tries in (2, 4):
        assert held(jobs, slaves) == "ended 2 times or more without success: is the master running?"
        assert jobs.queue(slaves)[0]["NumJobCompletions"] >= tries
        assert "is it running, and is its resource file fresh?" in jobs.text(f"slaves.{slaves}.0.err")
        jobs.do("condor_release", slaves)


@pytest.mark.parametrize(
    ("macros", "report"),
    [
        ({"FILES": "no_such.csv"}, "no_such.csv: (errno 2) No such file or directory"),
        ({"APP": "no_such.py"}, "no_such.py: (errno 2) No such file or directory"),
        ({"PYTHON": "/no/such/python"}, "Failed to execute '/no/such/python'"),
        ({"PYTHON": "/usr/bin/python3"}, "exit code 1): the end of condor/slaves."),
        ({"ARGS": "--mw-no-such-option"}, "exit code 2): the end of condor/slaves."),
    ],
    ids=["input file", "script", "interpreter", "interpreter without mwpy", "option"],
)
def test_the_reason_of_a_held_job_names_the_mistake(jobs: Jobs, macros: dict[str, str], report: str) -> None:
    """HTCondor notices a missing file only when it starts the job, and then holds the job."""
    master = jobs.submit("master.sub", RESOURCE="some.rsc", APP="lacking.py")
    jobs.until_resource_file("some.rsc")
    slaves = jobs.submit("slaves.sub", **{"RESOURCE": "some.rsc", "SLAVES": 1, "APP": "lacking.py", **macros})
    assert report in held(jobs, slaves)
    assert jobs.queue(master)[0]["JobStatus"] != IDLE


@pytest.mark.long
def test_htcondor_accepts_the_submit_file_for_containers(jobs: Jobs) -> None:
    """No container can run here, so this test only checks that HTCondor reads the file."""
    report = jobs.pool("condor_submit", "-dry-run", "-", "condor/slaves-container.sub", cwd=jobs.folder)
    assert 'ContainerImage="mwpy.sif"' in report.stdout
    assert 'TransferInput="examples/ping/ping.py,ping.rsc,mwpy.sif"' in report.stdout
    assert "TARGET.HasContainer" in report.stdout
    assert "WARNING" not in report.stderr + report.stdout
