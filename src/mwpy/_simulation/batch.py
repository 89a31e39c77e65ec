"""Overseers of several computations on a simulated batch system, with every fault on.

`OverseenPool(seed)` runs the real cores of an overseer, of the masters and of the agents that its jobs are, the latter
two in a `Cluster` for each life of a master, with all its faults and its witness. Around them are simulated, second by
second: masters that are killed and come back; resource files, made and written as the real ones are, that are read late
or not at all; and a batch system whose jobs wait, start, are evicted, held, die young, never connect or do not end,
whose list fails or lags, whose answers get lost. The overseer itself is killed and started again. One seed is one
history.

Looked at from outside: every task ends exactly once in each life of a master that is long enough; at no time are there
more jobs than the tasks could ever have used, or than are allowed; no job is removed that has been at work for a while;
and when the faults stop, all computations finish and no job is left.

    >>> pool = OverseenPool(seed=1)
    >>> pool.run()
    >>> pool.core.done, pool.batch.jobs
    (True, {})
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator

from attrs import define, field

from mwpy import resource_file
from mwpy._core.overseer.core import (
    Ended,
    FileRead,
    FileUnread,
    Listed,
    NotListed,
    NotRemoved,
    NotSubmitted,
    OverseerCore,
    OverseerSettings,
    Submit,
    Submitted,
)
from mwpy._core.overseer.oversight import Oversight
from mwpy._roles.master_io import updated
from mwpy._roles.overseer import need_of
from mwpy._simulation.cluster import Cluster, SimulationFailure
from mwpy._simulation.machines import AgentHost, Pace
from mwpy._values.errors import ExitCode
from mwpy._values.jobs import Job, JobState, Outcome
from mwpy.resource_file import FINISHED, MemberKeys, ResourceFile

__all__ = ["OverseenPool"]

FAULTY_S = 600
"""Simulated seconds during which faults happen."""

TENDED_S = 1500
"""When somebody has done what the overseer asked for: released held jobs, and ended those that never connected."""

LIMIT_S = 8000
"""Simulated seconds after which what has not ended hangs; the longest pauses after failures are within."""

LATE_S = 5
"""Seconds by which a resource file may be seen late."""

LAG_S = 20
"""Seconds by which a submission may be missing in the list."""

NOTICE_S = LATE_S + 1
"""Seconds within which an overseer can know that a job is at work."""


@define(eq=False)
class _Job:
    """A simulated job."""

    job_id: str
    mark: str
    shown_at: int
    """When it is in the list first."""
    starts_at: int
    state: JobState = JobState.QUEUED
    started_at: int = 0
    dies_at: int | None = None
    """When it dies of its start, if it does."""
    connects_at: int | None = None
    """When its agent comes to the master's address; None for one that never does, or no more."""
    host: AgentHost | None = None
    """Where its agent is, in this cluster."""
    cluster: Cluster | None = None
    evicted: bool = False
    """It goes back into the queue when its agent has gone."""
    idle_at: int = 0
    """When it was last of no use to its master."""
    uncounted: bool = False
    """No overseer can know that it is of use: it never connects, or is there though another was to take its place."""
    leaves_at: int = 0

    def kill(self) -> None:
        """Its processes are gone, without a word."""
        if self.cluster is not None and self.host is not None:
            self.cluster.end_agent(self.host)

    def terminate(self) -> None:
        """Its agent is told to go."""
        if self.cluster is not None and self.host is not None:
            self.cluster.terminate(self.host, "the batch system wants the machine back")

    @property
    def living(self) -> bool:
        """Whether it counts as one that is or will be of use."""
        leaves = self.host is not None and self.host.core is not None and self.host.core.leaving
        return self.state in (JobState.QUEUED, JobState.RUNNING) and not leaves and not self.uncounted


