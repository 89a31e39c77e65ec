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

from collections import deque
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from mwpy._core.overseer.computation import (
    CERTAIN_S,
    ROUNDING_S,
    YOUNG_S,
    WatchedComputation,
    explain,
    is_failure,
    may_pass,
)
from mwpy._core.overseer.files import (
    Ended,
    FileRead,
    FileUnread,
    Listed,
    Need,
    NotListed,
    NotRemoved,
    NotSubmitted,
    OverseerActions,
    OverseerEvent,
    Submit,
    Submitted,
)
from mwpy._core.overseer.state import About, Complaints, OverseerSettings, OverseerState
from mwpy._values.jobs import End, Job, JobState, Outcome
from mwpy._values.phrases import amount, counted, first_of

# Receives what resource files and the batch system say, and decides when the next round is due.


LONGEST_PAUSE_S = 600.0
"""The longest time between two rounds while the batch system does not answer; each pause is twice the one before."""

STDERR_LINES = 20
"""How many lines of a failed job's standard error are shown."""


class Intake(Struct, eq=False):
    """Receives resource files, lists of jobs, and the outcomes of jobs."""

    _state: OverseerState
    _complaints: Complaints
    answers: bool = False
    """Whether the batch system answered the last time."""
    _listed: bool = False
    """Whether a list has arrived since the last decision."""
    _round_at: float = 0.0
    _pause_s: float = 0.0

    # ---- resource files --------------------------------------------------------------------------------------

    def take_file(self, mark: str, need: Need, now: float) -> None:
        """Record the content of a resource file."""
        computation = self._state.computations[mark]
        self._complaints.resolve(computation, About.FILE, "the resource file is readable again")
        if computation.file.take(need, now):
            self._state.say(computation, "another master has taken over")
            computation.begin_again()
        if not need.finished:
            computation.resume()
        computation.note_excluded()
        self._complaints.report_staleness(computation, now)

    def take_unreadable_file(self, mark: str, reason: str, now: float) -> None:
        """Record that a resource file could not be read."""
        computation = self._state.computations[mark]
        computation.file.fail()
        self._complaints.complain(computation, About.FILE, f"nothing is decided: {reason}", now)

    # ---- the batch system ------------------------------------------------------------------------------------

    def take_list(self, jobs: Sequence[Job], now: float) -> None:
        """Record the list of all jobs, and ask how the missing jobs ended."""
        self._round_at, self._pause_s = now, self._state.settings.interval_s
        self._listed = self.answers = True
        self._complaints.resolve(None, About.BATCH, "the batch system answers again")
        for computation in self._state.computations.values():
            own = {job.job_id: job for job in jobs if job.mark == computation.mark}
            self._report_adoption(computation, own)
            for job in computation.jobs.listed.values():
                if job.job_id not in own:
                    computation.hosts.leave(job.job_id, job.host)
            held = computation.jobs.take_list(own, now)
            computation.note_excluded()
            for job in held:
                text = _about_held(job)
                self._state.say(computation, text)
                self._count_failure(computation, Outcome(End.LOST, text, None, 0.0, host=job.host), text, now)
            self._notice_success(computation, now)
            if computation.finished_at is not None:
                computation.jobs.stop_asking()
            self._state.actions.ask += computation.jobs.questions()

    def _report_adoption(self, computation: WatchedComputation, jobs: Mapping[str, Job]) -> None:
        """Name the jobs that an earlier overseer submitted, when a computation's first list arrives."""
        found = [job_id for job_id, job in jobs.items() if job.state is not JobState.LEAVING]
        if found and not computation.listed:
            text = f"continues with {counted(len(found), 'job')} of an earlier overseer: {first_of(found, len(found))}"
            self._state.say(computation, text)
        computation.listed = True

    def take_no_list(self, reason: str, now: float) -> None:
        """Record that the batch system did not answer. The next round comes later."""
        self._round_at = now
        self._listed = self.answers = False
        self._pause_s = min(max(2 * self._pause_s, self._state.settings.interval_s), LONGEST_PAUSE_S)
        text = f"nothing is decided, the batch system does not answer: {reason}"
        self._complaints.complain(None, About.BATCH, text, now)

    def take_end(self, job_id: str, outcome: Outcome | None, now: float) -> None:
        """Record the answer to a question."""
        for computation in self._state.computations.values():
            if not computation.jobs.take_answer(job_id, ended=outcome is not None) or outcome is None:
                continue
            computation.hosts.leave(job_id, outcome.host)
            computation.note_excluded()
            if computation.finished_at is None:
                self._judge(computation, job_id, outcome, now)
            if not is_failure(outcome):
                self._state.actions.ask += computation.jobs.next_question()

    def _judge(self, computation: WatchedComputation, job_id: str, outcome: Outcome, now: float) -> None:
        if is_failure(outcome):
            text = f"job {job_id} ended {outcome.ran_s:.0f} s after its start: {explain(outcome)}"
            last_line = outcome.stderr.strip().splitlines()[-1:]
            self._state.say(computation, ": ".join([text, *last_line]))
            self._count_failure(computation, outcome, text, now)
        elif outcome.ran_s >= YOUNG_S and computation.failures.succeed(now):
            self._state.say(computation, f"job {job_id} has run well, so more are submitted")

    def _notice_success(self, computation: WatchedComputation, now: float) -> None:
        for job in computation.jobs.live(JobState.RUNNING):
            grown_up_at = now - (job.running_s - YOUNG_S)
            if job.running_s < YOUNG_S:
                continue
            computation.hosts.succeed(job.host, grown_up_at)
            if computation.failures.succeed(grown_up_at):
                self._state.say(computation, f"job {job.job_id} runs well, so more are submitted")

    def _count_failure(self, computation: WatchedComputation, outcome: Outcome, reason: str, now: float) -> None:
        computation.hosts.fail(outcome.host, now)
        if outcome.host in computation.hosts.avoided(now):
            computation.failures.end()
            return
        pause_s = computation.failures.fail(now, may_pass=may_pass(outcome))
        if pause_s is None:
            return
        lines = "".join(f"\n    | {line}" for line in outcome.stderr.strip().splitlines()[-STDERR_LINES:])
        self._state.say(
            computation,
            f"{computation.failures.failures} jobs in a row died within {YOUNG_S:.0f} s of their start or were held, "
            f"so nothing is submitted for {pause_s:.0f} s, or until the master is started again. Then one job is "
            f"tried. The last failure: {reason}" + (f". The end of its standard error:{lines}" if lines else ""),
        )

    # ---- rounds ----------------------------------------------------------------------------------------------

    def complete_round(self) -> bool:
        """Whether all files and the list of this round have arrived, so that the core can decide; true once a round."""
        if not self._listed or self._state.actions.ask:
            return False
        self._listed = False
        return True

    @property
    def next_round_at(self) -> float:
        """When the next round is due."""
        return self._round_at + self._pause_s


def _about_held(job: Job) -> str:
    note = job.note or "no reason is given"
    if job.memory is None:
        return f"job {job.job_id} is held: {note}"
    used, has = job.memory
    return (
        f"job {job.job_id} on {job.host or 'an unknown machine'} is held, out of memory: it used {amount(used)} "
        f"and had asked for {amount(has)}. Ask for more (--memory), or give the tasks a memory_max: then agents keep "
        f"them within the memory of their jobs. The batch system says: {note}"
    )


# Which jobs to remove.
#
# Removals come after a delay: a job that is not needed now is often needed again when the master algorithm has examined
# its results.


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


# How many jobs to submit, within the limits.


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
