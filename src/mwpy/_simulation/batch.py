"""A simulated batch system with every fault, and a pool of overseers and computations that use it.

Jobs wait, start, are evicted or held, die young, never connect, or do not end. The list of jobs fails or is late, and
answers get lost. Times are whole seconds here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from attrs import Factory, define, evolve
from msgspec.structs import replace

from mwpy import resource_file
from mwpy._batch import BatchUnavailable, Launch
from mwpy._core.overseen import WatchedComputation
from mwpy._core.overseer import OverseerCore, OverseerSettings
from mwpy._roles.network import updated
from mwpy._roles.overseer import Overseer, agent_command
from mwpy._simulation.checkers import SimulationFailure
from mwpy._simulation.cluster import Cluster
from mwpy._simulation.machines import AgentHost, Pace
from mwpy._simulation.world import World
from mwpy._values import messages
from mwpy._values.errors import ExitCode, MasterUnreachable, ResourceFileError
from mwpy._values.jobs import Job, JobState, Outcome
from mwpy.resource_file import FINISHED, MemberKeys, ResourceFile

MACHINES = ("bad", "m1", "m2")
"""The machines. On the first one, all jobs may fail at their start."""

NOTICE_S = 6
"""Within this many seconds an overseer can know that a job is at work: a resource file may be read 5 s late."""


@define(eq=False, repr=False)
class SimulatedJob:
    """A simulated job."""

    job_id: str
    mark: str
    listed_at: float
    """When it first appears in the list."""
    starts_at: float
    state: JobState = JobState.QUEUED
    started_at: float = 0.0
    dies_at: float | None = None
    """When it fails at its start, if it does."""
    connects_at: float | None = None
    """When its agent connects to the master; None if it never does, or has ended."""
    host: AgentHost | None = None
    """The machine of its agent, in this cluster."""
    evicted: bool = False
    """Whether it returns to the queue when its agent has ended."""
    idle_at: float = 0.0
    """The last time when its master did not need it."""
    uncounted: bool = False
    """Whether the overseer cannot know that it is useful: it never connects, or it exists although it was replaced."""
    leaves_at: float = 0.0
    avoided: tuple[str, ...] = ()
    """The machines on which it must not run."""
    machine: str = ""
    """The machine on which it runs or ran last."""

    def kill(self) -> None:
        """End its processes without warning."""
        if self.host is not None:
            self.host.kill()

    def terminate(self) -> None:
        """Send SIGTERM to its agent."""
        if self.host is not None:
            self.host.terminate("the batch system wants the machine back")

    @property
    def useful(self) -> bool:
        """Whether it counts as a job that is useful, or will be useful."""
        leaves = self.host is not None and self.host.core is not None and self.host.core.leaving
        return self.state in (JobState.QUEUED, JobState.RUNNING) and not leaves and not self.uncounted


@define(eq=False, repr=False)
class SimulatedBatch:
    """A simulated batch system; it is a `Batch`."""

    _world: World
    _after_submission: Callable[[str], None]
    """This function is called with the mark after each attempt to submit."""
    lag_s: int = 0
    """A submitted job may be missing in the list for this many seconds."""
    broken: bool = False
    """Whether all jobs fail at their start at present."""
    has_bad_machine: bool = False
    """Whether all jobs fail at their start on one machine."""
    queue: dict[str, SimulatedJob] = Factory(dict)
    outcomes: dict[str, Outcome] = Factory(dict)
    submitted: Counter[str] = Factory(Counter)
    """How many jobs of each mark were submitted."""
    replaceable: Counter[str] = Factory(Counter)
    """The largest number of jobs of each mark that needed a replacement."""
    _clusters: int = 0

    # ---- the edge that an overseer sees --------------------------------------------------------------------

    def submit(self, launch: Launch, count: int) -> list[str]:
        """Submit jobs; sometimes refuse, sometimes lose the answer."""
        if self._world.chance(0.1):
            raise BatchUnavailable("refused")
        self._clusters += 1
        self.submitted[launch.mark] += count
        job_ids = [f"{self._clusters}.{number}" for number in range(count)]
        for job_id in job_ids:
            starts_at = self._world.now + self._world.random.choice([0, 1, 5, 60])
            listed_at = self._world.now + self._world.random.randint(0, self.lag_s)
            self.queue[job_id] = SimulatedJob(job_id, launch.mark, listed_at, starts_at, avoided=launch.avoided)
        self._after_submission(launch.mark)
        if self._world.chance(0.1):
            raise BatchUnavailable("the answer is lost")
        return job_ids

    def free_places(self, slaves: int) -> None:
        """Jobs are always taken."""

    def jobs(self) -> list[Job]:
        """List the jobs; sometimes do not answer."""
        if self._world.chance(0.1):
            raise BatchUnavailable("down")
        return [self._shown(job) for job in self.queue.values() if self._world.now >= job.listed_at]

    def remove(self, job_ids: Sequence[str]) -> None:
        """Remove jobs; sometimes refuse."""
        if self._world.chance(0.1):
            raise BatchUnavailable("refused")
        for job_id in job_ids:
            if job_id in self.queue:
                self._remove(self.queue[job_id])

    def outcome(self, job_id: str) -> Outcome | None:
        """How a job ended; sometimes this is not known yet."""
        return None if self._world.chance(0.2) else self.outcomes.get(job_id)

    def _shown(self, job: SimulatedJob) -> Job:
        running_s = self._world.now - job.started_at if job.state is JobState.RUNNING else 0.0
        return Job(job.job_id, job.mark, job.state, running_s, host=job.machine)

    def _remove(self, job: SimulatedJob) -> None:
        worked_s = self._world.now - job.idle_at if job.host is not None else 0
        assert worked_s <= NOTICE_S, f"{job.job_id} is removed and has worked for {worked_s} s"
        self.replaceable[job.mark] += job.state is JobState.QUEUED  # others may have needed its place
        if self._world.chance(0.05):  # the removal does not work
            job.uncounted = True
            self.replaceable[job.mark] += 1
        elif job.state is not JobState.LEAVING:
            job.state, job.leaves_at = JobState.LEAVING, self._world.now + self._world.random.randint(0, 5)
            job.terminate()

    # ---- what happens to jobs ------------------------------------------------------------------------------

    def tick(self) -> None:
        """Simulate this second."""
        now = self._world.now
        for job in list(self.queue.values()):
            if job.state is JobState.LEAVING and now >= job.leaves_at:
                self.queue.pop(job.job_id)
                job.kill()
            elif job.state is JobState.QUEUED and now >= job.starts_at:
                self._start(job)
            elif job.state is JobState.RUNNING and self._world.chance(0.002):
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
        elif self._world.chance(0.05):
            self._never_connect(job)  # the script of this job does not end
        else:
            self._end(job, code)

    def _start(self, job: SimulatedJob) -> None:
        machines = [machine for machine in MACHINES if machine not in job.avoided]
        if not machines:
            return  # it waits until a machine joins the pool
        if self._world.chance(0.05):
            job.state = JobState.HELD
            self.replaceable[job.mark] += 1
            return
        job.state, job.started_at, job.idle_at = JobState.RUNNING, self._world.now, self._world.now
        job.machine = self._world.random.choice(machines)
        job.connects_at = self._world.now + self._world.random.randint(1, 5)
        if self.broken or self._world.chance(0.05) or (self.has_bad_machine and job.machine == MACHINES[0]):
            job.dies_at = self._world.now + self._world.random.randint(0, 10)
        elif self._world.chance(0.05):
            self._never_connect(job)

    def _never_connect(self, job: SimulatedJob) -> None:
        job.connects_at, job.uncounted = None, True
        self.replaceable[job.mark] += 1

    def _evict(self, job: SimulatedJob) -> None:
        job.evicted = True
        if job.host is not None and self._world.chance(0.5):
            job.terminate()
            return
        self._queue_again(job)
        job.kill()

    def _queue_again(self, job: SimulatedJob) -> None:
        job.state, job.starts_at, job.connects_at, job.evicted = JobState.QUEUED, self._world.now + 5, None, False

    def _end(self, job: SimulatedJob, code: int | None) -> None:
        """End a job with an exit code, or with SIGKILL."""
        del self.queue[job.job_id]
        self.replaceable[job.mark] += 1
        job.kill()
        ran_s = self._world.now - job.started_at
        outcome = Outcome.of_process(-9 if code is None else code, ran_s, "last words")
        self.outcomes[job.job_id] = evolve(outcome, host=job.machine)


# Overseers of several computations on a simulated batch system, with every kind of fault.
#
# `OverseenPool(seed)` runs the real loop and core of an overseer, and the real cores of its masters and agents. Masters
# and agents run in a `Cluster` for each life of a master, with all its faults and checks. Everything around them is
# simulated, second by second. Masters are killed and come back. Resource files follow the real rules, but an overseer
# may read them late or not at all. `SimulatedBatch` is the batch system. The overseer itself is killed and started
# again. The same seed always gives the same history.
#
# Checkers look from outside. Every task ends exactly once in each life of a master that is long enough. There are never
# more jobs than the tasks could have used, or than are allowed. A job that has been at work for a while is never
# removed. When the faults stop, all computations finish and no job is left.


FAULTY_S = 600
"""Simulated seconds during which faults happen."""

LIMIT_S = 8000
"""A pool that has not ended after this many simulated seconds hangs. The longest pauses after failures are shorter."""

PACE = Pace(durations=(0.05, 5.0, 60.0), submit_s=100.0, start_s=10.0, fault_s=60.0, faulty_s=FAULTY_S, requires=False)

LATE_S = 5
"""A resource file may be read this many seconds late."""

LAG_S = 20
"""A submission may be missing in the list for this many seconds."""

EMPTY = ResourceFile("", 0.0, 60.0, "m", "", (), MemberKeys("", "", ""), 0, 0, 0, "agent", ())


@define(eq=False, repr=False)
class _Computation:
    """A computation and its resource file. When its master is killed, the next one begins from the start."""

    mark: str
    number: int
    world: World
    batch: SimulatedBatch
    slaves_per_job: int
    tasks: int
    clusters: list[Cluster] = Factory(list)
    """A cluster for each life of its master. Agents join only the last one."""
    down_until: float = 1.0
    useful: int = 0
    """How many slaves could be useful at present."""
    most_useful: int = 0
    grown: int = 0
    """The sum of all increases of `useful`."""
    content: ResourceFile | None = None
    history: list[ResourceFile] = Factory(list)
    """All contents that were written, in their order."""

    def tick(self, now: float) -> None:
        """Let a second pass: the master starts or dies, and writes the resource file."""
        for cluster in self.clusters:
            cluster.run_until(now)
        if now < self.down_until or self.finished:
            return
        if now == self.down_until:
            cluster = Cluster(self.world.random.randrange(1 << 32), 0, self.tasks, PACE, now, crashes=False)
            cluster.world.transcript = self.world.transcript
            self.clusters.append(cluster)
        elif self.world.chance(0.001):
            self.world.note(f"{self.mark}: the master is killed")
            self.down_until = now + 40
            for host in self.clusters[-1].hosts:
                host.cut_off()
            return
        self._write(now)

    @property
    def finished(self) -> bool:
        """Whether its resource file says that it is finished."""
        return self.content is not None and self.content.computation_status == FINISHED

    def accept_jobs(self, now: float) -> None:
        """Connect the agents of the jobs that run."""
        if now < self.down_until:
            return
        for job in list(self.batch.queue.values()):
            outside = job.mark == self.mark and job.state is JobState.RUNNING and job.host is None
            if outside and job.connects_at is not None and now >= job.connects_at:
                job.idle_at = now
                ended = partial(self.batch.end_agent, job)
                job.host = AgentHost(f"job {job.job_id}", ended, self.slaves_per_job, job.job_id)
                self.clusters[-1].add_agent(job.host)

    def _write(self, now: float) -> None:
        cluster = self.clusters[-1]
        before = self.useful
        self.useful = cluster.submitted - len(cluster.ended) + sum(cluster.core.kinds.wanted.values())
        self.most_useful = max(self.most_useful, self.useful)
        self.grown += max(0, self.useful - before)
        for job in self.batch.queue.values():
            if job.mark == self.mark and (job.host is None or not cluster.needs(job.host)):
                job.idle_at = now
        last = self.content
        new = updated(replace(EMPTY, generation=str(len(self.clusters))), cluster.core, now)
        if last is None or last.generation != new.generation or resource_file.due(last, new):
            self.content = new
            self.history.append(new)


class _OverseerKilled(Exception):
    """The overseer is killed while it sleeps."""


class OverseenPool:
    """Some computations, a batch system, and an overseer, which sees the files and the clock through this.

    Args:
        seed: names the history.
    """

    def __init__(self, seed: int) -> None:
        self.world = World(seed, FAULTY_S, 0.0)
        random = self.world.random
        self.transcript = self.world.transcript
        self.batch = SimulatedBatch(self.world, self._check_for_storm)
        self.batch.has_bad_machine = random.random() < 0.5
        slaves = self.slaves_per_job = random.choice([1, 1, 4])
        most, a_minute, patience_s = (random.choice(each) for each in ([4, 10, 1000], [3, 200], [0.0, 30.0]))
        self.settings = OverseerSettings(int(most), int(a_minute), patience_s, 5.0)
        self.computations = {
            f"m{number}": _Computation(f"m{number}", number, self.world, self.batch, slaves, random.choice([1, 10, 60]))
            for number in range(random.randint(1, 3))
        }
        self.restarts = random.random() < 0.5
        """Whether overseers are killed."""
        if not self.restarts:  # an overseer that has just started only knows the list
            self.batch.lag_s = random.choice([0, LAG_S])
        self._core = OverseerCore(self.settings)
        self._found = False
        """Whether the overseer that runs has found the computations."""

    def run(self) -> None:
        """Run until all computations are finished and no job is left.

        Raises:
            SimulationFailure: a check failed.
        """
        try:
            while not self._oversee():
                self.world.note("the overseer is killed and started again")
            self._check_end()
        except Exception as error:
            raise SimulationFailure(self.world.seed, self.transcript[-400:], repr(error)) from error

    def _oversee(self) -> bool:
        """Run an overseer; return False if it was killed."""
        self._core, self._found = OverseerCore(self.settings), False
        try:
            Overseer(self._core, cast(Any, self), self.batch, self, self.world.note).run()
        except _OverseerKilled:
            return False
        return True

    def _tick(self) -> None:
        """Let a second pass."""
        world = self.world
        assert world.now < LIMIT_S, "it hangs: a computation never finished, or jobs are left"
        world.now += 1.0
        if not world.faulty or world.random.random() < 0.01:
            self.batch.broken = world.chance(0.2)
        for each in self.computations.values():
            each.tick(world.now)
        self.batch.tick()
        for each in self.computations.values():
            each.accept_jobs(world.now)

    # ---- the resource files as an overseer sees them -------------------------------------------------------

    @property
    def more_may_come(self) -> bool:
        """Whether the history must go on."""
        return self.world.now <= FAULTY_S or not all(each.finished for each in self.computations.values())

    def find(self) -> list[WatchedComputation]:
        """Return all computations at the first call."""
        new, self._found = [] if self._found else self.computations.values(), True
        return [WatchedComputation(each.mark, each.mark, each.number % 2, self.slaves_per_job) for each in new]

    def read(self, mark: str) -> ResourceFile:
        """Read a file; sometimes late, sometimes torn."""
        late_s = self.world.random.randint(0, LATE_S) if self.world.faulty else 0
        seen = [each for each in self.computations[mark].history if each.timestamp <= self.world.now - late_s]
        if not seen or self.world.chance(0.05):
            raise ResourceFileError("torn")
        return seen[-1]

    def drain(self, mark: str, job_ids: Sequence[str]) -> None:
        """Ask a master to let agents leave after their tasks; sometimes lose the answer."""
        computation = self.computations[mark]
        if self.world.now < computation.down_until:
            raise MasterUnreachable("no answer")
        if not computation.finished:
            master = computation.clusters[-1].master
            mine = master.io.core.state.settings
            master.network.inquire(messages.Ask(mine.member_id, mine.generation, drain=[*job_ids]))
        if self.world.chance(0.1):
            raise MasterUnreachable("the answer is lost")

    def publish(self, mark: str, found: object) -> None:
        """Do nothing: there is no page."""

    def launch(self, mark: str, content: ResourceFile) -> Launch:
        """Prepare a launch."""
        slaves = self.slaves_per_job
        return Launch(mark, f"/{mark}.rsc", agent_command(content, (), slaves), slaves, "/logs")

    # ---- the clock of an overseer --------------------------------------------------------------------------

    def monotonic(self) -> float:
        """The simulated time."""
        return self.world.now

    wall = monotonic

    def sleep(self, seconds: float, /) -> None:
        """Let time pass for the whole pool. Sometimes the overseer is killed in this time."""
        until = self.world.now + seconds
        while self.world.now < until:
            self._tick()
            if self.restarts and self.world.chance(0.02):
                raise _OverseerKilled

    # ---- checks from outside -------------------------------------------------------------------------------

    def _check_for_storm(self, mark: str) -> None:
        jobs = [job for job in self.batch.queue.values() if job.state is not JobState.LEAVING]
        most = self.settings.max_jobs
        assert len(jobs) <= most, f"there are {len(jobs)} jobs, and only {most} are allowed"
        useful = sum(job.mark == mark and job.useful for job in jobs)
        most = -(-self.computations[mark].most_useful // self.slaves_per_job)
        assert useful <= most, f"there are {useful} jobs of {mark}, which never had work for more than {most}"

    def _check_end(self) -> None:
        assert not self.batch.queue, f"jobs are left: {list(self.batch.queue)}"
        for each in self.computations.values():
            submitted, replaceable = self.batch.submitted[each.mark], self.batch.replaceable[each.mark]
            assert submitted <= each.grown + replaceable, (
                f"{submitted} jobs of {each.mark} were submitted, but {each.grown} were useful and {replaceable} lost"
            )
