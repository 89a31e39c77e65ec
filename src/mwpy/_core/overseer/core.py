"""What an overseer decides: how many jobs to submit for which computation, which jobs to remove, and what to say.

Theory of operation. In each round the shell reports the content of every resource file and the batch system's list of
jobs. Then `decide` decides, once. If a file could not be read, nothing is decided for its computation. If the list is
missing, nothing is decided at all. The core stores nothing that is necessary: it finds all jobs in the list, by their
mark. What it stores in addition (see `JobTable`) only leads to fewer submissions and later removals. So an overseer
that was killed and started again continues where it stopped.

The parts share one `OverseerState`. `Intake` receives files, lists, and outcomes of jobs; `Submissions` and `Removals`
decide; `Complaints` says what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

from mwpy._core.overseer.complaints import Complaints
from mwpy._core.overseer.computation import WatchedComputation
from mwpy._core.overseer.events import (
    Ended,
    FileRead,
    FileUnread,
    Listed,
    NotListed,
    NotRemoved,
    NotSubmitted,
    OverseerActions,
    OverseerEvent,
    Submitted,
)
from mwpy._core.overseer.intake import Intake
from mwpy._core.overseer.removals import Removals
from mwpy._core.overseer.state import OverseerSettings, OverseerState
from mwpy._core.overseer.submissions import Submissions

__all__ = ["OverseerCore"]


class OverseerCore:
    """The decisions of an overseer, without I/O."""

    def __init__(self, settings: OverseerSettings) -> None:
        self._state = OverseerState(settings)
        self._complaints = Complaints(self._state)
        self._intake = Intake(self._state, self._complaints)
        self._submissions = Submissions(self._state, self._complaints)
        self._removals = Removals(self._state, self._complaints)

    def watch(self, computation: WatchedComputation) -> None:
        """Watch another computation from now on."""
        self._state.computations[computation.mark] = computation

    @property
    def computations(self) -> Mapping[str, WatchedComputation]:
        """The watched computations, by their marks."""
        return self._state.computations

    @property
    def done(self) -> bool:
        """Whether all computations are finished and have no jobs left."""
        return all(each.done for each in self._state.computations.values())

    def handle(self, event: OverseerEvent, now: float) -> None:
        """Record an event; `decide` makes the decisions."""
        match event:
            case FileRead(mark, need):
                self._intake.take_file(mark, need, now)
            case FileUnread(mark, reason):
                self._intake.take_unreadable_file(mark, reason, now)
            case Listed(jobs, free_places):
                self._state.free_places = free_places
                self._intake.take_list(jobs, now)
            case NotListed(reason):
                self._intake.take_no_list(reason, now)
            case Ended(job_id, outcome):
                self._intake.take_end(job_id, outcome, now)
            case Submitted(mark, job_ids):
                self._submissions.take_submitted(mark, job_ids, now)
            case NotSubmitted(mark, count, reason):
                self._submissions.take_refused(mark, count, reason, now)
            case NotRemoved(job_ids, reason):
                self._removals.take_refused(job_ids, reason, now)

    def decide(self, now: float) -> None:
        """Decide, if this round's events have arrived. Call this once a round, and after the answers to questions."""
        if not self._intake.complete_round():
            return
        self._submissions.settle(now)
        for each in self._state.computations.values():
            if each.has_just_finished or (each.file.finished and each.finished_at is not None):
                self._removals.finish(each, now)
        active = self._state.active(now)
        for each in active:
            each.note_idleness(now)
            self._removals.remove_surplus(each, now)
            self._removals.recall_trial(each, now)
            self._complaints.report_hosts(each, now)
            self._complaints.report_delays(each, now)
        self._keep_limits(active, now)

    def _keep_limits(self, active: list[WatchedComputation], now: float) -> None:
        shortages = self._submissions.decide(active, now)
        short = [each.computation for each in shortages if each.count and not each.computation.jobs.occupied]
        for each in active:
            self._removals.feed(each, active, now, hungry=each in short)
        excess = max(0, -self._submissions.free - self._submissions.freeing)
        for shortage in shortages:
            self._removals.make_room(active, shortage.computation.priority, shortage.count, now)
            self._complaints.report_limit(shortage.computation, shortage.count, now)
        self._removals.cut(active, excess, now)

    def is_due(self, now: float) -> bool:
        """Whether the next round is due. It is due early if a computation has just finished, or needs its first job."""
        if now >= self._intake.next_round_at:
            return True
        active = self._state.active(now)
        new_end = any(each.has_just_finished for each in self._state.computations.values())
        return self._intake.answers and (new_end or self._submissions.is_urgent(active, now))

    def next_deadline(self) -> float:
        """When the next round is due at the latest."""
        return self._intake.next_round_at

    def take_actions(self) -> OverseerActions:
        """Return everything that must be done since the last call."""
        actions, self._state.actions = self._state.actions, OverseerActions()
        return actions

    def check(self) -> None:
        """Check that the stored facts agree.

        Raises:
            AssertionError: they do not agree.
        """
        for each in self._state.computations.values():
            each.check()
