"""How many jobs to submit, within the limits."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec import Struct, field

from mwpy._core.overseer.complaints import About, Complaints
from mwpy._core.overseer.computation import WatchedComputation
from mwpy._core.overseer.events import Submit
from mwpy._core.overseer.state import OverseerState
from mwpy._values.phrases import counted, first_of

__all__ = ["Shortage", "Submissions", "Wish", "share"]


SPENT_S = 10.0
"""Seconds of a job's time in which its slaves run no task: the agent and its slaves start, and the agent ends."""


class Wish(Struct, frozen=True):
    """How many jobs a computation would submit without limits, and what determines its share."""

    count: int
    priority: int = 0
    occupied: int = 0
    """How many places in the queue it has already."""


class Shortage(Struct, frozen=True):
    """A computation, and how many useful jobs it cannot get because of the limit of jobs in the queue."""

    computation: WatchedComputation
    count: int


def share(wishes: Sequence[Wish], budget: int) -> list[int]:
    """Divide `budget` jobs: higher priorities first. Computations of equal priority get equal numbers of places."""
    shares = [0] * len(wishes)
    for _ in range(min(budget, sum(wish.count for wish in wishes))):
        open_wishes = [number for number, wish in enumerate(wishes) if shares[number] < wish.count]
        shares[min(open_wishes, key=lambda n: (-wishes[n].priority, wishes[n].occupied + shares[n]))] += 1
    return shares


class Submissions(Struct, eq=False):
    """Decides submissions, and records their results."""

    _state: OverseerState
    _complaints: Complaints
    _recent: deque[tuple[float, int]] = field(default_factory=deque)
    """The submissions of the last minute: when, and how many jobs."""

    def take_submitted(self, mark: str, job_ids: Sequence[str], now: float) -> None:
        """Record that jobs were submitted."""
        computation = self._state.computations[mark]
        computation.jobs.add_submitted(job_ids, now)
        computation.refusals.accept()
        self._complaints.resolve(computation, About.SUBMISSION, "the batch system accepts jobs again")

    def take_refused(self, mark: str, count: int, reason: str, now: float) -> None:
        """Record that jobs were not submitted, or that it is not known whether they were."""
        computation = self._state.computations[mark]
        computation.jobs.add_uncertain(count, now)
        computation.refusals.refuse(now)
        text = f"the batch system submitted nothing, as far as is known: {reason}"
        self._complaints.complain(computation, About.SUBMISSION, text, now)

    def settle(self, now: float) -> None:
        """Stop waiting for submitted jobs that never appeared in the list."""
        for computation in self._state.computations.values():
            if lost := computation.jobs.settle(now):
                ids = first_of(lost, len(lost))
                text = f"{counted(len(lost), 'job')} never showed in the queue after the submission: {ids}"
                self._state.say(computation, text)

    def decide(self, active: Sequence[WatchedComputation], now: float) -> list[Shortage]:
        """Submit the missing jobs of these computations within the limits, in the order of priority.

        Returns:
            For each computation that lacks jobs, in the order of priority: how many jobs it cannot get because of the
            limit of jobs in the queue. The places of jobs that are being removed count as free.
        """
        for each in active:
            self._report_time(each, now)
        wanting = [(each, wish) for each in active if (wish := self._wish(each, now)).count]
        budget = min(self.free, self._allowance(now))
        for (computation, _), count in zip(wanting, share([wish for _, wish in wanting], budget), strict=True):
            self._submit(computation, count, now)
        left = max(0, self.free + self.freeing)
        shortages = []
        for computation, wish in wanting:
            shortages.append(Shortage(computation, max(0, wish.count - left)))
            left = max(0, left - wish.count)
        return shortages

    def is_urgent(self, active: Sequence[WatchedComputation], now: float) -> bool:
        """Whether a computation without any job needs one, and can get it now."""
        wishes = [self._wish(each, now) for each in active]
        return any(wish.count and not wish.occupied for wish in wishes) and min(self.free, self._allowance(now)) > 0

    @property
    def free(self) -> int:
        """How many jobs can be submitted; negative if there are more jobs than the limit."""
        occupied = sum(each.jobs.occupied for each in self._state.computations.values())
        by_limit = self._state.settings.max_jobs - occupied
        return by_limit if self._state.free_places is None else min(by_limit, self._state.free_places)

    @property
    def freeing(self) -> int:
        """How many places will become free because jobs were removed."""
        return sum(each.jobs.freeing for each in self._state.computations.values())

    def _wish(self, computation: WatchedComputation, now: float) -> Wish:
        blocked = computation.jobs.unexplained or now < computation.refusals.until or self._lacks_time(computation)
        missing = 0 if blocked else max(0, computation.missing)
        count = computation.failures.limit(missing, computation.unproven, now)
        return Wish(count, computation.priority, computation.jobs.occupied)

    def _lacks_time(self, computation: WatchedComputation) -> bool:
        """Whether a job ends before any waiting task could finish."""
        limit_s = self._state.settings.job_limit_s
        return limit_s is not None and limit_s < computation.file.shortest_task_s + SPENT_S

    def _report_time(self, computation: WatchedComputation, now: float) -> None:
        if computation.missing <= 0 or not self._lacks_time(computation):
            self._complaints.resolve(computation, About.TIME, "its tasks fit into a job now")
            return
        text = (
            f"submits nothing: a job ends after {self._state.settings.job_limit_s:.0f} s, but each task that waits "
            f"takes {computation.file.shortest_task_s:g} s or more, and a job needs {SPENT_S:.0f} s for its start and "
            f"its end. Start the overseer with a longer limit of the jobs (--line, or --mw-lifetime in --command), "
            f"correct seconds_expected, or let the tasks leave their state with mwpy.checkpoint"
        )
        self._complaints.complain(computation, About.TIME, text, now)

    def _allowance(self, now: float) -> int:
        """How many jobs may be submitted now without exceeding the limit per minute."""
        while self._recent and now >= self._recent[0][0] + 60.0:
            self._recent.popleft()
        return self._state.settings.max_per_minute - sum(count for _, count in self._recent)

    def _submit(self, computation: WatchedComputation, count: int, now: float) -> None:
        if not count:
            return
        self._recent.append((now, count))
        avoided = self._avoided(computation, now)
        self._state.actions.submit.append(Submit(computation.mark, count, avoided))
        missing = counted(computation.file.slaves_needed, "slave")
        on_the_way = counted(computation.coming, "job")
        where = f", not to {', '.join(avoided)}" if avoided else ""
        text = f"submits {counted(count, 'job')}{where}: {missing} missing, {on_the_way} on the way"
        self._state.say(computation, text)

    def _avoided(self, computation: WatchedComputation, now: float) -> tuple[str, ...]:
        """The machines that the next jobs avoid.

        If only one machine has many failures, the fault may be its own. So every second job that is tried avoids it.
        """
        pause, suspects = computation.failures, computation.hosts.suspects(now)
        elsewhere = pause.is_pausing and pause.tried_elsewhere_at is None and len(suspects) == 1
        pause.tried_elsewhere_at = now if elsewhere else None
        return (*suspects, *computation.hosts.excluded) if elsewhere else computation.hosts.avoided(now)
