"""Overseers of several computations on a simulated batch system, with every kind of fault.

`OverseenPool(seed)` runs the real loop and core of an overseer, and the real cores of its masters and agents. Masters
and agents run in a `Cluster` for each life of a master, with all its faults and checks. Everything around them is
simulated, second by second. Masters are killed and come back. Resource files follow the real rules, but an overseer may
read them late or not at all. `SimulatedBatch` is the batch system. The overseer itself is killed and started again. The
same seed always gives the same history.

Checkers look from outside. Every task ends exactly once in each life of a master that is long enough. There are never
more jobs than the tasks could have used, or than are allowed. A job that has been at work for a while is removed only
if another computation has none. When the faults stop, all computations finish and no job is left.

    >>> pool = OverseenPool(seed=1)
    >>> pool.run()
    >>> all(each.finished for each in pool.computations), pool.batch.queue
    (True, {})
"""

from __future__ import annotations

import random
from collections.abc import Callable

from msgspec import Struct, field
from msgspec.structs import replace

from mwpy import resource_file
from mwpy._batch import Launch
from mwpy._core.overseer.computation import WatchedComputation
from mwpy._core.overseer.core import OverseerCore
from mwpy._core.overseer.state import OverseerSettings
from mwpy._roles.overseen_files import agent_command
from mwpy._roles.overseer import Overseer
from mwpy._roles.resource_keeper import updated
from mwpy._simulation.batch import SimulatedBatch, SimulatedJob
from mwpy._simulation.cluster import Cluster, SimulationFailure
from mwpy._simulation.machines import Pace
from mwpy._values.errors import ResourceFileError
from mwpy._values.jobs import JobState
from mwpy.resource_file import FINISHED, MemberKeys, ResourceFile

__all__ = ["OverseenPool"]

FAULTY_S = 600
"""Simulated seconds during which faults happen."""

LIMIT_S = 8000
"""A pool that has not ended after this many simulated seconds hangs. The longest pauses after failures are shorter."""

LATE_S = 5
"""A resource file may be read this many seconds late."""

LAG_S = 20
"""A submission may be missing in the list for this many seconds."""

EMPTY = ResourceFile("", 0.0, 60.0, "m", "", (), MemberKeys("", "", ""), 0, 0, 0, "agent", ())


class _Computation(Struct, eq=False):
    """A computation and its resource file. When its master is killed, the next one begins from the start."""

    mark: str
    number: int
    random: random.Random
    batch: SimulatedBatch
    slaves_per_job: int
    tasks: int
    pace: Pace
    transcript: list[str]
    clusters: list[Cluster] = field(default_factory=list)
    """A cluster for each life of its master. Agents join only the last one."""
    down_until: int = 1
    useful: int = 0
    """How many slaves could be useful at present."""
    most_useful: int = 0
    grown: int = 0
    """The sum of all increases of `useful`."""
    content: ResourceFile | None = None
    history: list[ResourceFile] = field(default_factory=list)
    """All contents that were written, in their order."""

    def tick(self, now: int) -> None:
        """Let a second pass: the master starts or dies, and writes the resource file."""
        for cluster in self.clusters:
            cluster.run_until(now)
        if now < self.down_until or self.finished:
            return
        if now == self.down_until:
            cluster = Cluster(self.random.randrange(1 << 32), 0, self.tasks, self.pace, float(now), crashes=False)
            cluster.world.transcript = self.transcript
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
        """Whether its resource file says that it is finished."""
        return self.content is not None and self.content.computation_status == FINISHED

    def accept_jobs(self, now: int) -> None:
        """Connect the agents of the jobs that run."""
        if now < self.down_until:
            return
        for job in list(self.batch.queue.values()):
            outside = job.mark == self.mark and job.state is JobState.RUNNING and job.host is None
            if outside and job.connects_at is not None and now >= job.connects_at:
                self._accept(job, now)

    def _accept(self, job: SimulatedJob, now: int) -> None:
        job.join(self.clusters[-1], self.slaves_per_job, lambda code: self.batch.end_agent(job, code), now)

    def _write(self, now: int) -> None:
        cluster = self.clusters[-1]
        before = self.useful
        self.useful = cluster.submitted - len(cluster.ended) + sum(cluster.core.kinds.wanted.values())
        self.most_useful = max(self.most_useful, self.useful)
        self.grown += max(0, self.useful - before)
        for job in self.batch.queue.values():
            if job.mark == self.mark and (job.host is None or not cluster.needs(job.host)):
                job.idle_at = now
        last = self.content
        new = updated(replace(EMPTY, generation=str(len(self.clusters))), cluster.core, float(now))
        if last is None or last.generation != new.generation or resource_file.due(last, new):
            self.content = new
            self.history.append(new)

    def seen(self, late_s: int, now: int) -> ResourceFile | None:
        """The content that a reader sees, if each change becomes visible this many seconds late."""
        return next((each for each in reversed(self.history) if each.timestamp <= now - late_s), None)


