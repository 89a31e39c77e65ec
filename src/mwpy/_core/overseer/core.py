"""What an overseer decides: how many jobs to submit for which computation, which to remove, and what to say.

Theory of operation. In each round the shell tells what every resource file says, and what the batch system's list of
jobs is; `decide` then decides, once. What could not be read or asked decides nothing. Nothing is remembered that
matters: all jobs are found in the list, by their mark; what is kept besides (see `Oversight`) only makes for fewer
submissions and later removals, so that an overseer that was killed and started again goes on where the other stopped.

Removals are patient: what is surplus now is often needed again when the master algorithm has looked at its results.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from attrs import define, field, frozen

from mwpy._core.overseer.oversight import CERTAIN_S, ROUNDING_S, UNSEEN_S, YOUNG_S, Need, Oversight, explain, is_failure
from mwpy._values.jobs import Job, JobState, Outcome

__all__ = [
    "Ended",
    "FileRead",
    "FileUnread",
    "Listed",
    "NotListed",
    "NotRemoved",
    "NotSubmitted",
    "OverseerActions",
    "OverseerCore",
    "OverseerEvent",
    "OverseerSettings",
    "Submit",
    "Submitted",
]

FIRST_RETRY_S = 10.0
"""Seconds before a batch system that would not submit is asked again; each pause is twice the one before."""

LONGEST_RETRY_S = 600.0

SAY_AGAIN_S = 300.0
"""Seconds before what is still wrong is said again; each interval is twice the one before."""

FINISH_S = 60.0
"""Seconds that the jobs of a finished computation get to end by themselves."""

ASKED_TIMES = 3
"""How often is asked what became of a job."""

ASKED_JOBS = 5
"""Of so many of a computation's jobs that vanished at once is asked what became of them: of a thousand, the first few
tell what the others would."""

STDERR_LINES = 20


@frozen
class OverseerSettings:
    """What the core must know of the options; their sentences are in `cli/oversee.py`."""

    most: int = 1000
    a_minute: int = 200
    patience_s: float = 60.0
    poll_s: float = 10.0


@frozen
class FileRead:
    """A resource file was read."""

    mark: str
    need: Need


@frozen
class FileUnread:
    """A resource file could not be read, or makes no sense."""

    mark: str
    reason: str


@frozen
class Listed:
    """The batch system told all its jobs."""

    jobs: Sequence[Job]


@frozen
class NotListed:
    """The batch system did not answer."""

    reason: str


@frozen
class Ended:
    """What became of a job that is in the list no more, if that is known."""

    job_id: str
    outcome: Outcome | None


@frozen
class Submitted:
    """Jobs were put into the queue."""

    mark: str
    job_ids: Sequence[str]


@frozen
class NotSubmitted:
    """The batch system would not submit, or nobody knows whether it did."""

    mark: str
    count: int
    reason: str


@frozen
class NotRemoved:
    """The batch system would not remove jobs, or nobody knows whether it did."""

    job_ids: Sequence[str]
    reason: str


OverseerEvent = FileRead | FileUnread | Listed | NotListed | Ended | Submitted | NotSubmitted | NotRemoved


@frozen
class Submit:
    """Put so many jobs for a computation into the queue."""

    mark: str
    count: int


@define
class OverseerActions:
    """All that must be done now; the fields are in the order of doing."""

    say: list[str] = field(factory=list)
    ask: list[str] = field(factory=list)
    """Jobs: what became of them? To be answered with `Ended`, and `decide` to be called again."""
    remove: list[str] = field(factory=list)
    submit: list[Submit] = field(factory=list)


@define(eq=False)
class OverseerCore:
    """The overseer without its shell."""

    settings: OverseerSettings
    computations: dict[str, Oversight] = field(factory=dict)
    """By their marks."""
    _listed: bool = False
    """The list is of this round."""
    _round_at: float = 0.0
    _pause_s: float = 0.0
    """How long to wait for the next round if the batch system does not answer."""
    _recent: deque[tuple[float, int]] = field(factory=deque)
    """When how many jobs were submitted in the last minute."""
    _wrong: dict[tuple[str, str], tuple[float, float]] = field(factory=dict)
    """What is wrong with which computation: when to say it again, and after which interval again."""
    _actions: OverseerActions = field(factory=OverseerActions)

    def watch(self, computation: Oversight) -> None:
        """Look after another computation from now on."""
        self.computations[computation.mark] = computation

    @property
    def done(self) -> bool:
        """Whether all computations are finished, and no job of them is left."""
        return all(each.done for each in self.computations.values())

    # ---- what happened outside -----------------------------------------------------------------------

    def handle(self, event: OverseerEvent, now: float) -> None:
        """Note what happened; decisions wait for `decide`."""
        match event:
            case FileRead(mark, need):
                self._read(self.computations[mark], need, now)
            case FileUnread(mark, reason):
                self.computations[mark].readable = False
                self._wrong_now(mark, "file", f"nothing is decided: {reason}", now)
            case Listed(jobs):
                self._round_at, self._pause_s, self._listed = now, self.settings.poll_s, True
                self._right_now("", "batch", "the batch system answers again")
                for each in self.computations.values():
                    self._take_over(each, {job.job_id: job for job in jobs if job.mark == each.mark}, now)
            case NotListed(reason):
                self._round_at, self._listed = now, False
                self._pause_s = min(max(2 * self._pause_s, self.settings.poll_s), LONGEST_RETRY_S)
                self._wrong_now("", "batch", f"nothing is decided, the batch system does not answer: {reason}", now)
            case Ended(job_id, outcome):
                for each in self.computations.values():
                    if job_id in each.unexplained or job_id in each.expected:
                        self._ended(each, job_id, outcome, now)
            case Submitted(mark, job_ids):
                self._submitted(self.computations[mark], job_ids, now)
            case NotSubmitted(mark, count, reason):
                self._not_submitted(self.computations[mark], count, reason, now)
            case NotRemoved(job_ids, reason):
                self._wrong_now("", "remove", f"jobs could not be removed: {reason}", now)
                for each in self.computations.values():
                    each.removed = {job: since for job, since in each.removed.items() if job not in job_ids}

    def _read(self, each: Oversight, need: Need, now: float) -> None:
        self._right_now(each.mark, "file", "the resource file can be read again")
        if each.read(need, now):
            self._say(each, "another master has taken over")
            each.brake.release()
        if need.finished or not each.is_stale(now):
            self._right_now(each.mark, "stale", "the master writes its resource file again, so this goes on")
        else:
            self._wrong_now(
                each.mark,
                "stale",
                f"pauses: the resource file is {need.age_s:.0f} s old, though its master writes it every "
                f"{need.interval_s:.0f} s. Is the master dead? Start it again, or remove the jobs with --remove",
                now,
            )

    def _take_over(self, each: Oversight, jobs: dict[str, Job], now: float) -> None:
        for job in each.listed(jobs, now):
            self._say(each, f"job {job.job_id} is held: {job.note or 'no reason is told'}")
            self._failed(each, f"job {job.job_id} is held: {job.note}", "", now)
        for job in each.live(JobState.RUNNING):
            if job.running_s >= YOUNG_S and each.brake.proven_at(now - (job.running_s - YOUNG_S)):
                self._say(each, f"job {job.job_id} runs well, so more are submitted")
        asked = list(each.unexplained)[:ASKED_JOBS]
        each.unexplained = {job_id: each.unexplained[job_id] for job_id in asked}
        if each.finished_at is None:
            self._actions.ask += [*asked, *list(each.expected)[:ASKED_JOBS]]

    def _ended(self, each: Oversight, job_id: str, outcome: Outcome | None, now: float) -> None:
        if outcome is None:
            if job_id in each.unexplained:
                each.unexplained[job_id] += 1
                if each.unexplained[job_id] >= ASKED_TIMES:
                    del each.unexplained[job_id]
            return
        each.expected.pop(job_id, None)
        each.unexplained.pop(job_id, None)
        if is_failure(outcome):
            told = f"job {job_id} ended {outcome.ran_s:.0f} s after its start: {explain(outcome)}"
            last = outcome.stderr.strip().splitlines()[-1:]
            self._say(each, ": ".join([told, *last]))
            self._failed(each, told, outcome.stderr, now)
        elif outcome.ran_s >= YOUNG_S and each.brake.proven_at(now):
            self._say(each, f"job {job_id} has run well, so more are submitted")

    def _failed(self, each: Oversight, why: str, stderr: str, now: float) -> None:
        pause_s = each.brake.fail(now)
        if pause_s is None:
            return
        lines = stderr.strip().splitlines()[-STDERR_LINES:]
        words = "".join(f"\n    | {line}" for line in lines)
        self._say(
            each,
            f"{each.brake.failures} jobs in a row died within {YOUNG_S:.0f} s of their start or were held, so nothing "
            f"is submitted for {pause_s:.0f} s, or until the master is started again; then one is tried. {why}"
            + (f". It wrote last:{words}" if words else ""),
        )

    def _submitted(self, each: Oversight, job_ids: Sequence[str], now: float) -> None:
        each.expected.update((job_id, now) for job_id in job_ids if job_id not in each.jobs)
        each.retry_s = 0.0
        self._right_now(each.mark, "submit", "the batch system takes jobs again")

    def _not_submitted(self, each: Oversight, count: int, reason: str, now: float) -> None:
        each.unsure, each.unsure_at = each.unsure + count, now
        each.retry_s = min(max(2 * each.retry_s, FIRST_RETRY_S), LONGEST_RETRY_S)
        each.retry_at = now + each.retry_s
        self._wrong_now(each.mark, "submit", f"the batch system submitted nothing, as far as it told: {reason}", now)

    # ---- deciding ----------------------------------------------------------------------------------------

    def decide(self, now: float) -> None:
        """Decide once a round, and after each answer to a question."""
        if not self._listed or self._actions.ask:
            return
        self._listed = False
        for each in self.computations.values():
            if lost := each.settle(now):
                self._say(each, f"{len(lost)} jobs that were submitted never showed in the queue: {_names(lost)}")
        for each in self.computations.values():
            if each.need is not None and each.need.finished and (each.readable or each.finished_at is not None):
                self._finish(each, now)
        going_on = self._decidable(now)
        for each in going_on:
            each.note_idleness(now)
            self._remove_surplus(each, now)
            self._tell_delays(each, now)
        self._share_out(going_on, now)

    def _decidable(self, now: float) -> list[Oversight]:
        """The computations about which something can be decided, the most important ones first."""
        found = [
            each
            for each in self.computations.values()
            if each.readable and each.need is not None and not each.need.finished and not each.is_stale(now)
        ]
        return sorted(found, key=lambda each: -each.priority)

    def _finish(self, each: Oversight, now: float) -> None:
        if each.done:
            return
        if each.finished_at is None:
            each.finished_at = now
            self._say(each, f"is finished; its jobs end by themselves ({len(each.live(JobState.RUNNING))} run)")
        self._remove(each, each.live(JobState.QUEUED, JobState.HELD), "not needed any more")
        if now >= each.finished_at + FINISH_S:
            self._remove(each, each.live(JobState.RUNNING), f"still running {FINISH_S:.0f} s after the end")
        each.unexplained.clear()
        each.done = not each.jobs and not each.occupied
        if each.done:
            self._say(each, "is finished, and no job of it is left")

    def _remove_surplus(self, each: Oversight, now: float) -> None:
        patience_s = self.settings.patience_s
        if each.surplus_since is not None and now >= each.surplus_since + patience_s - ROUNDING_S:
            self._remove(each, each.waiting()[each.missing :], "waiting, and not needed any more")
        if each.need is not None and each.need.slaves_needed == 0:
            self._remove(each, each.idle(patience_s, now), f"idle for {max(patience_s, CERTAIN_S):.0f} s")

    def _remove(self, each: Oversight, jobs: Sequence[Job], why: str) -> None:
        if not jobs:
            return
        job_ids = [job.job_id for job in jobs]
        self._actions.remove += job_ids
        each.removed.update(dict.fromkeys(job_ids, self._round_at))
        self._say(each, f"removes {_many(len(jobs))}, {why}: {_names(job_ids)}")

    def _share_out(self, going_on: list[Oversight], now: float) -> None:
        """Submit what is missing, as far as the limits go: the most important first, and equals in equal shares."""
        wishes = [(each, wish) for each in going_on if (wish := self._wish(each, now)) > 0]
        free = self.settings.most - sum(each.occupied for each in self.computations.values())
        budget = min(free, self._allowed_now(now))
        given = {each.mark: 0 for each, _ in wishes}
        while budget > 0 and (open_ := [each for each, wish in wishes if given[each.mark] < wish]):
            first = min(open_, key=lambda each: (-each.priority, each.occupied + given[each.mark]))
            given[first.mark] += 1
            budget -= 1
        going = sum(each.going for each in self.computations.values())
        left = max(0, free + going)
        for each, wish in wishes:
            short, left = max(0, wish - left), max(0, left - wish)
            self._submit(each, given[each.mark], now)
            self._reclaim([other for other in going_on if other.priority < each.priority], short)
            self._tell_limit(each, short, now)
        self._cut(going_on, max(0, -free - going), now)

    def _wish(self, each: Oversight, now: float) -> int:
        if each.unexplained or now < each.retry_at:
            return 0
        return each.brake.limit(max(0, each.missing), each.unproven, now)

    def _allowed_now(self, now: float) -> int:
        while self._recent and now >= self._recent[0][0] + 60.0:
            self._recent.popleft()
        return self.settings.a_minute - sum(count for _, count in self._recent)

    def _submit(self, each: Oversight, count: int, now: float) -> None:
        if not count or each.need is None:
            return
        self._recent.append((now, count))
        self._actions.submit.append(Submit(each.mark, count))
        many = f"{each.need.slaves_needed} slave{'' if each.need.slaves_needed == 1 else 's'}"
        self._say(each, f"submits {_many(count)}: {many} missing, {_many(each.coming)} on the way")

    def _reclaim(self, others: list[Oversight], count: int) -> None:
        """Take places in the queue from less important computations, the least important first."""
        for other in reversed(others):
            jobs = other.waiting()[-count:] if count else []
            self._remove(other, jobs, "waiting, and others are more important")
            count -= len(jobs)

    def _cut(self, going_on: list[Oversight], count: int, now: float) -> None:
        """Remove what is too much: what waits before what is idle, the least important first; nothing that works."""
        for kind in ("waiting", "idle"):
            for each in reversed(going_on):
                jobs = (each.waiting() if kind == "waiting" else each.idle(0.0, now))[-count:] if count else []
                self._remove(each, jobs, f"{kind}, and more than --max {self.settings.most}")
                count -= len(jobs)

    # ---- what else the user should know ----------------------------------------------------------------------

    def _tell_limit(self, each: Oversight, short: int, now: float) -> None:
        text = f"{_many(short)} more would be of use, but no more than {self.settings.most} are allowed (--max)"
        self._wrong_if(short > 0, each, "max", text, now)

    def _tell_delays(self, each: Oversight, now: float) -> None:
        """Say which jobs make no progress, and what is known of why."""
        unseen = each.unseen()
        text = (
            f"{_many(len(unseen))} ran for {UNSEEN_S:.0f} s and are not connected, so others take their place: do they "
            f"find the master, and do their scripts leave MWPY_JOB alone? {_names([job.job_id for job in unseen])}"
        )
        self._wrong_if(bool(unseen), each, "unseen", text, now)
        noted = [job for job in each.waiting() if job.note]
        text = f"{_many(len(noted))} still wait. Of job {noted[0].job_id} is told: {noted[0].note}" if noted else ""
        self._wrong_if(bool(noted), each, "wait", text, now, after_s=SAY_AGAIN_S)

    # ---- speaking ------------------------------------------------------------------------------------------

    def _say(self, each: Oversight | None, text: str) -> None:
        self._actions.say.append(f"{each.name}: {text}" if each else text)

    def _wrong_if(self, wrong: bool, each: Oversight, what: str, text: str, now: float, after_s: float = 0.0) -> None:
        if wrong:
            self._wrong_now(each.mark, what, text, now, after_s)
        else:
            self._right_now(each.mark, what, "")

    def _wrong_now(self, mark: str, what: str, text: str, now: float, after_s: float = 0.0) -> None:
        """Say what is wrong: when it has been for a while, and again at growing intervals."""
        at, interval_s = self._wrong.get((mark, what), (now + after_s, SAY_AGAIN_S))
        if now >= at:
            self._say(self.computations.get(mark), text)
            at, interval_s = now + interval_s, 2 * interval_s
        self._wrong[mark, what] = (at, interval_s)

    def _right_now(self, mark: str, what: str, text: str) -> None:
        """What may have been wrong is not; say so if it was."""
        if self._wrong.pop((mark, what), None) is not None and text:
            self._say(self.computations.get(mark), text)

    # ---- small change ----------------------------------------------------------------------------------------

    def next_deadline(self) -> float:
        """When the next round is due."""
        return self._round_at + self._pause_s

    def take_actions(self) -> OverseerActions:
        """Hand out all that must be done since this was last called."""
        actions, self._actions = self._actions, OverseerActions()
        return actions

    def check(self) -> None:
        """Recompute what is derived."""
        for each in self.computations.values():
            each.check()


def _many(count: int) -> str:
    return f"{count} job{'' if count == 1 else 's'}"


def _names(job_ids: Sequence[str]) -> str:
    more = f" and {len(job_ids) - 5} more" if len(job_ids) > 5 else ""
    return ", ".join(job_ids[:5]) + more
