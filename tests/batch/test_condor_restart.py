"""What the job of a master does in a real HTCondor pool when its process ends, and what the next process computes."""

from __future__ import annotations

import pytest
from tests.batch.condor_jobs import HELD, Jobs
from tests.batch.stages import Stages, ran_once
from tests.batch.systems import until
from tests.batch.test_condor_life import LEASE_S, SHORT, kill_master

SLAVES = 3


def begun(jobs: Jobs, stages: Stages) -> tuple[int, int]:
    """Submit the master of a computation in stages, and its slaves. Return their clusters."""
    master = jobs.submit("master.sub", APP="stages.py", ARGS=stages.arguments)
    jobs.until_resource_file("stages.rsc")
    slaves = jobs.submit("slaves.sub", APP="stages.py", ARGS=SHORT, SLAVES=SLAVES, LEASE=LEASE_S)
    stages.reach(0)
    return master, slaves


def ends_well(jobs: Jobs, stages: Stages, master: int, slaves: int) -> None:
    """Let the computation end, and assert that the result is exact and that no stored result was computed again."""
    stages.open(stages.number - 1)
    jobs.until_gone()
    assert jobs.exit_codes(master) == [0]
    assert jobs.exit_codes(slaves) == [0] * SLAVES
    stages.check(jobs.text(f"master.{master}.0.out"))


def test_a_master_whose_job_is_stopped_continues_from_its_run_database(jobs: Jobs) -> None:
    """Its process is killed, its job is vacated without notice, and held and released."""
    stages = Stages(jobs.folder, 4)
    master, slaves = begun(jobs, stages)
    kill_master(jobs.until_resource_file("stages.rsc"))
    stages.until_life(2)
    stages.reach(1)
    jobs.do("condor_vacate_job", "-fast", master)
    stages.until_life(3)
    stages.reach(2)
    jobs.do("condor_hold", master)
    until(lambda: "INTERRUPTED" in jobs.text(f"master.{master}.0.audit"), "a master that has ended")
    jobs.do("condor_release", master)
    stages.until_life(4)
    ends_well(jobs, stages, master, slaves)


def test_slaves_find_a_master_that_was_killed_with_the_resource_files_of_their_jobs(jobs: Jobs) -> None:
    """These are copies. So each job runs once, and its slave does the work of both lives of the master."""
    stages = Stages(jobs.folder, 2)
    master = jobs.submit("master.sub", APP="stages.py", ARGS=stages.arguments)
    resource = jobs.until_resource_file("stages.rsc")
    slaves = jobs.submit("slaves.sub", APP="stages.py", ARGS="", SLAVES=SLAVES)
    stages.reach(0)
    audit = f"master.{master}.0.audit"
    until(lambda: jobs.text(audit).count(" through AGENT-") == SLAVES, "a slave of each job")
    kill_master(resource)
    until(lambda: jobs.text(audit).count(" -> connected, host ") == 2 * SLAVES, "each agent at the next master")
    ends_well(jobs, stages, master, slaves)
    assert jobs.text(f"slaves.{slaves}.log").count("Job executing on host") == SLAVES


@pytest.mark.long
@pytest.mark.parametrize("fast", [False, True], ids=["orderly", "as in a crash"])
def test_a_restart_of_the_pool_computes_no_stored_result_again(jobs: Jobs, fast: bool) -> None:
    """The master starts again and writes a new resource file, the slaves join it, and the computation finishes.

    In a fast restart, the slaves get no signal, and run again when their leases have expired.
    """
    stages = Stages(jobs.folder, 2)
    master, slaves = begun(jobs, stages)
    jobs.pool.restart(fast=fast)
    stages.until_life(2)
    ends_well(jobs, stages, master, slaves)
    assert jobs.count(master, "UNRUNNABLE|its slave died") == 0


@pytest.mark.long
def test_a_master_that_signals_end_again_and_again_is_held(jobs: Jobs) -> None:
    """A released master may be started as often again."""
    master = jobs.submit("master.sub", APP="gated.py", ARGS="1 gate", TRIES=2)
    resource = {"generation": ""}
    for starts in (1, 2, 3, 4):
        resource = jobs.until_resource_file("gated.rsc", resource["generation"])
        kill_master(resource)
        if starts % 2 == 0:
            jobs.until_all(master, lambda job: job["JobStatus"] == HELD, "are on hold")
            [job] = jobs.queue(master)
            assert (job["NumJobStarts"], "was started 2 times or more" in job["HoldReason"]) == (starts, True)
            jobs.do("condor_release", master)
    jobs.until_resource_file("gated.rsc", resource["generation"])


@pytest.mark.long
def test_a_master_that_fails_leaves_the_queue_and_another_job_continues_with_its_run_database(jobs: Jobs) -> None:
    """A mistake in the script would happen again at each start. After its correction, no task runs again."""
    (jobs.folder / "end").write_text("badly")
    failed = jobs.submit("master.sub", APP="failing.py", ARGS="--mw-local 1")
    jobs.until_gone(failed)
    assert jobs.exit_codes(failed) == [255]
    (jobs.folder / "end").write_text("well")
    second = jobs.submit("master.sub", APP="failing.py", ARGS="--mw-local 1", DATABASE=f"condor/master.{failed}.0.db")
    jobs.until_gone(second)
    assert jobs.exit_codes(second) == [0]
    assert (jobs.folder / "starts").read_text() == "started\n" * 2
    assert jobs.text(f"master.{second}.0.out") == f"{ran_once(jobs.folder)}\n"