@define(eq=False)
class _Batch:
    """A simulated batch system."""

    random: random.Random
    faulty: bool = True
    lag_s: int = 0
    broken: bool = False
    """Jobs die of their start, at present."""
    jobs: dict[str, _Job] = field(factory=dict)
    outcomes: dict[str, Outcome] = field(factory=dict)
    submitted: Counter[str] = field(factory=Counter)
    lost: Counter[str] = field(factory=Counter)
    """How many jobs of each mark needed another in their place, at the most."""
    _clusters: int = 0

    def chance(self, probability: float) -> bool:
        return self.faulty and self.random.random() < probability

    def submit(self, mark: str, count: int, now: int) -> list[str] | None:
        """The ids of new jobs; None if nobody knows whether there are any."""
        if self.chance(0.1):
            return None
        self._clusters += 1
        self.submitted[mark] += count
        for number in range(count):
            job = _Job(f"{self._clusters}.{number}", mark, now, now + self.random.choice([0, 1, 5, 60]))
            job.shown_at += self.random.randint(0, self.lag_s)
            self.jobs[job.job_id] = job
        return None if self.chance(0.1) else [f"{self._clusters}.{number}" for number in range(count)]

    def tick(self, now: int) -> None:
        """A second passes."""
        for job in list(self.jobs.values()):
            if job.state is JobState.LEAVING and now >= job.leaves_at:
                self.jobs.pop(job.job_id)
                job.kill()
            elif job.state is JobState.QUEUED and now >= job.starts_at:
                self._start(job, now)
            elif job.state is JobState.RUNNING and self.chance(0.002):
                self._evict(job, now)
            elif job.state is JobState.RUNNING and job.dies_at is not None and now >= job.dies_at:
                self.ends(job, 1, now)

    def _start(self, job: _Job, now: int) -> None:
        if self.chance(0.05):
            job.state = JobState.HELD
            self.lost[job.mark] += 1
            return
        job.state, job.started_at, job.idle_at = JobState.RUNNING, now, now
        job.connects_at = now + self.random.randint(1, 5)
        if self.broken or self.chance(0.05):
            job.dies_at = now + self.random.randint(0, 10)
        elif self.chance(0.05):
            self._is_no_use(job)

    def _is_no_use(self, job: _Job) -> None:
        """It runs, and never connects."""
        job.connects_at, job.uncounted = None, True
        self.lost[job.mark] += 1

    def _evict(self, job: _Job, now: int) -> None:
        job.evicted = True
        if job.host is not None and self.chance(0.5):
            job.terminate()
            return
        self._queue_again(job, now)
        job.kill()

    def _queue_again(self, job: _Job, now: int) -> None:
        job.state, job.starts_at, job.connects_at, job.evicted = JobState.QUEUED, now + 5, None, False

    def tend(self, mark: str, now: int) -> None:
        """Do what the overseer leaves to people."""
        for job in [job for job in self.jobs.values() if job.mark == mark]:
            if job.state is JobState.HELD:
                self._queue_again(job, now)
            elif job.state is JobState.RUNNING and job.connects_at is None:
                self.ends(job, None, now)

    def agent_ended(self, job: _Job, code: ExitCode | None, now: int) -> None:
        """The agent of a job is gone, for whatever reason."""
        job.host = None
        if self.jobs.get(job.job_id) is not job or job.state is not JobState.RUNNING:
            return
        if job.evicted:
            job.uncounted = True  # in its last seconds the master may have asked for another
            self.lost[job.mark] += 1
            self._queue_again(job, now)
        elif self.chance(0.05):
            self._is_no_use(job)  # its script does not end
        else:
            self.ends(job, code, now)

    def ends(self, job: _Job, code: int | None, now: int) -> None:
        """A job exits, or is killed by a signal."""
        del self.jobs[job.job_id]
        self.lost[job.mark] += 1
        job.kill()
        ran_s = float(now - job.started_at)
        self.outcomes[job.job_id] = Outcome.of_process(-9 if code is None else code, ran_s, "last words")

    def remove(self, job: _Job, now: int) -> None:
        self.lost[job.mark] += job.state is JobState.QUEUED  # its place may have been needed for others
        if self.chance(0.05):
            job.uncounted = True
            self.lost[job.mark] += 1
        elif job.state is not JobState.LEAVING:
            job.state, job.leaves_at = JobState.LEAVING, now + self.random.randint(0, 5)
            job.terminate()

    def list(self, now: int) -> list[Job]:
        return [
            Job(job.job_id, job.mark, job.state, float(now - job.started_at) if job.state is JobState.RUNNING else 0.0)
            for job in self.jobs.values()
            if now >= job.shown_at
        ]


