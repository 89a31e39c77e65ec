"""Which jobs to remove.

Removals come after a delay: a job that is not needed now is often needed again when the master algorithm has examined
its results.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from mwpy._core.overseer.complaints import About, Complaints
from mwpy._core.overseer.computation import CERTAIN_S, ROUNDING_S, WatchedComputation
from mwpy._core.overseer.state import OverseerState
from mwpy._values.jobs import Job, JobState
from mwpy._values.phrases import counted, first_of

__all__ = ["Removals"]

FINISH_S = 60.0
"""Seconds in which the jobs of a finished computation can end by themselves."""

STARVED_S = 60.0
"""Seconds that a computation waits for its first job until another computation must give it a place."""

TRIAL_S = 300.0
"""Seconds that a tried job may wait for a machine other than those where jobs failed. Perhaps there is none."""


class Removals(Struct, eq=False):
    """Decides removals, and records their results."""

    _state: OverseerState
    _complaints: Complaints

    def take_refused(self, job_ids: Sequence[str], reason: str, now: float) -> None:
        """Record that jobs were not removed, or that it is not known whether they were."""
        self._complaints.complain(None, About.REMOVAL, f"jobs could not be removed: {reason}", now)
        for computation in self._state.computations.values():
            computation.jobs.unmark_removed(job_ids)

    def finish(self, computation: WatchedComputation, now: float) -> None:
        """End a finished computation: remove waiting jobs at once, and running jobs after a while."""
        if computation.done:
            return
        running = computation.jobs.live(JobState.RUNNING)
        if computation.finished_at is None:
            computation.finished_at = now
            self._state.say(computation, f"is finished; its jobs end by themselves ({len(running)} running)")
        waiting = computation.jobs.live(JobState.QUEUED, JobState.HELD)
        self._remove(computation, waiting, "no longer needed", now)
        if now >= computation.finished_at + FINISH_S:
            self._remove(computation, running, f"still running {FINISH_S:.0f} s after the end", now)
        computation.done = not computation.jobs.occupied and not computation.jobs.listed
        if computation.done:
            self._state.say(computation, "is finished, and no job of it is left")

    def remove_surplus(self, computation: WatchedComputation, now: float) -> None:
        """Remove jobs that have waited or idled for a while without being needed."""
        patience_s = self._state.settings.patience_s
        since = computation.surplus_since
        if since is not None and now >= since + patience_s - ROUNDING_S:
            surplus = computation.waiting()[computation.missing :]
            self._remove(computation, surplus, "waiting, and no longer needed", now)
        if computation.file.slaves_needed == 0:
            idle = computation.idle(patience_s, now)
            self._remove(computation, idle, f"idle for {max(patience_s, CERTAIN_S):.0f} s", now)

    def recall_trial(self, computation: WatchedComputation, now: float) -> None:
        """Remove a tried job that finds no other machine. The next one may run on any machine."""
        since = computation.failures.tried_elsewhere_at
        if since is not None and now >= since + TRIAL_S:
            self._remove(computation, computation.waiting(), "waiting, and there is no other machine", now)

    def make_room(self, active: Sequence[WatchedComputation], priority: int, count: int, now: float) -> None:
        """Remove `count` jobs: first useless jobs, then waiting jobs of computations with a lower priority.

        The least important computations come first.
        """
        for each in reversed(active):
            jobs = each.useless()[:count]
            self._remove(each, jobs, "held or not connected, and others need their places", now)
            count -= len(jobs)
        for other in reversed([each for each in active if each.priority < priority]):
            jobs = other.waiting()[-count:] if count else []
            self._remove(other, jobs, "waiting, and others are more important", now)
            count -= len(jobs)

    def feed(
        self, computation: WatchedComputation, active: Sequence[WatchedComputation], now: float, *, hungry: bool
    ) -> None:
        """Give a computation that has lacked its first job for a while a place of the computation with most jobs.

        A job at work is removed only if no job waits or is idle. Its tasks run again. The donor keeps at least one job.
        """
        if not hungry:
            computation.starved_since = None
        elif computation.starved_since is None:
            computation.starved_since = now
        elif now >= computation.starved_since + STARVED_S - ROUNDING_S:
            equals = [each for each in active if each.priority <= computation.priority]
            donor = max(equals, key=lambda each: len(each.serving()))
            reason = f"because {computation.name} has none, and --max is {self._state.settings.max_jobs}"
            self._remove(donor, donor.serving()[1:][-1:], reason, now)
            computation.starved_since = None

    def cut(self, active: Sequence[WatchedComputation], count: int, now: float) -> None:
        """Remove `count` jobs, never jobs at work: first waiting jobs, then idle jobs, the least important first."""
        reason = f"more than --max {self._state.settings.max_jobs}"
        for computation in reversed(active):
            jobs = computation.waiting()[-count:] if count else []
            self._remove(computation, jobs, f"waiting, and {reason}", now)
            count -= len(jobs)
        for computation in reversed(active):
            jobs = computation.idle(0.0, now)[-count:] if count else []
            self._remove(computation, jobs, f"idle, and {reason}", now)
            count -= len(jobs)

    def _remove(self, computation: WatchedComputation, jobs: Sequence[Job], reason: str, now: float) -> None:
        if not jobs:
            return
        job_ids = [job.job_id for job in jobs]
        self._state.actions.remove += job_ids
        computation.jobs.mark_removed(job_ids, now)
        ids = first_of(job_ids, len(job_ids))
        self._state.say(computation, f"removes {counted(len(jobs), 'job')}, {reason}: {ids}")
