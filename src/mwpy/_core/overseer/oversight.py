"""What is known of one computation and of its jobs, and whether to submit more.

What its resource file said is a snapshot: the slaves missing then, beyond the jobs connected then. So whatever job of
this computation that file does not name is on its way, and is counted against what is missing: those that were
submitted and are in no list yet, those that wait, those that run and have not connected. That alone is what keeps an
overseer from submitting twice, and holds for one that was just started again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from attrs import define, field, frozen

from mwpy._values.errors import ExitCode
from mwpy._values.jobs import End, Job, JobState, Outcome
from mwpy._values.staleness import is_stale

__all__ = ["Brake", "Need", "Oversight", "explain", "is_failure"]

YOUNG_S = 30.0
"""Seconds: a job that ended before that died of its start, and one that runs for longer is well."""

FAILURES_ALLOWED = 3
"""So many jobs in a row that die young or are held, and nothing more is submitted."""

FIRST_PAUSE_S = 60.0
"""Seconds that then pass before one job is tried."""

LONGEST_PAUSE_S = 1800.0
"""Seconds between two tries at the most; each pause is twice the one before."""

SETTLE_S = 30.0
"""Seconds within which a submission shows in the list of jobs: the slowest batch systems answer from a cache."""

REMOVE_AGAIN_S = 60.0
"""Seconds after which a job that was removed and is still there is removed again."""

CERTAIN_S = 3.0
"""Seconds for which a file must have shown a job idle to be believed: had it got to work, a master that is not held up
would have written that."""

UNSEEN_S = 600.0
"""Seconds that a job may run without being connected before nobody waits for it any longer."""

ROUNDING_S = 1e-6
"""A sum of seconds that is short by so little is due."""

EXPLANATIONS = {
    1: "its script failed before it came to mwpy.main()",
    ExitCode.USAGE: "a bad option, or a bad or missing resource file",
    ExitCode.REFUSED: "the master refused it, or somebody else listens at the master's address",
    ExitCode.UNREACHABLE: "no address of the master answered",
    ExitCode.CANNOT_START: "its slaves die before they can take a task",
    126: "its program cannot be executed there",
    127: "its program is not there",
    ExitCode.FAILED: "the master was lost",
}


def explain(outcome: Outcome) -> str:
    """How a job ended, and what that means."""
    meaning = EXPLANATIONS.get(outcome.exit_code) if outcome.exit_code is not None else None
    return f"{outcome.description} ({meaning})" if meaning else outcome.description


def is_failure(outcome: Outcome) -> bool:
    """Whether a job died of its start: neither told to go, nor removed or evicted by anybody."""
    failed = outcome.end is End.KILLED or outcome.exit_code not in (None, ExitCode.OK, ExitCode.EVICTED)
    return failed and outcome.ran_s < YOUNG_S


@frozen
class Need:
    """What a resource file says, as far as it matters here."""

    generation: str
    finished: bool
    written: float
    """Its timestamp, which counts only in being another one."""
    age_s: float
    """How old it is by the clocks of both machines."""
    interval_s: float
    """Seconds until it is to be written again."""
    slaves_needed: int
    connected: Mapping[str, int]
    """The jobs that are connected, and how many slaves of each are at work."""


@define(eq=False)
class Brake:
    """Stops submissions when jobs die young again and again, and lets one be tried after growing pauses."""

    failures: int = 0
    """How many in a row."""
    until: float | None = None
    """When one may be tried; None while nothing is wrong."""
    _failed_at: float = -math.inf
    _pause_s: float = FIRST_PAUSE_S

    def fail(self, now: float) -> float | None:
        """Count a failure.

        Returns:
            The seconds of the pause that begins now; None if none does.
        """
        self.failures += 1
        self._failed_at = now
        if self.failures < FAILURES_ALLOWED or (self.until is not None and now < self.until):
            return None
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        self.until = now + pause_s
        return pause_s

    def proven_at(self, time: float) -> bool:
        """Count a job that was no longer young at this time; whether that ends a stop."""
        if time <= self._failed_at:
            return False
        return self.release()

    def release(self) -> bool:
        """Forget all failures; whether submissions were stopped."""
        stopped = self.until is not None
        self.failures, self.until, self._pause_s = 0, None, FIRST_PAUSE_S
        return stopped

    def limit(self, wanted: int, unproven: int, now: float) -> int:
        """How many of the wanted jobs may be submitted, when so many others have yet to show that they are well."""
        if self.until is None:
            return wanted
        return min(wanted, 1) if now >= self.until and not unproven else 0


@define(eq=False)
class Oversight:
    """One computation: what its resource file said, its jobs, and what is expected of them."""

    mark: str
    name: str
    """As people know it."""
    priority: int = 0
    processes: int = 1
    """How many slaves a job of it has."""
    need: Need | None = None
    readable: bool = False
    """Whether the file could be read when it was last looked at."""
    jobs: dict[str, Job] = field(factory=dict)
    """Those in the last list."""
    expected: dict[str, float] = field(factory=dict)
    """Jobs that were submitted and have not been in a list yet, and when that was."""
    unsure: int = 0
    """How many jobs may have been submitted by a try of which nobody knows what came of it."""
    unsure_at: float = 0.0
    removed: dict[str, float] = field(factory=dict)
    """Jobs in the list that were removed, and when."""
    unexplained: dict[str, int] = field(factory=dict)
    """Jobs that are in the list no more, and how often was asked what became of them."""
    idle_since: dict[str, float] = field(factory=dict)
    """Connected jobs without work, and since when."""
    surplus_since: float | None = None
    """Since when more jobs wait than are needed."""
    retry_at: float = 0.0
    """Nothing is submitted before that, since the batch system would not."""
    retry_s: float = 0.0
    brake: Brake = field(factory=Brake)
    finished_at: float | None = None
    done: bool = False
    """It is finished, and no job of it is left."""
    _changed_at: float | None = None
    """When the file was seen to change; None before."""

    # ---- the resource file -------------------------------------------------------------------------------

    def read(self, need: Need, now: float) -> bool:
        """Note what the file says; whether another master has written it."""
        last, self.need, self.readable = self.need, need, True
        if last is not None and need.written != last.written:
            self._changed_at = now
        if not need.finished:
            self.finished_at, self.done = None, False
        return last is not None and need.generation != last.generation

    def is_stale(self, now: float) -> bool:
        """Whether the master has missed three updates; clocks that differ do not count once it was seen to write."""
        assert self.need is not None
        age_s = self.need.age_s if self._changed_at is None else now - self._changed_at
        return is_stale(age_s, self.need.interval_s)

    # ---- its jobs ----------------------------------------------------------------------------------------

    def listed(self, jobs: dict[str, Job], now: float) -> list[Job]:
        """Take over the list of its jobs; those that are held and were not when last seen."""
        before, self.jobs = self.jobs, jobs
        new = [job_id for job_id in jobs if job_id not in before]
        self.unsure = max(0, self.unsure - sum(job_id not in self.expected for job_id in new))
        for job_id in new:
            self.expected.pop(job_id, None)
            self.unexplained.pop(job_id, None)
        for job_id, job in before.items():
            if job_id not in jobs and job.state is not JobState.LEAVING and job_id not in self.removed:
                self.unexplained[job_id] = 0
        self.removed = {
            job_id: since
            for job_id, since in self.removed.items()
            if job_id in jobs and (jobs[job_id].state is JobState.LEAVING or now < since + REMOVE_AGAIN_S)
        }
        return [
            job
            for job_id, job in jobs.items()
            if job.state is JobState.HELD and (job_id not in before or before[job_id].state is not JobState.HELD)
        ]

    def settle(self, now: float) -> list[str]:
        """Stop waiting for submissions that never showed; the jobs among them whose ids are known."""
        if now >= self.unsure_at + SETTLE_S:
            self.unsure = 0
        lost = [job_id for job_id, since in self.expected.items() if now >= since + SETTLE_S]
        for job_id in lost:
            del self.expected[job_id]
        return lost

    def note_idleness(self, now: float) -> None:
        """Note since when its jobs have been idle, and since when more wait than are needed."""
        assert self.need is not None
        idle = [job.job_id for job in self.live(JobState.RUNNING) if self.need.connected.get(job.job_id) == 0]
        first = now - max(0.0, self.need.age_s) if self._changed_at is None else now
        self.idle_since = {job_id: self.idle_since.get(job_id, first) for job_id in idle}
        surplus = self.waiting() if self.missing < 0 else []
        self.surplus_since = (self.surplus_since if self.surplus_since is not None else now) if surplus else None

    def idle(self, patience_s: float, now: float) -> list[Job]:
        """Its jobs that have been idle for so long, and certainly are."""
        least_s = max(patience_s, CERTAIN_S) - ROUNDING_S
        return [
            self.jobs[job_id]
            for job_id, since in self.idle_since.items()
            if now >= since + least_s and job_id not in self.removed
        ]

    def live(self, *states: JobState) -> list[Job]:
        """Its jobs in one of these states that were not removed."""
        return [job for job in self.jobs.values() if job.state in states and job.job_id not in self.removed]

    def waiting(self) -> list[Job]:
        """Its jobs that wait in the queue, but for evicted ones that the master has not missed yet."""
        assert self.need is not None
        return [job for job in self.live(JobState.QUEUED) if job.job_id not in self.need.connected]

    def unseen(self) -> list[Job]:
        """Its jobs that run, and have not connected in a long time."""
        assert self.need is not None
        running = self.live(JobState.RUNNING)
        return [job for job in running if job.job_id not in self.need.connected and job.running_s >= UNSEEN_S]

    @property
    def coming(self) -> int:
        """How many of its jobs are on their way to the master."""
        assert self.need is not None
        live = self.live(JobState.QUEUED, JobState.RUNNING)
        here = sum(job.job_id in self.need.connected for job in live)
        return len(live) - here - len(self.unseen()) + len(self.expected) + self.unsure

    @property
    def unproven(self) -> int:
        """How many of its jobs have yet to show that they are well."""
        young = [job for job in self.live(JobState.QUEUED, JobState.RUNNING) if job.running_s < YOUNG_S]
        return len(young) + len(self.expected) + self.unsure

    @property
    def occupied(self) -> int:
        """How many places in the queue are its own, until the list shows that removed jobs leave."""
        here = sum(job.state is not JobState.LEAVING for job in self.jobs.values())
        return here + len(self.expected) + self.unsure

    @property
    def going(self) -> int:
        """How many of these places it is about to leave."""
        return sum(self.jobs[job_id].state is not JobState.LEAVING for job_id in self.removed)

    @property
    def missing(self) -> int:
        """How many more jobs are needed; negative if more are coming than are needed."""
        assert self.need is not None
        return -(-self.need.slaves_needed // self.processes) - self.coming

    def check(self) -> None:
        """Hold what is kept about its jobs against the list."""
        assert not [job_id for job_id in self.expected if job_id in self.jobs], f"{self.mark}: expected, and there"
        assert all(job_id in self.jobs for job_id in self.removed), f"{self.mark}: removed, and long gone"
        assert not [job_id for job_id in self.unexplained if job_id in self.jobs], f"{self.mark}: gone, and there"
        assert self.unsure >= 0, f"{self.mark}: fewer than no jobs"
        assert not self.done or not self.occupied, f"{self.mark}: done, and jobs are left"