@define(eq=False)
class _Computation:
    """A computation, and its resource file; whenever its master is killed, the next one begins again."""

    mark: str
    random: random.Random
    batch: _Batch
    processes: int
    tasks: int
    pace: Pace
    transcript: list[str]
    clusters: list[Cluster] = field(factory=list)
    """One for each life of its master; nobody joins any but the last."""
    down_until: int = 1
    useful: int = 0
    """How many slaves could be of use."""
    most_useful: int = 0
    grown: int = 0
    """The sum of all that came to it."""
    content: ResourceFile | None = None
    history: list[ResourceFile] = field(factory=list)
    """What was written, the last one last."""

    def tick(self, now: int) -> None:
        """A second passes: the master starts or dies, agents join, the resource file is written."""
        for cluster in self.clusters:
            cluster.run_until(now)
        if now < self.down_until or self.finished:
            return
        if now == self.down_until:
            cluster = Cluster(self.random.randrange(1 << 32), 0, self.tasks, self.pace, float(now))
            cluster.transcript = self.transcript
            self.clusters.append(cluster)
        elif self.batch.chance(0.001):
            self.transcript.append(f"{now:10.4f} {self.mark}: the master is killed")
            self.down_until = now + 40
            for host in self.clusters[-1].hosts:
                self.clusters[-1].cut_off(host)
            return
        self._write(now)

    @property
    def finished(self) -> bool:
        return self.content is not None and self.content.computation_status == FINISHED

    def join(self, now: int) -> None:
        """The jobs that have come so far join as agents."""
        if now < self.down_until:
            return
        for job in list(self.batch.jobs.values()):
            outside = job.mark == self.mark and job.state is JobState.RUNNING and job.host is None
            if outside and job.connects_at is not None and now >= job.connects_at:
                self._join(job, now)

    def _join(self, job: _Job, now: int) -> None:
        job.idle_at = now
        job.cluster = cluster = self.clusters[-1]
        job.host = AgentHost(
            f"job {job.job_id}",
            lambda code: self.batch.agent_ended(job, code, math.ceil(cluster.now)),
            self.processes,
            job.job_id,
        )
        cluster.add_agent(job.host)

    def _write(self, now: int) -> None:
        cluster = self.clusters[-1]
        before, self.useful = (
            self.useful,
            cluster.submitted - len(cluster.ended) + sum(cluster.core.kinds.wanted.values()),
        )
        self.most_useful = max(self.most_useful, self.useful)
        self.grown += max(0, self.useful - before)
        empty = ResourceFile("", 0.0, 60.0, "m", str(len(self.clusters)), (), MemberKeys("", "", ""), 0, 0, 0, "", ())
        new = updated(empty, cluster.core, float(now))
        for job in self.batch.jobs.values():
            if job.mark == self.mark and (job.host is None or not cluster.needs(job.host)):
                job.idle_at = now
        if self.content is None or self.content.generation != new.generation or resource_file.due(self.content, new):
            self.content = new
            self.history.append(new)

    def seen(self, late_s: int, now: int) -> ResourceFile | None:
        """What a reader sees who sees it late."""
        return next((each for each in reversed(self.history) if each.timestamp <= now - late_s), None)