class _Files(Struct, eq=False):
    """The resource files as an overseer sees them; they are a `Files`."""

    pool: OverseenPool
    _found: bool = False

    @property
    def more_may_come(self) -> bool:
        """Whether the history must go on."""
        return self.pool.now <= FAULTY_S or not all(each.finished for each in self.pool.computations)

    def find(self) -> list[WatchedComputation]:
        """Return all computations at the first call."""
        new, self._found = [] if self._found else self.pool.computations, True
        return [WatchedComputation(each.mark, each.mark, each.number % 2, self.pool.slaves_per_job) for each in new]

    def read(self, mark: str) -> ResourceFile:
        """Read a file; sometimes late, sometimes torn."""
        late_s = self.pool.random.randint(0, LATE_S) if self.pool.batch.faulty else 0
        content = self.pool.computation(mark).seen(late_s, self.pool.now)
        if content is None or self.pool.batch.chance(0.05):
            raise ResourceFileError("torn")
        return content

    def launch(self, mark: str, content: ResourceFile) -> Launch:
        """Prepare a launch."""
        slaves = self.pool.slaves_per_job
        return Launch(mark, f"/{mark}.rsc", agent_command(content, (), slaves), slaves, "/logs")


class _OverseerKilled(Exception):
    """The overseer is killed while it sleeps."""


class _Clock(Struct, eq=False):
    """The time of the pool as an overseer sees it; it is a `Clock`."""

    pool: OverseenPool

    def monotonic(self) -> float:
        return float(self.pool.now)

    wall = monotonic

    def sleep(self, seconds: float) -> None:
        """Let time pass for the whole pool. Sometimes the overseer is killed in this time."""
        until = self.pool.now + seconds
        self.pool.check_core()
        while self.pool.now < until:
            self.pool.tick()
            if self.pool.restarts and self.pool.batch.chance(0.02):
                raise _OverseerKilled


class OverseenPool:
    """Some computations, a batch system, and an overseer.

    Args:
        seed: names the history.
        make_core: makes the core of each overseer.
    """

    def __init__(self, seed: int, make_core: Callable[[OverseerSettings], OverseerCore] = OverseerCore) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now = 0
        self.transcript: list[str] = []
        self.batch = SimulatedBatch(self.random, self._check_for_storm, self._is_other_starved)
        self.batch.has_bad_machine = self.random.random() < 0.5
        self.slaves_per_job = self.random.choice([1, 1, 4])
        most, a_minute, patience_s = (self.random.choice(each) for each in ([10, 20, 1000], [3, 200], [0.0, 30.0]))
        self.settings = OverseerSettings(int(most), int(a_minute), patience_s, 5.0)
        pace = Pace(durations=(0.05, 5.0, 60.0), submit_s=100.0, start_s=10.0, fault_s=60.0, faulty_s=FAULTY_S)
        self.computations = [
            _Computation(
                f"m{number}",
                number,
                self.random,
                self.batch,
                self.slaves_per_job,
                self.random.choice([1, 10, 60]),
                pace,
                self.transcript,
            )
            for number in range(self.random.randint(1, 3))
        ]
        self.restarts = self.random.random() < 0.5
        """Whether overseers are killed."""
        if not self.restarts:  # an overseer that has just started only knows the list
            self.batch.lag_s = self.random.choice([0, LAG_S])
        self._make_core = make_core
        self._core = make_core(self.settings)

    def run(self) -> None:
        """Run until all computations are finished and no job is left.

        Raises:
            SimulationFailure: a check failed.
        """
        try:
            while not self._oversee():
                self._note("the overseer is killed and started again")
            self._check_end()
        except Exception as error:
            raise SimulationFailure(self.seed, self.transcript[-400:], repr(error)) from error

    def _oversee(self) -> bool:
        """Run an overseer; return False if it was killed."""
        self._core = self._make_core(self.settings)
        try:
            Overseer(self._core, _Files(self), self.batch, _Clock(self), self._note).run()
        except _OverseerKilled:
            return False
        return True

    def tick(self) -> None:
        """Let a second pass."""
        assert self.now < LIMIT_S, "it hangs: a computation never finished, or jobs are left"
        self.now += 1
        self.batch.now = self.now
        self.batch.faulty = self.now < FAULTY_S
        if not self.batch.faulty or self.random.random() < 0.01:
            self.batch.broken = self.batch.chance(0.2)
        for each in self.computations:
            each.tick(self.now)
        self.batch.tick()
        for each in self.computations:
            each.accept_jobs(self.now)

    def computation(self, mark: str) -> _Computation:
        """The computation with this mark."""
        return next(each for each in self.computations if each.mark == mark)

    def _note(self, text: str) -> None:
        self.transcript.append(f"{self.now:10.4f} {text}")

    # ---- checks from outside -------------------------------------------------------------------------------

    def check_core(self) -> None:
        """Check that the state of the overseer's core is consistent."""
        self._core.check()

    def _check_for_storm(self, mark: str) -> None:
        self.check_core()
        jobs = [job for job in self.batch.queue.values() if job.state is not JobState.LEAVING]
        most = self.settings.max_jobs
        assert len(jobs) <= most, f"there are {len(jobs)} jobs, and only {most} are allowed"
        useful = sum(job.mark == mark and job.useful for job in jobs)
        most = -(-self.computation(mark).most_useful // self.slaves_per_job)
        assert useful <= most, f"there are {useful} jobs of {mark}, which never had work for more than {most}"

    def _is_other_starved(self, job: SimulatedJob) -> bool:
        """Whether another computation needs jobs and has none at work."""
        served = {each.mark for each in self.batch.queue.values() if each.host is not None}
        return any(each.useful and each.mark not in (job.mark, *served) for each in self.computations)

    def _check_end(self) -> None:
        assert not self.batch.queue, f"jobs are left: {list(self.batch.queue)}"
        for each in self.computations:
            submitted, replaceable = self.batch.submitted[each.mark], self.batch.replaceable[each.mark]
            assert submitted <= each.grown + replaceable, (
                f"{submitted} jobs of {each.mark} were submitted, but {each.grown} were useful and {replaceable} lost"
            )
