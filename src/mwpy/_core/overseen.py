"""One computation that an overseer watches: its resource file, its jobs, their failures, and pauses after these.

A resource file is a snapshot. It says how many slaves were missing when it was written, and which jobs were connected.
So every job of this computation that the file does not name is on its way, and counts against the missing slaves:
submitted jobs that are in no list yet, waiting jobs, and running jobs that have not connected. This rule alone prevents
an overseer from submitting the same jobs twice. It also holds for an overseer that has just been started again.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from attrs import Factory, define

from mwpy._core.pauses import Pause
from mwpy._values.errors import ExitCode
from mwpy._values.jobs import FINISHED, Amounts, End, Job, JobState, MemberKeys, Outcome, ResourceFile
from mwpy._values.phrases import is_stale

# Which ends of jobs are failures, and what exit codes mean.


YOUNG_S = 30.0
"""A job that ended within this many seconds failed at its start. A job that runs longer works well."""

EXPLANATIONS = {
    1: "its script failed before it called mwpy.main()",
    ExitCode.USAGE: "a bad option, or a bad or missing resource file",
    ExitCode.REFUSED: "the master refused it, or another program listens at the master's address",
    ExitCode.UNREACHABLE: "no address of the master answered",
    ExitCode.EVICTED: "it was sent away, or its time limit had passed: is the clock of its machine right?",
    ExitCode.CANNOT_START: "its slaves die before they can take a task",
    ExitCode.UNFIT: "nothing that waits can run there",
    ExitCode.PROLOGUE: "its prologue failed",
    126: "its program cannot be executed there",
    127: "its program does not exist there",
    ExitCode.FAILED: "the master was lost: start it again, or remove its jobs with --remove",
}

NOT_INSTALLED = re.compile(r"No module named '?mwpy\b")
"""What Python writes if it has no mwpy."""


def explain(outcome: Outcome) -> str:
    """Describe how a job ended, and what its exit code means."""
    if NOT_INSTALLED.search(outcome.stderr):
        remedy = "install it there, or name another Python (--command, or python=PATH in a hosts file)"
        return f"{outcome.description} (the Python that the job uses has no mwpy: {remedy})"
    meaning = EXPLANATIONS.get(outcome.exit_code) if outcome.exit_code is not None else None
    return f"{outcome.description} ({meaning})" if meaning else outcome.description


def is_failure(outcome: Outcome) -> bool:
    """Return whether a job failed at its start. A job that was removed or shut down has not failed.

    A job that left by itself after seconds has failed, too: a machine with a wrong clock would take job after job.
    """
    failed = outcome.end is End.KILLED or outcome.exit_code not in (None, ExitCode.OK)
    return failed and outcome.ran_s < YOUNG_S


# When submissions pause because jobs fail at their start, and which machines are avoided.
#
# A machine is avoided only with evidence: jobs run well on another machine where none has failed since. Otherwise the
# fault is probably in the script, and submitting elsewhere would only cause more failures.


FAILURES_ALLOWED = 3
"""After this many failures in a row, submissions pause, or a machine is avoided."""

FIRST_PAUSE_S = 60.0
"""Seconds until one job is tried."""

LONGEST_PAUSE_S = 1800.0

AVOIDED_S = 3600.0
"""Seconds until an avoided machine is tried again. After a repair it is useful again."""


@define(eq=False, repr=False)
class Failures:
    """The jobs of a computation that failed at their start. A machine whose name is not known is ``""``.

    Several failures in a row pause the submissions. After the pause, one job at a time is allowed.
    """

    in_a_row: int = 0
    pause: Pause = Factory(lambda: Pause(FIRST_PAUSE_S, LONGEST_PAUSE_S))
    tried_elsewhere_at: float | None = None
    """When the last job was tried, if it avoids the machines where jobs failed; otherwise None."""
    excluded: Sequence[str] = ()
    """The machines that the master has excluded, as far as their names are known."""
    _last_at: float = -math.inf
    _on: dict[str, deque[float]] = Factory(dict)
    """The times of the failures in a row, by machine."""
    _good: dict[str, None] = Factory(dict)
    """The machines on which a job has run well."""

    def count(self, outcome: Outcome, now: float) -> float | None:
        """Count a failure.

        Returns:
            The length in seconds of the pause that begins now; None if no pause begins.
        """
        self._on.setdefault(outcome.host, deque(maxlen=FAILURES_ALLOWED)).append(now)
        if outcome.host in self.avoided(now):
            self.end()
            return None
        self.in_a_row += 1
        self._last_at = now
        if self.in_a_row < FAILURES_ALLOWED or now < self.pause.until:
            return None
        # If a task has killed the job, the master will give up this task. A machine that sent it away may be free soon.
        if outcome.end is End.KILLED or outcome.exit_code == ExitCode.EVICTED:
            self.pause.reset()
        return self.pause.begin(now)

    def succeed(self, at: float, host: str | None = None) -> bool:
        """Count a job that was no longer young at this time, on a machine if it still runs there.

        Returns:
            Whether this ended a pause.
        """
        if host is not None:
            self._good[host] = None
            if (times := self._on.get(host)) and at > times[-1]:
                del self._on[host]
        return at > self._last_at and self.end()

    def end(self) -> bool:
        """Forget the failures in a row. Return whether there was a pause."""
        paused = self.is_paused
        self.in_a_row, self.tried_elsewhere_at = 0, None
        self.pause.reset()
        return paused

    @property
    def is_paused(self) -> bool:
        """Whether there is a pause, or only one job is tried after it."""
        return self.pause.until > -math.inf

    def suspects(self, now: float) -> list[str]:
        """The machines with recent failures in a row, whether jobs run well elsewhere or not."""
        found = ((host, times) for host, times in self._on.items() if host and len(times) >= FAILURES_ALLOWED)
        return [host for host, times in found if now < times[-1] + AVOIDED_S]

    def failing(self, now: float) -> list[str]:
        """The machines on which jobs fail at their start, and run well elsewhere."""
        return self.suspects(now) if any(host not in self._on for host in self._good) else []

    def avoided(self, now: float) -> tuple[str, ...]:
        """The machines to which no job is submitted."""
        return tuple(dict.fromkeys((*self.failing(now), *self.excluded)))

    def next_avoided(self, now: float) -> tuple[str, ...]:
        """The machines that the jobs avoid which are submitted now.

        If only one machine has many failures, the fault may be its own. So every second job that is tried avoids it.
        """
        suspects = self.suspects(now)
        elsewhere = self.is_paused and self.tried_elsewhere_at is None and len(suspects) == 1
        self.tried_elsewhere_at = now if elsewhere else None
        return (*suspects, *self.excluded) if elsewhere else self.avoided(now)

    def limit(self, wanted: int, unproven: int, now: float) -> int:
        """How many of the wanted jobs may be submitted. `unproven` other jobs may still fail at their start."""
        if not self.is_paused:
            return wanted
        return min(wanted, 1) if now >= self.pause.until and not unproven else 0


# The jobs of one computation: those in the list of the batch system, and those that should be there.
#
# Between a submission and the next list, only this table knows the submitted jobs. It also counts jobs that an attempt
# to submit may have created although its answer was lost.


SETTLE_S = 30.0
"""Within this many seconds a submitted job appears in the list. The slowest batch systems answer from a cache."""

REMOVE_AGAIN_S = 60.0
"""After this many seconds, a removed job that is still in the list is removed again."""

DRAIN_AGAIN_S = 300.0
"""After this many seconds, the master of a drained job that still runs is asked again. It may not have reached the
agent, or another agent may have started in the job."""

QUESTIONS_PER_JOB = 3
"""How often the batch system is asked how a job ended."""

QUESTIONS_AT_ONCE = 5
"""If many jobs vanish at the same time, the overseer asks about this many. The first few show what happened to all."""

JOBS_REMEMBERED = 1000
"""Of how many jobs that have ended the machines are remembered: a job may end before the resource file names it."""


@define(eq=False, repr=False)
class Tracked:
    """A job that is in the list, should be there, or has left it for an unknown reason."""

    job_id: str
    job: Job | None = None
    """As the list shows it; None if it is not there."""
    submitted_at: float | None = None
    """When it was submitted, until it is in a list."""
    amounts: Amounts = ()
    """What it was asked for, if its tasks require something and this overseer has submitted it."""
    removed_at: float | None = None
    """When it was removed."""
    drained_at: float | None = None
    """When its master was last asked to let its agent leave after its tasks."""
    questions: int = 0
    """How often the batch system was asked how it ended."""
    idle_since: float | None = None
    """Since when it is connected and has no work."""
    unconnected_since: float | None = None
    """Since when it runs without a connection to the present master."""
    is_unconnected: bool = False
    """Whether it probably never connects."""

    @property
    def is_unexplained(self) -> bool:
        """Whether it has left the list for an unknown reason."""
        return self.job is None and self.submitted_at is None

    def is_live(self, *states: JobState) -> bool:
        """Whether it is listed in one of these states, and not removed."""
        return self.job is not None and self.job.state in states and self.removed_at is None

    def show(self, job: Job, now: float) -> None:
        """Record what the list says about it."""
        self.job, self.submitted_at, self.questions = job, None, 0
        if (
            self.removed_at is not None
            and job.state is not JobState.LEAVING
            and now >= self.removed_at + REMOVE_AGAIN_S
        ):
            self.removed_at = None
        if job.state is not JobState.RUNNING:
            self.drained_at = None


@define(eq=False, repr=False)
class JobTable:
    """The jobs of one computation."""

    machines: dict[str, str] = Factory(dict)
    """The machines of the last jobs, also of those that have ended."""
    tracked: dict[str, Tracked] = Factory(dict)
    uncertain: int = 0
    """How many jobs may exist because an attempt to submit them ended without an answer."""
    uncertain_at: float = 0.0

    # ---- what happens ----------------------------------------------------------------------------------------

    def take_list(self, jobs: Mapping[str, Job], now: float) -> list[Job]:
        """Record the list of the computation's jobs. Return the jobs that are held and were not held before."""
        held = []
        for job_id, job in jobs.items():
            known = self.tracked.setdefault(job_id, Tracked(job_id))
            if known.is_unexplained:
                self.uncertain = max(0, self.uncertain - 1)
            if job.state is JobState.HELD and (known.job is None or known.job.state is not JobState.HELD):
                held.append(job)
            known.show(job, now)
        for known in [*self.tracked.values()]:
            if known.job is not None and known.job_id not in jobs:
                if known.removed_at is not None or known.job.state is JobState.LEAVING:
                    del self.tracked[known.job_id]
                known.job, known.drained_at = None, None
        self.machines |= {job_id: job.host for job_id, job in jobs.items() if job.host}
        while len(self.machines) > JOBS_REMEMBERED + len(jobs):
            del self.machines[next(iter(self.machines))]
        return held

    def add_submitted(self, job_ids: Sequence[str], now: float, amounts: Amounts = ()) -> None:
        """Add jobs that were submitted, for tasks that require these amounts."""
        for job_id in job_ids:
            known = self.tracked.setdefault(job_id, Tracked(job_id, submitted_at=now))
            known.amounts = amounts

    def add_uncertain(self, count: int, now: float) -> None:
        """Add jobs that may have been submitted."""
        self.uncertain, self.uncertain_at = self.uncertain + count, now

    def settle(self, now: float) -> list[str]:
        """Stop waiting for submitted jobs that never appeared in the list, and return them."""
        if now >= self.uncertain_at + SETTLE_S:
            self.uncertain = 0
        late = [known.job_id for known in self.expected if now >= (known.submitted_at or 0.0) + SETTLE_S]
        for job_id in late:
            del self.tracked[job_id]
        return late

    def mark_removed(self, job_ids: Iterable[str], at: float | None) -> None:
        """Record when jobs are removed; None if their removal failed."""
        for known in self._of(job_ids):
            known.removed_at = at

    def mark_drained(self, job_ids: Iterable[str], at: float | None) -> None:
        """Record when the master is asked to let the agents of jobs leave; None if it was not asked."""
        for known in self._of(job_ids):
            known.drained_at = at

    def _of(self, job_ids: Iterable[str]) -> list[Tracked]:
        return [self.tracked[job_id] for job_id in job_ids if job_id in self.tracked]

    def to_drain_again(self, now: float) -> list[str]:
        """The jobs about which their master must be asked again."""
        found = ((known.job_id, known.drained_at) for known in self.tracked.values())
        return [job_id for job_id, at in found if at is not None and now >= at + DRAIN_AGAIN_S]

    # ---- jobs that ended -------------------------------------------------------------------------------------

    @property
    def unexplained(self) -> list[Tracked]:
        """The jobs that have left the list for an unknown reason."""
        return [known for known in self.tracked.values() if known.is_unexplained]

    def explain_no_more(self, kept: int = 0) -> None:
        """Forget the jobs that have left the list for an unknown reason, but the first few."""
        for known in self.unexplained[kept:]:
            del self.tracked[known.job_id]

    def questions(self) -> list[str]:
        """Choose the ended jobs whose outcomes the overseer asks for."""
        self.explain_no_more(QUESTIONS_AT_ONCE)
        return [known.job_id for known in (*self.unexplained, *self.expected[:QUESTIONS_AT_ONCE])]

    def take_answer(self, job_id: str, outcome: Outcome | None) -> Tracked | None:
        """Record how a job ended, if that is known. Return the job if it is known, and the core had asked for it."""
        known = self.tracked.get(job_id)
        if known is None or known.job is not None:
            return None
        known.questions += known.is_unexplained
        if outcome is not None or known.questions >= QUESTIONS_PER_JOB:
            del self.tracked[job_id]
        if outcome is not None and outcome.host:
            self.machines[job_id] = outcome.host
        return known if outcome is not None else None

    # ---- counting --------------------------------------------------------------------------------------------

    @property
    def listed(self) -> dict[str, Job]:
        """The jobs in the last list."""
        return {known.job_id: known.job for known in self.tracked.values() if known.job is not None}

    @property
    def drained(self) -> set[str]:
        """The running jobs whose agents leave after their tasks."""
        return {known.job_id for known in self.tracked.values() if known.drained_at is not None}

    @property
    def expected(self) -> list[Tracked]:
        """Jobs that were submitted and have not been in a list yet. They may have ended."""
        return [known for known in self.tracked.values() if known.submitted_at is not None]

    def live(self, *states: JobState) -> list[Job]:
        """The listed jobs in one of these states, without removed jobs."""
        return [known.job for known in self.tracked.values() if known.job is not None and known.is_live(*states)]

    @property
    def unlisted(self) -> int:
        """How many jobs were submitted, or may have been, and are in no list yet."""
        return len(self.expected) + self.uncertain

    @property
    def occupied(self) -> int:
        """How many places in the queue the jobs take. A removed job counts until the list shows that it leaves."""
        return sum(job.state is not JobState.LEAVING for job in self.listed.values()) + self.unlisted

    @property
    def freeing(self) -> int:
        """How many of these places will be free, because their jobs were removed or are drained."""
        left = (
            known for known in self.tracked.values() if known.removed_at is not None or known.drained_at is not None
        )
        return sum(known.job is not None and known.job.state is not JobState.LEAVING for known in left)

    @property
    def kept(self) -> int:
        """How many of these places will not become free."""
        return self.occupied - self.freeing


