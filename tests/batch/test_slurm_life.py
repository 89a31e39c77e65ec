"""A computation in a real Slurm, started with the scripts in slurm/, by a user without privileges."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import define
from tests.batch.stages import Stages
from tests.batch.systems import in_use, until, user_folder
from tests.systems.slurm import SlurmNode
from tests.systems.system import ROOT

from mwpy._doctor.examination import read_report
from mwpy.resource_file import FINISHED

STAY = ROOT / "tests" / "batch" / "apps" / "stay.py"
STAGES = ROOT / "tests" / "batch" / "apps" / "stages.py"
ENDLESS = ROOT / "tests" / "batch" / "apps" / "endless.py"
THREADS = ROOT / "tests" / "batch" / "apps" / "threads.py"

OWN_PORT = 16917


@define
class Cluster:
    """A Slurm, and the folder of a user with the two scripts."""

    slurm: SlurmNode
    folder: Path
    app: tuple[str, ...] = ()
    """A script and its arguments; ping if it is empty."""

    def use(self, app: Path, arguments: str) -> None:
        """Use another application than ping."""
        shutil.copy(app, self.folder)
        self.app = (app.name, *arguments.split())

    def use_stages(self, number: int) -> Stages:
        """Use a computation in stages."""
        stages = Stages(self.folder, number)
        self.use(STAGES, stages.arguments)
        return stages

    @property
    def resource(self) -> Path:
        return self.folder / f"{Path(self.app[0]).stem if self.app else 'ping'}.rsc"

    def replace(self, script: str, old: str, new: str) -> None:
        """Edit a script as a user would."""
        path = self.folder / "slurm" / f"{script}.sbatch"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    def __call__(self, *command: object) -> str:
        return self.slurm(*command, cwd=self.folder).stdout.strip()

    def master(self, *options: str) -> str:
        """Submit the master, wait until it runs, and return its job id."""
        resource = self.resource
        before = resource.stat().st_mtime_ns if resource.exists() else 0
        job = self("sbatch", "--parsable", *options, "slurm/master.sbatch", *self.app)
        until(lambda: resource.exists() and resource.stat().st_mtime_ns > before, "a new resource file")
        return job

    def slaves(self, array: str = "0-3", *options: str) -> str:
        return self("sbatch", "--parsable", f"--array={array}", *options, "slurm/slaves.sbatch", *self.app[:1])

    def queue(self) -> list[tuple[str, str]]:
        """Return id and state of each job in the queue that was submitted from this folder."""
        lines = [line.split("|") for line in self("squeue", "-h", "-r", "-o", "%i|%T|%Z").splitlines()]
        return [(job, state) for job, state, place in lines if place == str(self.folder)]

    def running(self, job: str) -> int:
        return sum(state == "RUNNING" and name.startswith(f"{job}_") for name, state in self.queue())

    def ended(self, job: str) -> list[str]:
        """Return state and exit code of a job, or of each element of an array."""
        shown = self("scontrol", "-o", "show", "job", job).splitlines()
        fields = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in shown]
        return [f"{each['JobState']} {each['ExitCode']}" for each in fields]

    def gone(self, job: str) -> None:
        until(
            lambda: job not in [name.split("_")[0] for name, _ in self.queue()], lambda: f"no job {job}: {self.queue()}"
        )

    def nobody_left(self) -> None:
        until(lambda: not self.queue(), lambda: f"no job in the queue, but {self.queue()}\n{self.story()}")

    def audit(self, job: str) -> str:
        path = self.folder / "slurm" / f"master.{job}.audit"
        return path.read_text() if path.exists() else ""

    def report(self, job: str) -> dict[str, object]:
        """Return the JSON in the last line of a master's output."""
        text = (self.folder / "slurm" / f"master.{job}.out").read_text()
        assert text, self.story()
        report: dict[str, object] = json.loads(text.splitlines()[-1])
        return report

    def story(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-500:]}" for path in self.folder.glob("slurm/*.err"))

    def until_connected(self, job: str, slaves: int) -> None:
        """Wait until this number of slaves is connected to a master."""
        until(lambda: self.audit(job).count("-> connected, host") >= slaves, lambda: f"{slaves} slaves\n{self.story()}")


@pytest.fixture
def cluster(slurm: SlurmNode, slurm_dir: Path) -> Cluster:
    return Cluster(slurm, slurm_dir)


def test_the_two_scripts_run_ping(cluster: Cluster) -> None:
    """There are more slaves than processors. The late ones read that the computation is finished."""
    assert cluster("sinfo", "-h", "-o", "%C").endswith("/8"), "with more processors nobody comes late"
    master = cluster("sbatch", "--parsable", "slurm/master.sbatch")
    slaves = cluster("sbatch", "--parsable", f"--dependency=after:{master}", "slurm/slaves.sbatch")
    cluster.nobody_left()
    assert cluster.ended(master) == ["COMPLETED 0:0"], cluster.story()
    assert cluster.ended(slaves) == ["COMPLETED 0:0"] * 10
    assert "100000 pings: 100000 good, 0 bad" in (cluster.folder / "slurm" / f"master.{master}.out").read_text()
    audit = cluster.audit(master)
    assert audit.count("-> connected, host") == audit.count("-> left: shut down by the master") >= 1
    late = [path for path in cluster.folder.glob("slurm/slaves.*.err") if "is finished" in path.read_text()]
    assert len(late) >= 3, cluster.story()
    assert FINISHED in cluster.resource.read_text()


def test_a_slave_starts_no_more_threads_than_its_job_has_processors(cluster: Cluster) -> None:
    """This Slurm does not bind jobs to processors, so a job could use all of them."""
    cluster.use(THREADS, "1")
    master = cluster.master()
    slave = cluster.slaves("0")
    cluster.nobody_left()
    assert cluster.report(master) == {"threads": [[f"{slave}_0", "1"]]}


def test_slaves_join_the_next_master_when_theirs_is_cancelled(cluster: Cluster) -> None:
    """The jobs of the slaves stay, and start agents again with the new resource file."""
    stages = cluster.use_stages(1)
    first = cluster.master()
    slaves = cluster.slaves()
    cluster.until_connected(first, 4)
    cluster("scancel", first)
    cluster.gone(first)
    assert cluster.running(slaves) == 4
    second = cluster.master()
    cluster.until_connected(second, 4)
    stages.open(0)
    cluster.nobody_left()
    assert cluster.report(second) == stages.report
    assert cluster.ended(slaves) == ["COMPLETED 0:0"] * 4


class Stays:
    """The task of `stay.py` in this cluster: the number of its starts, and the file that ends it."""

    def __init__(self, cluster: Cluster) -> None:
        self.diary, self.enough = cluster.folder / "diary", cluster.folder / "enough"
        self.cluster = cluster
        cluster.use(STAY, f"{self.diary} {self.enough}")
        cluster.replace("slaves", "--mw-slave", "--mw-slave --mw-grace-period 0.5")

    def starts(self) -> int:
        return len(self.diary.read_text().splitlines()) if self.diary.exists() else 0

    def again(self, *options: str) -> str:
        """Submit a slave, and wait until it has started the task."""
        before = self.starts()
        slave = self.cluster.slaves("0", *options)
        until(lambda: self.starts() > before, lambda: f"start {before + 1}: {self.cluster.story()}")
        return slave

    def until_its_limit(self) -> str:
        """Submit a slave with a time limit, until one has started the task before its limit, and wait for its end."""
        before = self.starts()
        for limit_s in (20, 40, 80, 160):
            slave = self.cluster.slaves("0", f"--export=ALL,SLURM_JOB_END_TIME={int(time.time()) + limit_s}")
            self.cluster.gone(slave)
            if self.starts() > before:
                return slave
        raise AssertionError(f"no slave starts in time: {self.cluster.story()}")


def test_scancel_and_requeue_of_slaves_lose_nothing_and_are_charged_to_no_task(cluster: Cluster) -> None:
    """A task that was running in five slaves when they were removed still runs again."""
    stays = Stays(cluster)
    master = cluster.master()
    for _ in range(4):
        slave = stays.again()
        cluster("scancel", slave)
        cluster.gone(slave)
    slave = stays.again()
    cluster("scontrol", "requeue", f"{slave}_0")
    until(lambda: stays.starts() == 6, lambda: f"another start: {cluster.story()}")
    stays.enough.touch()
    cluster.nobody_left()
    assert cluster.report(master) == {"starts": [6], "unrunnable": []}
    assert cluster.ended(slave) == ["COMPLETED 0:0"]


@pytest.mark.long
def test_slaves_and_masters_leave_before_their_time_limit(cluster: Cluster) -> None:
    """They know the limit from their environment and from a signal. Other slaves run the tasks of a slave. The
    algorithm of a master gets an error that says how to continue."""
    stays = Stays(cluster)
    master = cluster.master()
    soon = stays.until_its_limit()
    signalled = stays.again()
    cluster("scancel", "--batch", "--signal=TERM", f"{signalled}_0")
    cluster.gone(signalled)
    limit = ("--time=1", "--signal=B:TERM@55")
    shutil.copy(ENDLESS, cluster.folder)
    endless = cluster("sbatch", "--parsable", *limit, "slurm/master.sbatch", ENDLESS.name, "--mw-local", 1)
    warned = cluster.slaves("0", *limit)
    cluster.gone(warned)
    cluster.gone(endless)
    ended = [cluster.ended(job) for job in (soon, signalled, warned, endless)]
    assert ended == [["FAILED 5:0"]] * 4, cluster.story()
    last_line = (cluster.folder / "slurm" / f"master.{endless}.err").read_text().splitlines()[-1]
    assert last_line.startswith("mwpy: the time of the master is nearly over, and 1"), cluster.story()
    assert "continue with another job: the same command with the same --mw-run-database" in last_line
    stays.enough.touch()
    cluster.slaves("0")
    cluster.nobody_left()
    assert cluster.report(master)["unrunnable"] == []
    assert "-> left: its time limit is near" in cluster.audit(master)
    assert "-> left: evicted (SIGTERM)" in cluster.audit(master)
    assert ", walltime: AGENT-" in cluster.audit(master)
    assert ", evicted: AGENT-" in cluster.audit(master)


def test_each_slave_of_an_array_knows_its_time_limit(cluster: Cluster) -> None:
    """A slave without a limit knows that, too. These slaves only examine their host."""
    cluster.use(STAY, "diary enough")
    cluster.replace("slaves", "--mw-slave", "--mw-slave --mw-examine")
    cluster.master()
    began = time.monotonic()
    jobs = [cluster.slaves("0-1", f"--time={minutes}") for minutes in (10, 0)]
    for job in jobs:
        cluster.gone(job)
    files = [cluster.folder / "slurm" / f"slaves.{job}_{number}.err" for job in jobs for number in (0, 1)]
    reports = [read_report(path.read_text()) for path in files]
    found = [report.resources[-1].found for report in reports if report]
    left = [None if each == "no limit is known" else float(each.removesuffix(" s")) for each in found]
    least = 400 - (time.monotonic() - began)  # however long the jobs waited for their start
    assert [seconds and least < seconds <= 600 for seconds in left] == [True, True, None, None], cluster.story()


@pytest.mark.long
def test_slaves_without_a_master_try_again(cluster: Cluster) -> None:
    """The pauses between their attempts grow. A cancelled slave stops at once. In the end, a slave gives up."""
    began = time.monotonic()
    slaves = cluster.slaves("0-1")

    def tries() -> list[int]:
        found = cluster.folder.glob(f"slurm/slaves.{slaves}_*.err")
        return [path.read_text().count("start the master first") for path in found]

    until(lambda: len(tries()) == 2 and min(tries()) >= 2, lambda: f"a second try of each: {cluster.story()}")
    cluster("scancel", slaves)
    cluster.nobody_left()
    assert sum(start**2 for start in range(1, max(tries()))) <= time.monotonic() - began
    cluster.replace("slaves", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20", "0 1")
    last = cluster.slaves("0")
    cluster.nobody_left()
    assert cluster.ended(last) == ["FAILED 2:0"]


@pytest.fixture
def own_cluster(slurm: SlurmNode) -> Iterator[Cluster]:
    """A Slurm that no other test uses, because a restart of its daemons would disturb other tests."""
    with in_use(SlurmNode("slurm-restarted", OWN_PORT)) as node, user_folder(node) as folder:
        yield Cluster(node, folder)


@pytest.mark.long
def test_a_restart_of_slurm_does_not_disturb_running_jobs(own_cluster: Cluster) -> None:
    """A restart of this Slurm: only its daemons stop and start again."""
    stages = own_cluster.use_stages(2)
    master = own_cluster.master()
    slaves = own_cluster.slaves()
    own_cluster.until_connected(master, 4)
    stages.reach(0)
    own_cluster.slurm.restart()
    stages.open(1)
    own_cluster.nobody_left()
    assert own_cluster.report(master) == stages.report
    assert own_cluster.audit(master).count("-> connected, host") == 4
    assert own_cluster.ended(slaves) == ["COMPLETED 0:0"] * 4
