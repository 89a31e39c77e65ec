"""A simulated batch system with every fault: the edge that an overseer sees, and the jobs behind it.

Jobs wait, start, are evicted or held, die young, never connect, or do not end. The list of jobs fails or is late, and
answers get lost. Times are whole seconds here.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from mwpy._batch import BatchUnavailable, Launch
from mwpy._simulation.cluster import Cluster
from mwpy._simulation.machines import AgentHost
from mwpy._values.errors import ExitCode
from mwpy._values.jobs import Job, JobState, Outcome

__all__ = ["SimulatedBatch", "SimulatedJob"]

MACHINES = ("bad", "m1", "m2")
"""The machines. On the first one, all jobs may fail at their start."""

NOTICE_S = 6
"""Within this many seconds an overseer can know that a job is at work: a resource file may be read 5 s late."""


class SimulatedJob(Struct, eq=False):
    """A simulated job."""

    job_id: str
    mark: str
    listed_at: int
    """When it first appears in the list."""
    starts_at: int
    state: JobState = JobState.QUEUED
    started_at: int = 0
    dies_at: int | None = None
    """When it fails at its start, if it does."""
    connects_at: int | None = None
    """When its agent connects to the master; None if it never does, or has ended."""
    host: AgentHost | None = None
    """The machine of its agent, in this cluster."""
    cluster: Cluster | None = None
    evicted: bool = False
    """Whether it returns to the queue when its agent has ended."""
    idle_at: int = 0
    """The last time when its master did not need it."""
    uncounted: bool = False
    """Whether the overseer cannot know that it is useful: it never connects, or it exists although it was replaced."""
    leaves_at: int = 0
    avoided: tuple[str, ...] = ()
    """The machines on which it must not run."""
    machine: str = ""
    """The machine on which it runs or ran last."""

    def join(self, cluster: Cluster, slaves: int, ended: Callable[[ExitCode | None], None], now: int) -> None:
        """Connect its agent to a master."""
        self.idle_at = now
        self.cluster = cluster
        self.host = AgentHost(f"job {self.job_id}", ended, slaves, self.job_id)
        cluster.add_agent(self.host)

    def kill(self) -> None:
        """End its processes without warning."""
        if self.cluster is not None and self.host is not None:
            self.cluster.end_agent(self.host)

    def terminate(self) -> None:
        """Send SIGTERM to its agent."""
        if self.cluster is not None and self.host is not None:
            self.cluster.terminate(self.host, "the batch system wants the machine back")

    @property
    def useful(self) -> bool:
        """Whether it counts as a job that is useful, or will be useful."""
        leaves = self.host is not None and self.host.core is not None and self.host.core.leaving
        return self.state in (JobState.QUEUED, JobState.RUNNING) and not leaves and not self.uncounted


class SimulatedBatch(Struct, eq=False):
    """A simulated batch system; it is a `Batch`."""

    random: random.Random
    after_submission: Callable[[str], None] = lambda _: None
    """This function is called with the mark after each attempt to submit."""
    may_take: Callable[[SimulatedJob], bool] = lambda _: False
    """This function returns whether a job may be removed although it is at work."""
    faulty: bool = True
    lag_s: int = 0
    """A submitted job may be missing in the list for this many seconds."""
    broken: bool = False
    """Whether all jobs fail at their start at present."""
    has_bad_machine: bool = False
    """Whether all jobs fail at their start on one machine."""
    now: int = 0
    queue: dict[str, SimulatedJob] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    submitted: Counter[str] = field(default_factory=Counter)
    """How many jobs of each mark were submitted."""
    replaceable: Counter[str] = field(default_factory=Counter)
    """The largest number of jobs of each mark that needed a replacement."""
    _clusters: int = 0

    # ---- the edge that an overseer sees --------------------------------------------------------------------

    def submit(self, launch: Launch, count: int) -> list[str]:
        """Submit jobs; sometimes refuse, sometimes lose the answer."""
        if self.chance(0.1):
            raise BatchUnavailable("refused")
        self._clusters += 1
        self.submitted[launch.mark] += count
        job_ids = [f"{self._clusters}.{number}" for number in range(count)]
        for job_id in job_ids:
            starts_at = self.now + self.random.choice([0, 1, 5, 60])
            listed_at = self.now + self.random.randint(0, self.lag_s)
            self.queue[job_id] = SimulatedJob(job_id, launch.mark, listed_at, starts_at, avoided=launch.avoided)
        self.after_submission(launch.mark)
        if self.chance(0.1):
            raise BatchUnavailable("the answer is lost")
        return job_ids

    def free_places(self, slaves: int) -> None:
        """Jobs are always taken."""

    def jobs(self) -> list[Job]:
        """List the jobs; sometimes do not answer."""
        if self.chance(0.1):
            raise BatchUnavailable("down")
        return [self._shown(job) for job in self.queue.values() if self.now >= job.listed_at]

    def remove(self, job_ids: Sequence[str]) -> None:
        """Remove jobs; sometimes refuse."""
        if self.chance(0.1):
            raise BatchUnavailable("refused")
        for job_id in job_ids:
            if job_id in self.queue:
                self._remove(self.queue[job_id])

    def outcome(self, job_id: str) -> Outcome | None:
        """How a job ended; sometimes this is not known yet."""
        return None if self.chance(0.2) else self.outcomes.get(job_id)

    def _shown(self, job: SimulatedJob) -> Job:
        running_s = float(self.now - job.started_at) if job.state is JobState.RUNNING else 0.0
        return Job(job.job_id, job.mark, job.state, running_s, host=job.machine)

    def _remove(self, job: SimulatedJob) -> None:
        worked_s = self.now - job.idle_at if job.host is not None else 0
        takes = worked_s > NOTICE_S
        assert not takes or self.may_take(job), f"{job.job_id} is removed and has worked for {worked_s} s"
        self.replaceable[job.mark] += takes or job.state is JobState.QUEUED  # others may have needed its place
        if self.chance(0.05):  # the removal does not work
            job.uncounted = True
            self.replaceable[job.mark] += 1
        elif job.state is not JobState.LEAVING:
            job.state, job.leaves_at = JobState.LEAVING, self.now + self.random.randint(0, 5)
            job.terminate()

    # ---- what happens to jobs ------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        """Whether a fault of this probability happens."""
        return self.faulty and self.random.random() < probability

    def tick(self) -> None:
        """Simulate this second."""
        now = self.now
        for job in list(self.queue.values()):
            if job.state is JobState.LEAVING and now >= job.leaves_at:
                self.queue.pop(job.job_id)
                job.kill()
            elif job.state is JobState.QUEUED and now >= job.starts_at:
                self._start(job)
            elif job.state is JobState.RUNNING and self.chance(0.002):
                self._evict(job)
            elif job.state is JobState.RUNNING and job.dies_at is not None and now >= job.dies_at:
                self._end(job, 1)

    def end_agent(self, job: SimulatedJob, code: ExitCode | None) -> None:
        """Record that the agent of a job has ended, for any reason."""
        job.host = None
        if self.queue.get(job.job_id) is not job or job.state is not JobState.RUNNING:
            return
        if job.evicted:
            job.uncounted = True  # the master may have asked for another job before it noticed the eviction
            self.replaceable[job.mark] += 1
            self._queue_again(job)
        elif self.chance(0.05):
            self._never_connect(job)  # the script of this job does not end
        else:
            self._end(job, code)

    def _start(self, job: SimulatedJob) -> None:
        machines = [machine for machine in MACHINES if machine not in job.avoided]
        if not machines:
            return  # it waits until a machine joins the pool
        if self.chance(0.05):
            job.state = JobState.HELD
            self.replaceable[job.mark] += 1
            return
        job.state, job.started_at, job.idle_at = JobState.RUNNING, self.now, self.now
        job.machine = self.random.choice(machines)
        job.connects_at = self.now + self.random.randint(1, 5)
        if self.broken or self.chance(0.05) or (self.has_bad_machine and job.machine == MACHINES[0]):
            job.dies_at = self.now + self.random.randint(0, 10)
        elif self.chance(0.05):
            self._never_connect(job)

    def _never_connect(self, job: SimulatedJob) -> None:
        job.connects_at, job.uncounted = None, True
        self.replaceable[job.mark] += 1

    def _evict(self, job: SimulatedJob) -> None:
        job.evicted = True
        if job.host is not None and self.chance(0.5):
            job.terminate()
            return
        self._queue_again(job)
        job.kill()

    def _queue_again(self, job: SimulatedJob) -> None:
        job.state, job.starts_at, job.connects_at, job.evicted = JobState.QUEUED, self.now + 5, None, False

    def _end(self, job: SimulatedJob, code: int | None) -> None:
        """End a job with an exit code, or with SIGKILL."""
        del self.queue[job.job_id]
        self.replaceable[job.mark] += 1
        job.kill()
        ran_s = float(self.now - job.started_at)
        outcome = Outcome.of_process(-9 if code is None else code, ran_s, "last words")
        self.outcomes[job.job_id] = replace(outcome, host=job.machine)
