"""What a user of HTCondor sees after a mistake: why nothing runs, in `condor_q -hold` or at the master."""

from __future__ import annotations

import pytest
from tests.batch.condor_jobs import HELD, IDLE, Jobs


def held(jobs: Jobs, cluster: int) -> str:
    """Wait until a job is held; why it is."""
    jobs.until_all(cluster, lambda job: job["JobStatus"] == HELD, "are on hold")
    reason: str = jobs.queue(cluster)[0]["HoldReason"]
    return reason


def test_a_script_that_cannot_be_imported_there_is_told_of_at_the_master(jobs: Jobs) -> None:
    """The traceback is in the master's standard error, and the slaves are held after two tries."""
    master = jobs.submit("master.sub", APP="lacking.py")
    jobs.until_resource_file("lacking.rsc")
    slaves = jobs.submit("slaves.sub", APP="lacking.py", SLAVES=2)
    missing = "ModuleNotFoundError: No module named 'module_of_the_submit_machine'"
    jobs.until(lambda: missing in jobs.text(f"master.{master}.0.err"), "the reason at the master")
    told = held(jobs, slaves)
    assert told == f"slaves cannot start (exit code 6): the end of condor/slaves.{slaves}.0.err says why"
    assert missing in jobs.text(f"slaves.{slaves}.0.err")


def test_slaves_without_their_resource_file_are_held_until_it_is_there(jobs: Jobs) -> None:
    """Those that were submitted before their master are released by themselves, and serve it."""
    slaves = jobs.submit("slaves.sub", SLAVES=2)
    told = held(jobs, slaves)
    assert f"{jobs.folder}/ping.rsc: (errno 2) No such file or directory" in told
    master = jobs.submit("master.sub", ARGS="--pings 100")
    jobs.until_gone(master, slaves)
    assert jobs.exit_codes(slaves) == [0] * 2


def test_slaves_give_up_a_master_that_does_not_return(jobs: Jobs) -> None:
    """After some tries they are held and it is said why; those that are released have as many tries again."""
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
    ("macros", "told"),
    [
        ({"FILES": "no_such.csv"}, "no_such.csv: (errno 2) No such file or directory"),
        ({"APP": "no_such.py"}, "no_such.py: (errno 2) No such file or directory"),
        ({"PYTHON": "/no/such/python"}, "Failed to execute '/no/such/python'"),
        ({"PYTHON": "/usr/bin/python3"}, "exit code 1): the end of condor/slaves."),
        ({"ARGS": "--mw-no-such-option"}, "exit code 2): the end of condor/slaves."),
    ],
    ids=["input file", "script", "interpreter", "interpreter without mwpy", "option"],
)
def test_what_is_wrong_with_a_submission_is_why_it_is_held(jobs: Jobs, macros: dict[str, str], told: str) -> None:
    """HTCondor finds missing files when it starts a job, and puts the job on hold."""
    master = jobs.submit("master.sub", RESOURCE="some.rsc", APP="lacking.py")
    jobs.until_resource_file("some.rsc")
    slaves = jobs.submit("slaves.sub", **{"RESOURCE": "some.rsc", "SLAVES": 1, "APP": "lacking.py", **macros})
    assert told in held(jobs, slaves)
    assert jobs.queue(master)[0]["JobStatus"] != IDLE


def test_the_submit_file_for_containers_is_taken(jobs: Jobs) -> None:
    """No image can be run here; that HTCondor understands the file can be seen."""
    told = jobs.pool("condor_submit", "-dry-run", "-", "condor/slaves-container.sub", cwd=jobs.folder)
    assert 'ContainerImage="mwpy.sif"' in told.stdout
    assert 'TransferInput="examples/ping/ping.py,ping.rsc,mwpy.sif"' in told.stdout
    assert "TARGET.HasContainer" in told.stdout
    assert "WARNING" not in told.stderr + told.stdout