class OverseenPool:
    """Some computations, a batch system, and an overseer.

    Args:
        seed: names the history.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now = 0
        self.transcript: list[str] = []
        self.batch = _Batch(self.random)
        self.processes = self.random.choice([1, 1, 4])
        most, a_minute, patience_s = (self.random.choice(each) for each in ([10, 20, 1000], [3, 200], [0.0, 30.0]))
        self.settings = OverseerSettings(int(most), int(a_minute), patience_s, 5.0)
        pace = Pace(durations=(0.05, 5.0, 60.0), submit_s=100.0, start_s=10.0, fault_s=60.0, faulty_s=FAULTY_S)
        self.computations = [
            _Computation(
                f"m{number}",
                self.random,
                self.batch,
                self.processes,
                self.random.choice([1, 10, 60]),
                pace,
                self.transcript,
            )
            for number in range(self.random.randint(1, 3))
        ]
        self.restarts = self.random.random() < 0.5
        if not self.restarts:  # an overseer that was just started can only believe the list
            self.batch.lag_s = self.random.choice([0, LAG_S])
        self.core = self._overseer()

    def run(self) -> None:
        """Run until all computations are finished and no job is left.

        Raises:
            SimulationFailure: something was found that must not be.
        """
        try:
            while not self._over():
                assert self.now < LIMIT_S, "it hangs: a computation never finished, or jobs are left"
                self.now += 1
                self._tick()
            self._check_end()
        except Exception as error:
            raise SimulationFailure(self.seed, self.transcript[-400:], repr(error)) from error

    def _over(self) -> bool:
        return self.core.done and all(each.finished for each in self.computations) and self.now > FAULTY_S

    def _tick(self) -> None:
        self.batch.faulty = self.now < FAULTY_S
        if not self.batch.faulty or self.random.random() < 0.01:
            self.batch.broken = self.batch.chance(0.2)
        for each in self.computations:
            each.tick(self.now)
        self.batch.tick(self.now)
        if self.now == TENDED_S:
            for each in self.computations:
                if not each.finished:
                    self.batch.tend(each.mark, self.now)
        for each in self.computations:
            each.join(self.now)
        if self.restarts and self.batch.chance(0.02):
            self._tell("the overseer is killed and started again")
            self.core = self._overseer()
        if self.now >= self.core.next_deadline():
            self._round()

    def _overseer(self) -> OverseerCore:
        core = OverseerCore(self.settings)
        for number, each in enumerate(self.computations):
            core.watch(Oversight(each.mark, each.mark, number % 2, self.processes))
        return core

    def _tell(self, text: str) -> None:
        self.transcript.append(f"{self.now:10.4f} {text}")

    # ---- the overseer's shell --------------------------------------------------------------------------------

    def _round(self) -> None:
        for event in self._files():
            self.core.handle(event, self.now)
        fails = self.batch.chance(0.1)
        self.core.handle(NotListed("down") if fails else Listed(self.batch.list(self.now)), self.now)
        while True:
            self.core.decide(self.now)
            self.core.check()
            actions = self.core.take_actions()
            for line in actions.say:
                self._tell(line)
            if not actions.ask:
                break
            for job_id in actions.ask:
                known = None if self.batch.chance(0.2) else self.batch.outcomes.get(job_id)
                self.core.handle(Ended(job_id, known), self.now)
        if actions.remove and self.batch.chance(0.1):
            self.core.handle(NotRemoved(actions.remove, "refused"), self.now)
        else:
            for job_id in actions.remove:
                self._remove(job_id)
        for submit in actions.submit:
            self._submit(submit)

    def _files(self) -> Iterator[FileRead | FileUnread]:
        for each in self.computations:
            content = each.seen(self.random.randint(0, LATE_S) if self.batch.faulty else 0, self.now)
            if content is None or self.batch.chance(0.05):
                yield FileUnread(each.mark, "torn")
            else:
                yield FileRead(each.mark, need_of(content, self.now))

    def _submit(self, submit: Submit) -> None:
        job_ids = self.batch.submit(submit.mark, submit.count, self.now)
        if job_ids is None:
            self.core.handle(NotSubmitted(submit.mark, submit.count, "no answer"), self.now)
        else:
            self.core.handle(Submitted(submit.mark, job_ids), self.now)
        self._check_for_storm(submit.mark)

    def _remove(self, job_id: str) -> None:
        job = self.batch.jobs.get(job_id)
        if job is None:
            return
        worked_s = self.now - job.idle_at if job.host is not None else 0
        assert worked_s <= NOTICE_S, f"{job_id} is removed and has worked for {worked_s} s"
        self.batch.remove(job, self.now)

    # ---- looked at from outside --------------------------------------------------------------------------------

    def _check_for_storm(self, mark: str) -> None:
        jobs = [job for job in self.batch.jobs.values() if job.state is not JobState.LEAVING]
        assert len(jobs) <= self.settings.most, f"{len(jobs)} jobs, and {self.settings.most} are allowed"
        living = sum(job.mark == mark and job.living for job in jobs)
        [slaves] = [each.most_useful for each in self.computations if each.mark == mark]
        most = -(-slaves // self.processes)
        assert living <= most, f"{living} jobs of {mark}, which never had work for more than {most}"

    def _check_end(self) -> None:
        assert not self.batch.jobs, f"jobs are left: {list(self.batch.jobs)}"
        for each in self.computations:
            submitted, lost = self.batch.submitted[each.mark], self.batch.lost[each.mark]
            assert submitted <= each.grown + lost, (
                f"{submitted} jobs of {each.mark}, of use: {each.grown}, lost: {lost}"
            )
