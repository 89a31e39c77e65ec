"""What the job of a master does in a real Slurm when its process ends, and what the next process computes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from tests.batch.stages import ran_once
from tests.batch.test_slurm_life import Cluster
from tests.systems.slurm import SlurmNode
from tests.systems.system import ROOT

FAILING = ROOT / "tests" / "batch" / "apps" / "failing.py"


@pytest.fixture
def cluster(slurm: SlurmNode, slurm_dir: Path) -> Cluster:
    return Cluster(slurm, slurm_dir)


def test_a_master_that_is_killed_or_requeued_continues_from_its_run_database(cluster: Cluster) -> None:
    """The result is exact, and no stored result is computed again."""
    stages = cluster.use_stages(3)
    cluster.replace("slaves", "--mw-slave", "--mw-slave --mw-grace-period 0.5")
    master = cluster.master()
    slaves = cluster.slaves("0-2")
    stages.reach(0)
    os.kill(int(json.loads(cluster.resource.read_text())["generation"].split("-")[1]), signal.SIGKILL)
    stages.until_life(2)
    stages.reach(1)
    cluster("scontrol", "requeue", master)
    stages.until_life(3)
    stages.open(2)
    cluster.nobody_left()
    stages.check((cluster.folder / "slurm" / f"master.{master}.out").read_text())
    assert cluster.ended(master) == ["COMPLETED 0:0"], cluster.story()
    assert cluster.ended(slaves) == ["COMPLETED 0:0"] * 3, cluster.story()


def ended(cluster: Cluster, end: str, *options: str) -> tuple[str, str]:
    """Run the failing application until its job has ended. Return the job and how it ended."""
    cluster.use(FAILING, "--mw-local 1")
    (cluster.folder / "end").write_text(end)
    job = cluster("sbatch", "--parsable", *options, "slurm/master.sbatch", *cluster.app)
    cluster.gone(job)
    [outcome] = cluster.ended(job)
    return job, outcome


@pytest.mark.long
@pytest.mark.parametrize(("end", "starts", "outcome"), [("badly", 1, "FAILED 255:0"), ("killed", 2, "FAILED 137:0")])
def test_only_a_master_that_a_signal_ends_starts_again(cluster: Cluster, end: str, starts: int, outcome: str) -> None:
    """A mistake in the script would happen again at each start. The number of starts after signals has a limit."""
    cluster.replace("master", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20", "0 1")
    assert ended(cluster, end)[1] == outcome, cluster.story()
    assert (cluster.folder / "starts").read_text() == "started\n" * starts
    ran_once(cluster.folder)


@pytest.mark.long
def test_another_job_continues_with_the_run_database_of_a_failed_one(cluster: Cluster) -> None:
    """After a correction of the script, no task runs again."""
    failed, _ = ended(cluster, "badly")
    second, outcome = ended(cluster, "well", f"--export=ALL,DATABASE=slurm/master.{failed}.db")
    assert outcome == "COMPLETED 0:0", cluster.story()
    assert (cluster.folder / "slurm" / f"master.{second}.out").read_text() == f"{ran_once(cluster.folder)}\n"
