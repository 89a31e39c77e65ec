"""What an overseer decides: how many jobs to submit for which computation, which jobs leave, and what to say.

Theory of operation. In each round the shell reports the content of every resource file and the batch system's list of
jobs. Then `decide` decides, once. If a file could not be read, nothing is decided for its computation. If the list is
missing, nothing is decided at all. The core stores nothing that is necessary: it finds all jobs in the list, by their
mark. What it stores in addition (see `JobTable`) only leads to fewer submissions and later removals. So an overseer
that was killed and started again continues where it stopped. It may ask a master again to let the same agents leave.

No job at work is removed to make room for others. Its master is asked to let its agent leave: the agent ends after its
tasks, however long they take. Until then, its place counts as one that will be free.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from attrs import Factory, define
from msgspec import Struct, field

from mwpy._core.overseen import (
    CERTAIN_S,
    ROUNDING_S,
    YOUNG_S,
    Offered,
    Tracked,
    WatchedComputation,
    explain,
    is_failure,
)
from mwpy._core.pauses import Pause, between_messages
from mwpy._values.errors import ExitCode
from mwpy._values.jobs import Amounts, End, Job, JobState, Outcome, ResourceFile
from mwpy._values.phrases import counted, duration, first_of
from mwpy._values.requires import Requires

# Its settings, events and actions.


class OverseerSettings(Struct, frozen=True):
    """The options that the core needs; `cli/oversee.py` describes them."""

    max_jobs: int = 1000
    max_per_minute: int = 200
    patience_s: float = 60.0
    interval_s: float = 10.0
    job_limit_s: float | None = None
    """After how many seconds a batch system ends each job; None if this is not known."""
    job_warned_s: float = 0.0
    """How many seconds before its time limit a job gets SIGTERM, which ends it; `job_limit_s` is without them."""


class FileRead(Struct, frozen=True):
    """A resource file was read."""

    mark: str
    content: ResourceFile
    age_s: float
    """The age of the file: its timestamp, from the master's clock, compared with the clock of this machine."""


class FileUnread(Struct, frozen=True):
    """A resource file could not be read, or its content is wrong."""

    mark: str
    reason: str


class Listed(Struct, frozen=True):
    """The batch system listed all its jobs."""

    jobs: Sequence[Job]
    free_places: int | None = None
    """How many more jobs it can take now; None if it has a queue."""


class NotListed(Struct, frozen=True):
    """The batch system did not answer."""

    reason: str


class Ended(Struct, frozen=True):
    """The answer to a question about a job that has left the list: how it ended; None if that is not known."""

    job_id: str
    outcome: Outcome | None


class Submit(Struct, frozen=True):
    """Put this many jobs of a computation into the queue."""

    mark: str
    count: int
    avoided: tuple[str, ...] = ()
    """The machines on which they must not run."""
    amounts: Amounts = ()
    """What each of their slaves needs."""


class Submitted(Struct, frozen=True):
    """Jobs were put into the queue."""

    submit: Submit
    job_ids: Sequence[str] = ()
    fault: str = ""
    """Why the batch system refused, or that its answer was lost; empty if it did as it should."""


class Removed(Struct, frozen=True):
    """Jobs were removed."""

    job_ids: Sequence[str]
    fault: str = ""
    """As in `Submitted`."""


class Drained(Struct, frozen=True):
    """A master lets the agents of jobs leave, as far as it has them."""

    mark: str
    job_ids: Sequence[str]
    fault: str = ""
    """Why it could not be asked, or that its answer was lost; empty if it was asked."""


OverseerEvent = FileRead | FileUnread | Listed | NotListed | Ended | Submitted | Removed | Drained


class OverseerActions(Struct):
    """Everything that must be done now; the order of the fields is the order of execution."""

    say: list[str] = field(default_factory=list)
    ask: list[str] = field(default_factory=list)
    """Jobs that have ended: ask the batch system how. Answer each question with `Ended`, then call `decide` again."""
    remove: list[str] = field(default_factory=list)
    submit: list[Submit] = field(default_factory=list)
    drain: dict[str, list[str]] = field(default_factory=dict)
    """Jobs whose agents must leave after their tasks, by the mark of the computation whose master must be asked."""


