"""Overseers of several computations on a simulated batch system, with every fault on.

`OverseenPool(seed)` runs the real core of an overseer. Around it are simulated, second by second: masters that have
tasks in waves, crash, come back and finish; resource files, written when the real ones would be, that are read late or
not at all; and a batch system whose jobs wait, start, connect, are evicted, held, die young or never connect, whose
list fails or lags, whose answers get lost. The overseer itself is killed and started again. One seed is one history.

Looked at from outside: at no time are there more jobs than the tasks could ever have used, or than are allowed; no job
is removed that has been at work for a while; and when the faults stop, all computations finish and no job is left.

    >>> pool = OverseenPool(seed=1)
    >>> pool.run()
    >>> pool.core.done, pool.batch.jobs
    (True, {})
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from attrs import define, field

from mwpy import resource_file
from mwpy._core.overseer_core import (
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
from mwpy._core.oversight import Need, Oversight
from mwpy._jobs import Job, JobState, Outcome
from mwpy.resource_file import FINISHED, IN_PROGRESS, MemberKeys, ResourceFile
from mwpy.testing import SimulationFailure

__all__ = ["OverseenPool"]

FAULTY_S = 600
"""Simulated seconds during which faults happen."""

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
    connects_at: int | None = None
    """None for one that never does."""
    generation: str = ""
    """Of the master that it is connected to; empty if it is not."""
    busy: int = 0
    idle_at: int = 0
    """When it was last without work."""
    dies_at: int | None = None
    deaf: bool = False
    """It does not end with its master."""
    leaves_at: int = 0


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
    uncounted: int = 0
    """How many jobs no overseer can count: those that never connect, and those whose removal came to nothing."""
    _clusters: int = 0

    def chance(self, probability: float) -> bool:
        return self.faulty and self.random.random() < probability

    def submit(self, mark: str, count: int, now: int) -> list[str] | None:
        """The ids of new jobs; None if nobody knows whether there are any."""
        if self.chance(0.1):
            return None
        self._clusters += 1
        for number in range(count):
            job = _Job(f"{self._clusters}.{number}", mark, now, now + self.random.choice([0, 1, 5, 60]))
            job.shown_at += self.random.randint(0, self.lag_s)
            self.jobs[job.job_id] = job
        return None if self.chance(0.1) else [f"{self._clusters}.{number}" for number in range(count)]

    def tick(self, now: int) -> None:
        """A second passes."""
        for job in list(self.jobs.values()):
            if job.state is JobState.LEAVING and now >= job.leaves_at:
                del self.jobs[job.job_id]
            elif job.state is JobState.QUEUED and now >= job.starts_at:
                self._start(job, now)
            elif job.state is JobState.RUNNING and self.chance(0.002):
                job.state, job.starts_at, job.generation, job.busy = JobState.QUEUED, now + 5, "", 0
            elif job.state is JobState.RUNNING and job.dies_at is not None and now >= job.dies_at:
                self.ends(job, 1, now)

    def _start(self, job: _Job, now: int) -> None:
        if self.chance(0.05):
            job.state = JobState.HELD
            return
        job.state, job.started_at, job.idle_at = JobState.RUNNING, now, now
        job.connects_at = now + self.random.randint(1, 5)
        if self.broken or self.chance(0.05):
            job.dies_at = now + self.random.randint(0, 10)
        elif self.chance(0.05):
            job.connects_at = None
            self.uncounted += 1
        job.deaf = self.chance(0.05)

    def ends(self, job: _Job, code: int, now: int) -> None:
        """A job exits."""
        self.jobs.pop(job.job_id)
        self.outcomes[job.job_id] = Outcome(f"exit code {code}", code, float(now - job.started_at), "words")

    def remove(self, job: _Job, now: int) -> None:
        if self.chance(0.05):
            self.uncounted += 1
        elif job.state is not JobState.LEAVING:
            job.state, job.generation, job.leaves_at = JobState.LEAVING, "", now + self.random.randint(0, 5)

    def list(self, now: int) -> list[Job]:
        return [
            Job(job.job_id, job.mark, job.state, float(now - job.started_at) if job.state is JobState.RUNNING else 0.0)
            for job in self.jobs.values()
            if now >= job.shown_at
        ]


@define(eq=False)
class _Master:
    """A simulated master, and its resource file."""

    mark: str
    random: random.Random
    processes: int
    waves: int
    generation: int = 1
    down_until: int = 0
    tasks: int = 0
    most_tasks: int = 0
    """The most that it ever had."""
    content: ResourceFile | None = None
    history: list[ResourceFile] = field(factory=list)
    """What was written, the last one last."""

    def tick(self, batch: _Batch, now: int) -> None:
        """A second passes: agents connect, tasks end and are shared out, the resource file is written."""
        jobs = [job for job in batch.jobs.values() if job.mark == self.mark and job.state is JobState.RUNNING]
        if self.finished or now < self.down_until:
            for job in jobs:
                job.busy = 0
                if (job.generation or self.finished) and not job.deaf and not batch.chance(0.3):
                    batch.ends(job, 0 if self.finished else 255, now)
            return
        if batch.chance(0.001):
            self.generation, self.down_until, self.tasks = self.generation + 1, now + 40, 0
            self.waves += 1
        name = str(self.generation)
        for job in jobs:
            if job.generation not in ("", name):
                batch.ends(job, 255, now)
            elif not job.generation and job.connects_at is not None and now >= job.connects_at:
                job.generation = name
        self._work([job for job in jobs if job.generation == name], now)
        self._write(batch, name, now)

    @property
    def finished(self) -> bool:
        return self.content is not None and self.content.computation_status == FINISHED

    def _work(self, agents: list[_Job], now: int) -> None:
        for job in agents:
            for _ in range(job.busy):
                if self.random.random() < 0.03:
                    job.busy -= 1
                    self.tasks -= 1
        if self.waves and self.random.random() < 0.01:
            self.waves -= 1
            self.tasks += self.random.choice([1, 3, 10, 30])
            self.most_tasks = max(self.most_tasks, self.tasks)
        left = self.tasks
        for job in agents:
            job.busy = min(self.processes, left)
            left -= job.busy
            if not job.busy:
                job.idle_at = now

    def _write(self, batch: _Batch, generation: str, now: int) -> None:
        mine = [job for job in batch.jobs.values() if job.mark == self.mark and job.generation == generation]
        connected = len(mine) * self.processes
        new = ResourceFile(
            FINISHED if not self.waves and not self.tasks else IN_PROGRESS,
            float(now),
            60.0,
            "m",
            generation,
            (),
            MemberKeys("", "", ""),
            self.tasks,
            connected,
            max(0, self.tasks - connected),
            "",
            (),
            {job.job_id: job.busy for job in mine},
        )
        if self.content is None or self.content.generation != generation or resource_file.due(self.content, new):
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
        most, a_minute, patience_s = (self.random.choice(each) for each in ([5, 20, 1000], [3, 200], [0.0, 30.0]))
        self.settings = OverseerSettings(int(most), int(a_minute), patience_s, 5.0)
        self.masters = [
            _Master(f"m{number}", self.random, self.processes, self.random.randint(1, 4))
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
        except Exception as error:
            raise SimulationFailure(self.seed, self.transcript[-400:], repr(error)) from error

    def _over(self) -> bool:
        return self.core.done and all(master.finished for master in self.masters) and self.now > FAULTY_S

    def _tick(self) -> None:
        self.batch.faulty = self.now < FAULTY_S
        if not self.batch.faulty or self.random.random() < 0.01:
            self.batch.broken = self.batch.chance(0.2)
        self.batch.tick(self.now)
        for master in self.masters:
            master.tick(self.batch, self.now)
        if self.restarts and self.batch.chance(0.02):
            self._tell("the overseer is killed and started again")
            self.core = self._overseer()
        if self.now >= self.core.next_deadline():
            self._round()

    def _overseer(self) -> OverseerCore:
        core = OverseerCore(self.settings)
        for number, master in enumerate(self.masters):
            core.watch(Oversight(master.mark, master.mark, number % 2, self.processes))
        return core

    def _tell(self, text: str) -> None:
        self.transcript.append(f"{self.now:6} {text}")

    # ---- the overseer's shell --------------------------------------------------------------------------------

    def _round(self) -> None:
        for event in self._files():
            self.core.handle(event, self.now)
        fails = self.batch.chance(0.1)
        self.core.handle(NotListed("down") if fails else Listed(self.batch.list(self.now)), self.now)
        while True:
            self.core.allocate(self.now)
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
        for master in self.masters:
            content = master.seen(self.random.randint(0, LATE_S) if self.batch.faulty else 0, self.now)
            if content is None or self.batch.chance(0.05):
                yield FileUnread(master.mark, "torn")
                continue
            yield FileRead(
                master.mark,
                Need(
                    content.generation,
                    content.computation_status == FINISHED,
                    content.timestamp,
                    self.now - content.timestamp,
                    content.update_interval,
                    content.slaves_needed,
                    content.connected_jobs,
                ),
            )

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
        worked_s = self.now - job.idle_at if job.busy else 0
        assert worked_s <= NOTICE_S, f"{job_id} is removed and has worked for {worked_s} s"
        self.batch.remove(job, self.now)

    # ---- looked at from outside --------------------------------------------------------------------------------

    def _check_for_storm(self, mark: str) -> None:
        living = (JobState.QUEUED, JobState.RUNNING)
        jobs = [job for job in self.batch.jobs.values() if job.state is not JobState.LEAVING]
        assert len(jobs) <= self.settings.most, f"{len(jobs)} jobs, and {self.settings.most} are allowed"
        live = sum(job.mark == mark and job.state in living for job in jobs)
        [most] = [-(-master.most_tasks // self.processes) for master in self.masters if master.mark == mark]
        assert live <= most + self.batch.uncounted, f"{live} jobs of {mark}, whose tasks never were enough for {most}"