CERTAIN_S = 3.0
"""A job counts as idle after the file has shown it as idle for this many seconds. If the job had got work, its master
would have written that in this time."""

UNCONNECTED_S = 600.0
"""A job that has been seen running without a connection for this many seconds no longer counts as being on its way."""

STRANDED_S = 90.0
"""A job that ran before the present master began and has not found it after this many seconds does not find it any
more: its copy of the resource file is that of an earlier master, which had another key. Others find it within seconds,
or when a network file system shows them the new file: after a minute at most."""

ROUNDING_S = 1e-6
"""A period counts as complete when less than this is left."""

FIRST_RETRY_S = 10.0
"""Seconds until a batch system that refused a submission, or a master that did not answer, is asked again."""

LONGEST_RETRY_S = 600.0

UNREAD = ResourceFile("", 0.0, 0.0, "", "", (), MemberKeys("", "", ""), 0, 0, 0, "", ())
"""What is known of a resource file before it is read."""


class Offered(Enum):
    """Jobs whose places others can get, the smallest loss first."""

    USELESS = "held or not connected"
    WAITING = "waiting"
    AT_WORK = "at work"
    """Their agents leave after their tasks."""


def _since(former: float | None, holds: bool, now: float) -> float | None:
    """Since when something holds that held since `former`; None if it does not hold now."""
    return (now if former is None else former) if holds else None


