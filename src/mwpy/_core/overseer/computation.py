"""One computation that an overseer watches.

A resource file is a snapshot. It says how many slaves were missing when it was written, and which jobs were connected.
So every job of this computation that the file does not name is on its way, and counts against the missing slaves:
submitted jobs that are in no list yet, waiting jobs, and running jobs that have not connected. This rule alone prevents
an overseer from submitting the same jobs twice. It also holds for an overseer that has just been started again.
"""

from __future__ import annotations

import math

from msgspec import Struct, field

from mwpy._core.overseer.failures import YOUNG_S
from mwpy._core.overseer.files import FileView
from mwpy._core.overseer.hosts import Hosts
from mwpy._core.overseer.job_table import JobTable
from mwpy._core.overseer.pauses import FailurePause, RefusalPause
from mwpy._values.jobs import Job, JobState

__all__ = ["CERTAIN_S", "ROUNDING_S", "UNCONNECTED_S", "WatchedComputation"]

CERTAIN_S = 3.0
"""A job counts as idle after the file has shown it as idle for this many seconds. If the job had got work, its master
would have written that in this time."""

UNCONNECTED_S = 600.0
"""A job that has been seen running without a connection for this many seconds no longer counts as being on its way."""

ROUNDING_S = 1e-6
"""A period counts as complete when less than this is left."""


class WatchedComputation(Struct, eq=False):
    """One computation: its resource file, its jobs, and what was decided about them."""

    mark: str
    name: str
    """Its name for people."""
    priority: int = 0
    slaves_per_job: int = 1
    file: FileView = field(default_factory=FileView)
    jobs: JobTable = field(default_factory=JobTable)
    hosts: Hosts = field(default_factory=Hosts)
    failures: FailurePause = field(default_factory=FailurePause)
    refusals: RefusalPause = field(default_factory=RefusalPause)
    finished_at: float | None = None
    """When the overseer first saw that it is finished."""
    done: bool = False
    """It is finished, and it has no jobs left."""
    listed: bool = False
    """Whether a list of jobs has arrived since it is watched."""
    surplus_since: float | None = None
    """Since when more jobs wait than are needed."""
    _idle_since: dict[str, float] = field(default_factory=dict)
    """Connected jobs without work, and since when."""
    _unconnected_since: dict[str, float] = field(default_factory=dict)
    """Running jobs that are not connected to the present master, and since when."""
    _noted_at: float = 0.0
    starved_since: float | None = None
    """Since when it has needed jobs and had none because of the limit of jobs in the queue."""

    @property
    def has_just_finished(self) -> bool:
        """Whether its file says that it is finished, and nothing was decided about that yet."""
        return self.file.finished and self.file.readable and self.finished_at is None

    def resume(self) -> None:
        """Record that it is not finished, or has begun again."""
        self.finished_at, self.done = None, False

    def begin_again(self) -> None:
        """Record that another master has taken over: what was learned about its jobs may be wrong now."""
        self.failures.end()
        self.hosts.forget()
        self._unconnected_since.clear()

    def note_excluded(self) -> None:
        """Record the machines that the master has excluded, as far as the batch system has named them."""
        self.hosts.exclude(self.file.excluded)
        for host, jobs in self.file.excluded.items():
            for job_id in jobs:
                self.hosts.name(host, self.jobs.listed.get(job_id), job_id)

    def note_idleness(self, now: float) -> None:
        """Record since when jobs have been idle or unconnected, and since when more jobs wait than are needed."""
        connected = self.file.connected
        outside = [job.job_id for job in self.jobs.live(JobState.RUNNING) if job.job_id not in connected]
        self._unconnected_since = {job_id: self._unconnected_since.get(job_id, now) for job_id in outside}
        self._noted_at = now
        idle = [job.job_id for job in self.jobs.live(JobState.RUNNING) if connected.get(job.job_id) == 0]
        first = self.file.valid_since(now)
        self._idle_since = {job_id: self._idle_since.get(job_id, first) for job_id in idle}
        has_surplus = self.missing < 0 and bool(self.waiting())
        self.surplus_since = (now if self.surplus_since is None else self.surplus_since) if has_surplus else None

    def idle(self, patience_s: float, now: float) -> list[Job]:
        """The jobs that have certainly been idle for this time."""
        least_s = max(patience_s, CERTAIN_S) - ROUNDING_S
        return [
            self.jobs.listed[job_id]
            for job_id, since in self._idle_since.items()
            if now >= since + least_s and not self.jobs.is_removed(job_id)
        ]

    def waiting(self) -> list[Job]:
        """The jobs that wait in the queue, without evicted jobs that the master still believes to be connected."""
        return [job for job in self.jobs.live(JobState.QUEUED) if job.job_id not in self.file.connected]

    def unconnected(self) -> list[Job]:
        """The jobs that have run for a long time without connecting."""
        latest = self._noted_at - UNCONNECTED_S + ROUNDING_S
        return [
            job
            for job in self.jobs.live(JobState.RUNNING)
            if job.job_id not in self.file.connected and self._unconnected_since.get(job.job_id, math.inf) <= latest
        ]

    def useless(self) -> list[Job]:
        """The jobs that only take places: held jobs, and jobs that do not connect."""
        return [*self.jobs.live(JobState.HELD), *self.unconnected()]

    def serving(self) -> list[Job]:
        """The jobs that serve it or will serve it. The last one is the smallest loss: it waits, idles, or is young."""
        jobs = self.jobs.live(JobState.QUEUED, JobState.RUNNING)
        idle = self._idle_since
        return sorted(jobs, key=lambda job: (job.state is JobState.QUEUED, job.job_id in idle, -job.running_s))

    @property
    def coming(self) -> int:
        """How many of its jobs are on their way to the master."""
        live = self.jobs.live(JobState.QUEUED, JobState.RUNNING)
        connected = sum(job.job_id in self.file.connected for job in live)
        return len(live) - connected - len(self.unconnected()) + self.jobs.unlisted

    @property
    def unproven(self) -> int:
        """How many of its jobs have not yet shown that they work well."""
        young = [job for job in self.jobs.live(JobState.QUEUED, JobState.RUNNING) if job.running_s < YOUNG_S]
        return len(young) + self.jobs.unlisted

    @property
    def missing(self) -> int:
        """How many more jobs are needed; negative if more are coming than are needed."""
        return -(-self.file.slaves_needed // self.slaves_per_job) - self.coming

    def check(self) -> None:
        """Check that the stored facts agree.

        Raises:
            AssertionError: they do not agree.
        """
        self.jobs.check()
        assert not self.done or not self.jobs.occupied, f"{self.mark} is done and has jobs"
        assert not self.done or self.finished_at is not None, f"{self.mark} is done and not finished"