# When rounds are, and what is said about them.


LONGEST_PAUSE_S = 600.0
"""The longest time between two rounds while the batch system does not answer; each pause is twice the one before."""

STDERR_LINES = 20
"""How many lines of a failed job's standard error are shown."""


FIRST_PAUSE_S = 300.0
"""Seconds until a complaint is repeated for the first time."""

EXPLAIN_AFTER_S = 30.0
"""Seconds until the reason why jobs wait is reported. Most jobs start sooner if their machine is free."""


# Which jobs to remove.
#
# Removals come after a delay: a job that is not needed now is often needed again when the master algorithm has examined
# its results.


FINISH_S = 60.0
"""Seconds in which the jobs of a finished computation can end by themselves."""

ENDING_S = 2.0
"""Seconds between two rounds in this time: the user waits for the end of the overseer, to see the results."""

NEW_MASTER_S = 30.0
"""Seconds for which an overseer that finds an old computation waits for a master that starts another one. A master
that was started at the same time as the overseer may still import its script."""

TRIAL_S = 300.0
"""Seconds that a tried job may wait for a machine other than those where jobs failed. Perhaps there is none."""


# How many jobs to submit, within the limits.


SPENT_S = 10.0
"""Seconds of a job's time in which its slaves run no task: the agent and its slaves start, and the agent ends."""


# Who gets a place: computations of higher priority first, and those of equal priority get equal numbers. One rule
# divides free places and takes places from others. So a place that was taken does not go back.


@define(eq=False, repr=False)
class Claim:
    """A computation that claims places, or gives places to others; or the limit, which takes places from all."""

    mark: str
    """The mark of the computation; empty for the limit."""
    reason: str
    """Why jobs leave for it."""
    priority: float
    lacks: int
    """How many more places it wants."""
    has: int = 0
    """How many places it has, will get, and does not give."""
    offers: list[Job] = Factory(list)
    """The jobs whose places it can give. The last one is the smallest loss."""

    def rank(self) -> tuple[float, int]:
        """The claim with the smallest rank gets the next place."""
        return -self.priority, self.has

    def get(self) -> None:
        """Get a place."""
        self.lacks, self.has = self.lacks - 1, self.has + 1

    def precedes(self, other: Claim) -> bool:
        """Whether it may take a place of another computation. Then the other one cannot take it back."""
        fewer = self.has + 1 < other.has
        return self.priority > other.priority or (self.priority == other.priority and fewer)


def share(claims: Sequence[Claim], places: int) -> None:
    """Divide free places."""
    for _ in range(min(places, sum(each.lacks for each in claims))):
        min((each for each in claims if each.lacks), key=Claim.rank).get()


def take(claims: Sequence[Claim], *, from_all: bool) -> Iterator[tuple[Claim, Claim, Job]]:
    """Take places from computations, first from those with the lowest priority and most jobs.

    Args:
        claims: all claims.
        from_all: whether a place may also be taken from a computation that precedes, because its job is useless.

    Yields:
        The claim that gives, the claim that gets, and the job.
    """
    while True:
        takers = [each for each in claims if each.lacks]
        givers = [each for each in claims if each.offers]
        if not takers or not givers:
            return
        taker, giver = min(takers, key=Claim.rank), max(givers, key=Claim.rank)
        if not from_all and not taker.precedes(giver):  # then no other one may take a place either
            return
        giver.has -= 1
        taker.get()
        yield giver, taker, giver.offers.pop()