def _requirements(content: ResourceFile) -> set[str]:
    """What the waiting tasks require, without how many they are."""
    return {str(sorted(kind.requires.items())) for kind in content.kinds}


@define(eq=False, repr=False)
class WatchedComputation:
    """One computation: its resource file, its jobs, and what was decided about them."""

    mark: str
    name: str
    """Its name for people."""
    priority: int = 0
    slaves_per_job: int = 1
    content: ResourceFile = UNREAD
    """The content of its resource file when it was last read."""
    age_s: float = math.inf
    """The age of the file then, by the clock of this machine."""
    is_readable: bool = False
    """Whether the last attempt to read the file succeeded."""
    _changed_at: float | None = None
    """When a changed timestamp in the file was last seen; None before the first change."""
    jobs: JobTable = Factory(JobTable)
    failures: Failures = Factory(Failures)
    refusals: Pause = Factory(lambda: Pause(FIRST_RETRY_S, LONGEST_RETRY_S))
    """The pause after the batch system has refused submissions."""
    finished_at: float | None = None
    """When the overseer first saw that it is finished."""
    is_old: bool = False
    """It was finished already when its file was first read: the file may be that of an earlier run."""
    done: bool = False
    """It is finished, and it has no jobs left."""
    listed: bool = False
    """Whether a list of jobs has arrived since it is watched."""
    surplus_since: float | None = None
    """Since when more jobs wait than are needed."""
    _master_since: float = -math.inf
    """When this overseer saw the present master first."""
    unfit: dict[Amounts, Pause] = Factory(dict)
    """The pauses after a job has left because nothing that waits could run there, by what it was asked for."""
    silence: Pause = Factory(lambda: Pause(FIRST_RETRY_S, LONGEST_RETRY_S))
    """The pause after its master could not be asked to let agents leave."""

    @property
    def finished(self) -> bool:
        """Whether its file says that it is finished."""
        return self.content.computation_status == FINISHED

    @property
    def has_changed(self) -> bool:
        """Whether its file was written again since it was first read."""
        return self._changed_at is not None

    @property
    def has_just_finished(self) -> bool:
        """Whether its file says that it is finished, and nothing was decided about that yet."""
        return self.finished and self.is_readable and self.finished_at is None

    def ends(self, since: float) -> bool:
        """Whether it has finished since a moment, while this overseer watched it, and still has jobs."""
        return self.finished_at is not None and self.finished_at >= since and not self.done and not self.is_old

    def take_file(self, content: ResourceFile, age_s: float, now: float) -> bool:
        """Record the content of its resource file. Return whether another master has written it.

        Then what was learned about its jobs may be wrong now.
        """
        last, self.content, self.age_s, self.is_readable = self.content, content, age_s, True
        is_first = not last.generation
        if not is_first and content.timestamp != last.timestamp:
            self._changed_at = now
        self.is_old = self.finished and (is_first or self.is_old)
        has_other_master = not is_first and content.generation != last.generation
        if is_first or has_other_master:
            self._master_since = now
        if has_other_master or _requirements(content) != _requirements(last):
            self.unfit.clear()
        if has_other_master:
            self.failures = Failures()
            for known in self.jobs.tracked.values():
                known.unconnected_since, known.is_unconnected = None, False
        if not self.finished:
            self.finished_at, self.done = None, False
        self.note_excluded()
        return has_other_master

    def is_current(self, now: float) -> bool:
        """Whether decisions can use the file: it is readable, not finished, and its master still writes it."""
        return self.is_readable and not self.finished and not self.is_stale(now)

    def is_stale(self, now: float) -> bool:
        """Whether the master has missed updates. After a change was seen, differences of clocks do not matter."""
        age_s = self.age_s if self._changed_at is None else now - self._changed_at
        return is_stale(age_s, self.content.update_interval)

    def note_excluded(self) -> None:
        """Record the names that the batch system has for the machines that the master has excluded.

        The master knows a machine by the name that the machine gives itself. The jobs that were there show the other.
        """
        machines = self.jobs.machines
        job_ids = dict.fromkeys(job_id for jobs in self.content.excluded_hosts.values() for job_id in jobs)
        named = {job_id: machines.pop(job_id) for job_id in job_ids if job_id in machines}
        machines |= named  # as the newest, which are forgotten last
        self.failures.excluded = [*dict.fromkeys(named.values())]

    def note_idleness(self, now: float) -> None:
        """Record since when jobs have been idle or unconnected, and since when more jobs wait than are needed."""
        master_s = now - self._master_since
        first = now if self._changed_at is not None else now - max(0.0, self.age_s)  # so old is what the file says
        for known in self.jobs.tracked.values():
            runs, busy = known.is_live(JobState.RUNNING), self.content.connected_jobs.get(known.job_id)
            known.idle_since = _since(known.idle_since, runs and busy == 0, first)
            since = known.unconnected_since = _since(known.unconnected_since, runs and busy is None, now)
            is_old = known.job is not None and STRANDED_S <= master_s < known.job.running_s - CERTAIN_S
            known.is_unconnected = since is not None and (is_old or now >= since + UNCONNECTED_S - ROUNDING_S)
        self.surplus_since = _since(self.surplus_since, self.missing < 0 and bool(self.waiting()), now)

    def idle(self, patience_s: float, now: float) -> list[Job]:
        """The jobs that have certainly been idle for this time."""
        latest, tracked = now - max(patience_s, CERTAIN_S) + ROUNDING_S, self.jobs.tracked
        found = [(job, tracked[job.job_id].idle_since) for job in self.jobs.live(JobState.RUNNING)]
        return [job for job, since in found if since is not None and since <= latest]

    def waiting(self) -> list[Job]:
        """The jobs that wait in the queue, without evicted jobs that the master still believes to be connected."""
        return [job for job in self.jobs.live(JobState.QUEUED) if job.job_id not in self.content.connected_jobs]

    def unconnected(self) -> list[Job]:
        """The jobs that run, and probably never connect."""
        tracked, connected = self.jobs.tracked, self.content.connected_jobs
        running = [job for job in self.jobs.live(JobState.RUNNING) if job.job_id not in connected]
        return [job for job in running if tracked[job.job_id].is_unconnected]

    def offers(self, kind: Offered, now: float) -> list[Job]:
        """The jobs of a kind whose places it can give. The last one is the smallest loss."""
        if kind is Offered.USELESS:
            return [*self.unconnected(), *self.jobs.live(JobState.HELD)]
        return self.waiting() if kind is Offered.WAITING else self.drainable(now)

    def drainable(self, now: float) -> list[Job]:
        """The jobs whose agents its master can let leave. The last one is the smallest loss: it idles, or is young."""
        if now < self.silence.until:
            return []
        connected = self.content.connected_jobs
        stay = connected.keys() - self.jobs.drained
        able = [job for job in self.jobs.live(JobState.RUNNING) if job.job_id in stay]
        return sorted(able, key=lambda job: (connected[job.job_id] == 0, -job.running_s))

    @property
    def coming(self) -> Counter[Amounts]:
        """How many of its jobs are on their way to the master, by what they were asked for."""
        gone = {*self.content.connected_jobs, *self.jobs.drained, *(job.job_id for job in self.unconnected())}
        live = self.jobs.live(JobState.QUEUED, JobState.RUNNING)
        coming = [self.jobs.tracked[job.job_id] for job in live if job.job_id not in gone]
        found = Counter(known.amounts for known in (*coming, *self.jobs.expected))
        found[()] += self.jobs.uncertain
        return found

    @property
    def unproven(self) -> int:
        """How many of its jobs have not yet shown that they work well."""
        young = [job for job in self.jobs.live(JobState.QUEUED, JobState.RUNNING) if job.running_s < YOUNG_S]
        return len(young) + self.jobs.unlisted

    @property
    def shortages(self) -> dict[Amounts, int]:
        """How many more jobs are needed, by what they must be asked for; negative if more are coming than needed."""
        kinds = Counter[Amounts]()
        for kind in self.content.kinds:
            kinds[kind.amounts] += kind.slaves_needed
        kinds[()] += max(0, self.content.slaves_needed - kinds.total())
        coming = self.coming
        return {each: -(-kinds[each] // self.slaves_per_job) - coming[each] for each in (*kinds, *(coming - kinds))}

    def note_unfit(self, amounts: Amounts, now: float) -> float:
        """A job that was asked for this has left, because nothing that waits could run there. Return for how long no
        other of its kind is submitted, in seconds."""
        pause = self.unfit.setdefault(amounts, Pause(FIRST_PAUSE_S, LONGEST_PAUSE_S))
        if now >= pause.until:
            pause.begin(now)
        return pause.until - now

    def wanted(self, now: float) -> dict[Amounts, int]:
        """How many jobs to submit, by what they must be asked for."""
        unfit = [each for each, pause in self.unfit.items() if now < pause.until]
        return {each: count for each, count in self.shortages.items() if count > 0 and each not in unfit}

    @property
    def missing(self) -> int:
        """How many more jobs are needed; negative if more are coming than are needed."""
        shortages = self.shortages.values()
        return sum(max(0, each) for each in shortages) or sum(shortages)