@define(eq=False, repr=False)
class OverseerCore:
    """The decisions of an overseer, without I/O."""

    settings: OverseerSettings
    computations: dict[str, WatchedComputation] = Factory(dict)
    """The watched computations, by mark."""
    _free_places: int | None = None
    """How many more jobs the batch system can take, by its last list; None if it has a queue."""
    _answers: bool = False
    """Whether the batch system answered the last time."""
    fault: str = ""
    """Why it did not; empty if it did."""
    _listed: bool = False
    """Whether a list has arrived since the last decision."""
    _listed_at: float = 0.0
    """When the last list arrived."""
    _round: Pause | None = None
    """The time until the next round; None before the first one."""
    _recent: deque[tuple[float, int]] = Factory(deque)
    """The submissions of the last minute: when, and how many jobs."""
    _open: dict[tuple[str, str], Pause] = Factory(dict)
    """The open complaints, by the mark of a computation and what they are about, and when each is said again. The mark
    is empty if no computation is concerned."""
    _actions: OverseerActions = Factory(OverseerActions)

    def watch(self, computation: WatchedComputation) -> None:
        """Watch another computation from now on."""
        self.computations[computation.mark] = computation

    def forget(self, mark: str) -> None:
        """Watch a computation no longer. Its jobs stay."""
        del self.computations[mark]
        self._open = {key: pause for key, pause in self._open.items() if key[0] != mark}

    @property
    def done(self) -> bool:
        """Whether all computations are finished and have no jobs left."""
        return all(each.done for each in self.computations.values())

    def handle(self, event: OverseerEvent, now: float) -> None:
        """Record an event; `decide` makes the decisions."""
        match event:
            case FileRead(mark, content, age_s):
                computation = self.computations[mark]
                self._resolve(computation, "file", "the resource file is readable again")
                if computation.take_file(content, age_s, now):
                    self._say(computation, "another master has taken over")
                self._report_staleness(computation, now)
            case FileUnread(mark, reason):
                self.computations[mark].is_readable = False
                self._complain(self.computations[mark], "file", f"nothing is decided: {reason}", now)
            case Listed(jobs, free_places):
                self._free_places = free_places
                self._take_list(jobs, now)
            case NotListed(reason):  # the next round comes later
                self._listed = self._answers = False
                self.fault = reason
                self._begin_pause(now)
                text = f"nothing is decided, the batch system does not answer: {reason}"
                self._complain(None, "batch system", text, now)
            case Ended(job_id, outcome):
                for each in self.computations.values():
                    if (known := each.jobs.take_answer(job_id, outcome)) is not None and outcome is not None:
                        each.note_excluded()
                        self._judge(each, known, outcome, now)
            case Submitted(submit, job_ids, ""):
                self.computations[submit.mark].jobs.add_submitted(job_ids, now, submit.amounts)
                self.computations[submit.mark].refusals.reset()
                self._resolve(self.computations[submit.mark], "submission", "the batch system accepts jobs again")
            case Submitted(submit, _, fault):
                self.computations[submit.mark].jobs.add_uncertain(submit.count, now)
                self.computations[submit.mark].refusals.begin(now)
                text = f"the batch system submitted nothing, as far as is known: {fault}"
                self._complain(self.computations[submit.mark], "submission", text, now)
            case Removed(job_ids, fault):
                if fault:
                    self._complain(None, "removal", f"jobs could not be removed, as far as is known: {fault}", now)
                    for each in self.computations.values():
                        each.jobs.mark_removed(job_ids, None)
            case Drained(mark, _, ""):
                self.computations[mark].silence.reset()
                self._resolve(self.computations[mark], "drain", "its master answers again")
            case Drained(mark, job_ids, fault):
                self.computations[mark].silence.begin(now)
                self.computations[mark].jobs.mark_drained(job_ids, None)
                text = f"its master was not asked to let jobs leave, as far as is known: {fault}"
                self._complain(self.computations[mark], "drain", text, now)

    def decide(self, now: float) -> None:
        """Decide, if this round's events have arrived. Call this once a round, and after the answers to questions."""
        if not self._listed or self._actions.ask:
            return
        self._listed = False
        for each in self.computations.values():
            if lost := each.jobs.settle(now):
                ids = first_of(lost, len(lost))
                self._say(each, f"{counted(len(lost), 'job')} never showed in the queue after the submission: {ids}")
        for each in self.computations.values():
            if each.has_just_finished or (each.finished and each.finished_at is not None):
                self._finish(each, now)
        active = self._active(now)
        for each in active:
            each.note_idleness(now)
            self._remove_useless(each, now)
            self._report(each, now)
            self._drain(each, each.jobs.to_drain_again(now), now)
        self._submit_missing(active, now)
        self._make_room(active, now)

    def _active(self, now: float) -> list[WatchedComputation]:
        """The computations whose files are current, the most important ones first."""
        found = [each for each in self.computations.values() if each.is_current(now)]
        return sorted(found, key=lambda each: -each.priority)

    def is_due(self, now: float) -> bool:
        """Whether the next round is due. It is due early if a computation has just finished or ends, or needs its first
        job."""
        if now >= self.next_deadline():
            return True
        every = self.computations.values()
        ends = now >= self._listed_at + ENDING_S and any(each.ends(now - FINISH_S) for each in every)
        return self._answers and (ends or any(each.has_just_finished for each in every) or self._is_urgent(now))

    def next_deadline(self) -> float:
        """When the next round is due at the latest."""
        return self._round.until if self._round is not None else 0.0

    def _begin_pause(self, now: float) -> None:
        """Plan the next round: each pause is longer than the one before while the batch system does not answer."""
        if self._round is None or self._answers:
            self._round = Pause(self.settings.interval_s, max(self.settings.interval_s, LONGEST_PAUSE_S))
        self._round.begin(now)

    def take_actions(self) -> OverseerActions:
        """Return everything that must be done since the last call."""
        actions, self._actions = self._actions, OverseerActions()
        return actions

    # ---- complaints ------------------------------------------------------------------------------------------

    def _say(self, computation: WatchedComputation | None, text: str) -> None:
        """Request that a line is printed, about a computation or about all."""
        self._actions.say.append(f"{computation.name}: {text}" if computation else text)

    def _complain(
        self, computation: WatchedComputation | None, about: str, text: str, now: float, after_s: float = 0.0
    ) -> None:
        """Complain about something that is wrong now, or is right if the text is empty.

        The first report comes when it has lasted for `after_s`. Then the intervals grow.
        """
        if not text:
            self._resolve(computation, about)
            return
        key = computation.mark if computation else "", about
        if (again := self._open.get(key)) is None:
            again = self._open[key] = between_messages(FIRST_PAUSE_S)
            again.until = now + after_s
        if now >= again.until:
            self._say(computation, text)
            again.begin(now)

    def _resolve(self, computation: WatchedComputation | None, about: str, text: str = "") -> None:
        """Record that something is right. If a complaint about it is open, report this text."""
        if self._open.pop((computation.mark if computation else "", about), None) is not None and text:
            self._say(computation, text)

    def _report_staleness(self, computation: WatchedComputation, now: float) -> None:
        """Complain about a master that no longer writes its resource file."""
        if computation.finished or not computation.is_stale(now):
            self._resolve(computation, "staleness", "continues, because the master writes its resource file again")
            return
        text = (
            f"pauses: the resource file is {duration(round(computation.age_s))} old, though its master writes it every "
            f"{duration(computation.content.update_interval)}. Is the master dead? Start it again, or remove the jobs "
            f"with --remove"
        )
        self._complain(computation, "staleness", text, now)

    def _report_limit(self, computation: WatchedComputation, short: int, now: float) -> None:
        """Complain that the limit prevents this number of useful jobs."""
        full = "" if self._free_places is None else "all hosts are full, or "
        text = f"{counted(short, 'more job')} would be useful, but {full}--max allows only {self.settings.max_jobs}"
        self._complain(computation, "limit", text if short > 0 else "", now)

    def _report(self, computation: WatchedComputation, now: float) -> None:
        """Complain about machines on which jobs or tasks fail although they run well elsewhere, about jobs that run
        without connecting or keep waiting, and about jobs that end before any waiting task could finish."""
        failing, excluded = computation.failures.failing(now), computation.failures.excluded
        unconnected, noted = computation.unconnected(), [job for job in computation.waiting() if job.note]
        texts = dict.fromkeys(("machines", "excluded machines", "unconnected", "waiting", "time"), "")
        if failing:
            texts["machines"] = (
                f"jobs fail at their start on {', '.join(failing)} and run well elsewhere, so none is submitted there. "
                f"Ask your administrator, or read the output of the jobs"
            )
        if excluded:
            texts["excluded machines"] = (
                f"tasks fail on {', '.join(excluded)} that succeed elsewhere, so the master sends no more work there, "
                f"and no job is submitted there. The master's messages say more"
            )
        if unconnected:
            texts["unconnected"] = (
                f"replaces {counted(len(unconnected), 'job')} without a connection to this master. Unless an old one "
                f"had them: can this one be reached there, and does the script leave MWPY_JOB unchanged? "
                f"{_ids(unconnected)}"
            )
        if noted:
            about = f"{counted(len(noted), 'job')} still in the queue. The reason for job {noted[0].job_id}"
            texts["waiting"] = f"{about}: {noted[0].note}"
        if computation.missing > 0 and self._lacks_time(computation):
            early_s, ends = self.settings.job_warned_s, f"a job ends after {self.settings.job_limit_s:.0f} s"
            ends += f" ({early_s:.0f} s before its time limit, when it gets SIGTERM)" if early_s else ""
            texts["time"] = (
                f"submits nothing: {ends}, but each task that waits takes "
                f"{computation.content.shortest_task:g} s or more, and a job needs {SPENT_S:.0f} s for its start and "
                f"its end. Start the overseer with a longer limit of the jobs (--line, or --mw-lifetime in --command), "
                f"correct seconds_expected, or let the tasks leave their state with mwpy.checkpoint"
            )
        for about, text in texts.items():
            self._complain(computation, about, text, now, EXPLAIN_AFTER_S if about == "waiting" else 0.0)

    # ---- the batch system ------------------------------------------------------------------------------------

    def _take_list(self, jobs: Sequence[Job], now: float) -> None:
        """Record the list of all jobs, and ask how the missing jobs ended."""
        self._listed = self._answers = True
        self.fault = ""
        self._listed_at = now
        self._begin_pause(now)
        self._resolve(None, "batch system", "the batch system answers again")
        for computation in self.computations.values():
            own = {job.job_id: job for job in jobs if job.mark == computation.mark}
            self._report_adoption(computation, own)
            held = computation.jobs.take_list(own, now)
            computation.note_excluded()
            for job in held:
                text = f"job {job.job_id} is held: {job.note or 'no reason is given'}"
                self._say(computation, text)
                self._count_failure(computation, Outcome(End.LOST, text, None, 0.0, host=job.host), text, now)
            for job in computation.jobs.live(JobState.RUNNING):
                if job.running_s >= YOUNG_S and computation.failures.succeed(now - (job.running_s - YOUNG_S), job.host):
                    self._say(computation, f"job {job.job_id} runs well, so more are submitted")
            if computation.finished_at is not None:
                computation.jobs.explain_no_more()
            self._actions.ask += computation.jobs.questions()

    def _report_adoption(self, computation: WatchedComputation, jobs: Mapping[str, Job]) -> None:
        """Name the jobs that an earlier overseer submitted, when a computation's first list arrives."""
        found = [job_id for job_id, job in jobs.items() if job.state is not JobState.LEAVING]
        if found and not computation.listed:
            text = f"continues with {counted(len(found), 'job')} of an earlier overseer: {first_of(found, len(found))}"
            self._say(computation, text)
        computation.listed = True

    def _judge(self, computation: WatchedComputation, known: Tracked, outcome: Outcome, now: float) -> None:
        """Decide whether a job that has ended was a failure."""
        job_id = known.job_id
        if computation.finished_at is not None:
            return
        if outcome.exit_code == ExitCode.UNFIT:
            pause = f"no other of its kind is submitted for {duration(computation.note_unfit(known.amounts, now))}"
            remedy = "unless the tasks that wait require something else"
            self._say(computation, f"job {job_id} left: {explain(outcome)}, so {pause}, {remedy}")
        elif is_failure(outcome):
            text = f"job {job_id} ended {duration(round(outcome.ran_s))} after its start: {explain(outcome)}"
            last_line = outcome.stderr.strip().splitlines()[-1:]
            self._say(computation, ": ".join([text, *last_line]))
            self._count_failure(computation, outcome, text, now)
        elif outcome.ran_s >= YOUNG_S and computation.failures.succeed(now):
            self._say(computation, f"job {job_id} has run well, so more are submitted")

    def _count_failure(self, computation: WatchedComputation, outcome: Outcome, reason: str, now: float) -> None:
        pause_s = computation.failures.count(outcome, now)
        if pause_s is None:
            return
        lines = "".join(f"\n    | {line}" for line in outcome.stderr.strip().splitlines()[-STDERR_LINES:])
        self._say(
            computation,
            f"{computation.failures.in_a_row} jobs in a row died within {YOUNG_S:.0f} s of their start or were held, "
            f"so nothing is submitted for {duration(pause_s)}, or until the master is started again. Then one job is "
            f"tried. The last failure: {reason}" + (f". The end of its standard error:{lines}" if lines else ""),
        )

    # ---- removals --------------------------------------------------------------------------------------------

    def _finish(self, computation: WatchedComputation, now: float) -> None:
        """End a finished computation: remove waiting jobs at once, and running jobs after a while."""
        if computation.done:
            return
        running = computation.jobs.live(JobState.RUNNING)
        if computation.finished_at is None:
            computation.finished_at = now
            text = f"is finished; its jobs end by themselves ({len(running)} running)"
            if computation.is_old:
                text = f"was finished before this overseer started; waits {NEW_MASTER_S:.0f} s for a new master"
            self._say(computation, text)
        waiting = computation.jobs.live(JobState.QUEUED, JobState.HELD)
        self._remove(computation, waiting, "no longer needed", now)
        if now >= computation.finished_at + FINISH_S:
            self._remove(computation, running, f"still running {FINISH_S:.0f} s after the end", now)
        waits = computation.is_old and now < computation.finished_at + NEW_MASTER_S
        computation.done = not waits and not computation.jobs.occupied and not computation.jobs.listed
        if computation.done:
            self._say(computation, "is finished, and no job of it is left")

    def _remove_useless(self, computation: WatchedComputation, now: float) -> None:
        """Remove jobs that have waited or idled for a while without being needed, and a tried job without a machine.

        After a tried job that finds no other machine, the next one may run on any machine.
        """
        patience_s = self.settings.patience_s
        since = computation.surplus_since
        if since is not None and now >= since + patience_s - ROUNDING_S:
            surplus = computation.waiting()[computation.missing :]
            self._remove(computation, surplus, "waiting, and no longer needed", now)
        if computation.content.slaves_needed == 0:
            idle = computation.idle(patience_s, now)
            self._remove(computation, idle, f"idle for {max(patience_s, CERTAIN_S):.0f} s", now)
        since = computation.failures.tried_elsewhere_at
        if since is not None and now >= since + TRIAL_S:
            self._remove(computation, computation.waiting(), "waiting, and there is no other machine", now)

    def _make_room(self, active: Sequence[WatchedComputation], now: float) -> None:
        """Take places for the limit, and for the computations that lack jobs: of useless jobs, of waiting jobs, and
        then of jobs at work, whose agents leave after their tasks."""
        for each in active:
            surplus = [job for job in each.drainable(now) if job.is_surplus]
            self._let_leave(each, surplus, "their machines may have fewer jobs now", now)
        claims = self._claims(active, now)
        lacking = [self.computations[each.mark] for each in claims if each.lacks]
        excess = max(0, -self._free - self._freeing)
        share(claims, self._free + self._freeing)
        claims.append(Claim("", f"--max {self.settings.max_jobs} allows no more", math.inf, excess))
        for kind in Offered:
            for each, claim in zip(active, claims, strict=False):
                claim.offers = each.offers(kind, now)
            taken: dict[tuple[str, str], list[Job]] = {}
            for giver, taker, job in take(claims, from_all=kind is Offered.USELESS):
                taken.setdefault((giver.mark, taker.reason), []).append(job)
            for (mark, reason), jobs in taken.items():
                if kind is Offered.AT_WORK:
                    self._let_leave(self.computations[mark], jobs, reason, now)
                else:
                    self._remove(self.computations[mark], jobs, f"{kind.value}, because {reason}", now)
        for each, claim in zip(active, claims, strict=False):
            if each in lacking:
                self._report_limit(each, claim.lacks, now)

    def _let_leave(self, computation: WatchedComputation, jobs: Sequence[Job], why: str, now: float) -> None:
        """Let the agents of jobs leave after their tasks, and say so, unless their master did not answer the last time:
        then it was said before."""
        if jobs and (computation.mark, "drain") not in self._open:
            self._say(
                computation, f"lets {counted(len(jobs), 'job')} leave after their tasks, because {why}: {_ids(jobs)}"
            )
        self._drain(computation, [job.job_id for job in jobs], now)

    def _drain(self, computation: WatchedComputation, job_ids: Sequence[str], now: float) -> None:
        """Request that the agents of jobs leave after their tasks."""
        if job_ids:
            self._actions.drain.setdefault(computation.mark, []).extend(job_ids)
            computation.jobs.mark_drained(job_ids, now)

    def _remove(self, computation: WatchedComputation, jobs: Sequence[Job], reason: str, now: float) -> None:
        if not jobs:
            return
        job_ids = [job.job_id for job in jobs]
        self._actions.remove += job_ids
        computation.jobs.mark_removed(job_ids, now)
        self._say(computation, f"removes {counted(len(jobs), 'job')}, {reason}: {_ids(jobs)}")

    # ---- submissions -----------------------------------------------------------------------------------------

    def _claims(self, active: Sequence[WatchedComputation], now: float) -> list[Claim]:
        """What each computation has and lacks. A place that becomes free belongs to nobody."""
        return [
            Claim(each.mark, f"{each.name} needs places", each.priority, self._wish(each, now), each.jobs.kept)
            for each in active
        ]

    def _submit_missing(self, active: Sequence[WatchedComputation], now: float) -> None:
        """Submit the missing jobs of these computations within the limits."""
        claims = self._claims(active, now)
        share(claims, min(self._free, self._allowance(now)))
        for each, claim in zip(active, claims, strict=True):
            self._submit(each, claim.has - each.jobs.kept, now)

    def _is_urgent(self, now: float) -> bool:
        """Whether a computation without any job needs one, and can get it now."""
        has_none = any(self._wish(each, now) and not each.jobs.occupied for each in self._active(now))
        return has_none and min(self._free, self._allowance(now)) > 0

    @property
    def _free(self) -> int:
        """How many jobs can be submitted; negative if there are more jobs than the limit."""
        occupied = sum(each.jobs.occupied for each in self.computations.values())
        by_limit = self.settings.max_jobs - occupied
        return by_limit if self._free_places is None else min(by_limit, self._free_places)

    @property
    def _freeing(self) -> int:
        """How many places will become free because jobs were removed or are drained."""
        return sum(each.jobs.freeing for each in self.computations.values())

    def _wish(self, computation: WatchedComputation, now: float) -> int:
        """How many jobs a computation would submit without limits."""
        blocked = computation.jobs.unexplained or now < computation.refusals.until or self._lacks_time(computation)
        missing = 0 if blocked else sum(computation.wanted(now).values())
        return computation.failures.limit(missing, computation.unproven, now)

    def _lacks_time(self, computation: WatchedComputation) -> bool:
        """Whether a job ends before any waiting task could finish."""
        limit_s = self.settings.job_limit_s
        return limit_s is not None and limit_s < computation.content.shortest_task + SPENT_S

    def _allowance(self, now: float) -> int:
        """How many jobs may be submitted now without exceeding the limit per minute."""
        while self._recent and now >= self._recent[0][0] + 60.0:
            self._recent.popleft()
        return self.settings.max_per_minute - sum(count for _, count in self._recent)

    def _submit(self, computation: WatchedComputation, count: int, now: float) -> None:
        if not count:
            return
        self._recent.append((now, count))
        avoided = computation.failures.next_avoided(now)
        missing = counted(computation.content.slaves_needed, "slave")
        on_the_way = counted(computation.coming.total(), "job")
        where = f", not to {', '.join(avoided)}" if avoided else ""
        for amounts, wanted in computation.wanted(now).items():
            some = min(count, wanted)
            count -= some
            if some:
                self._actions.submit.append(Submit(computation.mark, some, avoided, amounts))
                needs = f" for {Requires(amounts)}" if amounts else ""
                text = f"submits {counted(some, 'job')}{needs}{where}: {missing} missing, {on_the_way} on the way"
                self._say(computation, text)


def _ids(jobs: Sequence[Job]) -> str:
    return first_of((job.job_id for job in jobs), len(jobs))
