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

from attrs import Factory, define
from msgspec import Struct

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
            self.pause.until = now + FIRST_PAUSE_S
            return FIRST_PAUSE_S
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


class _Submission(Struct, eq=False):
    at: float
    entered: bool = False
    """Whether one of its jobs was in a list, or is known to have ended. Then the others were in the queue, too."""


@define(eq=False, repr=False)
class JobTable:
    """The jobs of one computation."""

    listed: Mapping[str, Job] = Factory(dict)
    """The jobs in the last list."""
    machines: dict[str, str] = Factory(dict)
    """The machines of the last jobs, also of those that have ended."""
    amounts: dict[str, Amounts] = Factory(dict)
    """What jobs that were submitted were asked for, if their tasks require something."""
    _expected: dict[str, _Submission] = Factory(dict)
    """Jobs that were submitted and have not been in a list yet. They may have ended."""
    _uncertain: int = 0
    """How many jobs may exist because an attempt to submit them ended without an answer."""
    _uncertain_at: float = 0.0
    _removed: dict[str, float] = Factory(dict)
    """Listed jobs that were removed, and when."""
    drained: dict[str, float] = Factory(dict)
    """Running jobs whose agents leave after their tasks, and when their master was last asked for this."""
    unexplained: dict[str, int] = Factory(dict)
    """Jobs that left the list for an unknown reason, and how often the batch system was asked for the reason."""

    # ---- what happens ----------------------------------------------------------------------------------------

    def take_list(self, jobs: Mapping[str, Job], now: float) -> list[Job]:
        """Record the list of the computation's jobs. Return the jobs that are held and were not held before."""
        before, self.listed = self.listed, jobs
        new = [job_id for job_id in jobs if job_id not in before]
        self._uncertain = max(0, self._uncertain - sum(job_id not in self._expected for job_id in new))
        for job_id in new:
            self._enter(job_id)
        for job_id, job in before.items():
            if job_id not in jobs and job.state is not JobState.LEAVING and job_id not in self._removed:
                self.unexplained[job_id] = 0
        self._removed = {
            job_id: since
            for job_id, since in self._removed.items()
            if job_id in jobs and (jobs[job_id].state is JobState.LEAVING or now < since + REMOVE_AGAIN_S)
        }
        self.drained = {
            job_id: since
            for job_id, since in self.drained.items()
            if job_id in jobs and jobs[job_id].state is JobState.RUNNING
        }
        kept = {*jobs, *self._expected, *self.unexplained}
        self.amounts = {job: has for job, has in self.amounts.items() if job in kept}
        self.machines |= {job_id: job.host for job_id, job in jobs.items() if job.host}
        while len(self.machines) > JOBS_REMEMBERED + len(jobs):
            del self.machines[next(iter(self.machines))]
        held = [job for job in jobs.values() if job.state is JobState.HELD]
        return [job for job in held if (old := before.get(job.job_id)) is None or old.state is not JobState.HELD]

    def _enter(self, job_id: str) -> None:
        """Record that a job is or was in the queue, and that nothing more must be asked about it."""
        if (submission := self._expected.pop(job_id, None)) is not None:
            submission.entered = True
        self.unexplained.pop(job_id, None)

    def add_submitted(self, job_ids: Sequence[str], now: float, amounts: Amounts = ()) -> None:
        """Add jobs that were submitted, for tasks that require these amounts."""
        submission = _Submission(now)
        self.amounts |= dict.fromkeys(job_ids if amounts else (), amounts)
        self._expected.update((job_id, submission) for job_id in job_ids if job_id not in self.listed)

    def add_uncertain(self, count: int, now: float) -> None:
        """Add jobs that may have been submitted."""
        self._uncertain, self._uncertain_at = self._uncertain + count, now

    def settle(self, now: float) -> list[str]:
        """Stop waiting for submitted jobs that never appeared in the list. Return those that never were in the queue.

        The other jobs of their submissions were not there either.
        """
        if now >= self._uncertain_at + SETTLE_S:
            self._uncertain = 0
        late = {job_id: its for job_id, its in self._expected.items() if now >= its.at + SETTLE_S}
        for job_id in late:
            del self._expected[job_id]
        return [job_id for job_id, submission in late.items() if not submission.entered]

    def mark_removed(self, job_ids: Iterable[str], now: float) -> None:
        """Record that these jobs are removed now."""
        self._removed.update(dict.fromkeys(job_ids, now))

    def unmark_removed(self, job_ids: Sequence[str]) -> None:
        """Record that the removal of these jobs failed."""
        self._removed = {job: since for job, since in self._removed.items() if job not in job_ids}

    def mark_drained(self, job_ids: Iterable[str], now: float) -> None:
        """Record that the master is asked now to let the agents of these jobs leave."""
        self.drained.update(dict.fromkeys(job_ids, now))

    def unmark_drained(self, job_ids: Sequence[str]) -> None:
        """Record that the master was not asked."""
        self.drained = {job: since for job, since in self.drained.items() if job not in job_ids}

    def to_drain_again(self, now: float) -> list[str]:
        """The jobs about which their master must be asked again."""
        return [job_id for job_id, since in self.drained.items() if now >= since + DRAIN_AGAIN_S]

    # ---- jobs that ended -------------------------------------------------------------------------------------

    def questions(self) -> list[str]:
        """Choose the ended jobs whose outcomes the overseer asks for."""
        asked = list(self.unexplained)[:QUESTIONS_AT_ONCE]
        self.unexplained = {job_id: self.unexplained[job_id] for job_id in asked}
        return [*asked, *list(self._expected)[:QUESTIONS_AT_ONCE]]

    def take_answer(self, job_id: str, outcome: Outcome | None) -> bool:
        """Record how a job ended, if that is known. Return whether it is known, and the core had asked for it."""
        if job_id not in self.unexplained and job_id not in self._expected:
            return False
        if outcome is not None:
            self._enter(job_id)
            if outcome.host:
                self.machines[job_id] = outcome.host
        elif job_id in self.unexplained:
            self.unexplained[job_id] += 1
            if self.unexplained[job_id] >= QUESTIONS_PER_JOB:
                del self.unexplained[job_id]
        return outcome is not None

    # ---- counting --------------------------------------------------------------------------------------------

    def live(self, *states: JobState) -> list[Job]:
        """The listed jobs in one of these states, without removed jobs."""
        return [job for job in self.listed.values() if job.state in states and job.job_id not in self._removed]

    def coming(self, connected: Iterable[str]) -> Counter[Amounts]:
        """How many jobs are on their way to the master, by what they were asked for.

        Args:
            connected: the jobs that are not on their way any more.
        """
        arrived = {*connected, *self.drained}
        live = [job.job_id for job in self.live(JobState.QUEUED, JobState.RUNNING) if job.job_id not in arrived]
        found = Counter(self.amounts.get(job_id, ()) for job_id in (*live, *self._expected))
        found[()] += self._uncertain
        return found

    @property
    def unlisted(self) -> int:
        """How many jobs were submitted, or may have been, and are in no list yet."""
        return len(self._expected) + self._uncertain

    @property
    def occupied(self) -> int:
        """How many places in the queue the jobs take. A removed job counts until the list shows that it leaves."""
        return sum(job.state is not JobState.LEAVING for job in self.listed.values()) + self.unlisted

    @property
    def freeing(self) -> int:
        """How many of these places will be free, because their jobs were removed or are drained."""
        return sum(self.listed[job_id].state is not JobState.LEAVING for job_id in self._removed | self.drained)

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
    _idle_since: dict[str, float] = Factory(dict)
    """Connected jobs without work, and since when."""
    _unconnected_since: dict[str, float] = Factory(dict)
    """Running jobs that are not connected to the present master, and since when."""
    _unconnected: list[str] = Factory(list)
    """Those of them that probably never connect."""
    stranded: list[str] = Factory(list)
    """Those of them that ran for an earlier master."""
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
            self._unconnected_since, self._unconnected, self.stranded = {}, [], []
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
        connected = self.content.connected_jobs
        running = {job.job_id: job.running_s for job in self.jobs.live(JobState.RUNNING)}
        since = self._unconnected_since
        since = {job_id: since.get(job_id, now) for job_id in running if job_id not in connected}
        latest, master_s = now - UNCONNECTED_S + ROUNDING_S, now - self._master_since
        self.stranded = [each for each in since if STRANDED_S <= master_s < running[each] - CERTAIN_S]
        self._unconnected_since = since
        self._unconnected = [each for each in since if since[each] <= latest or each in self.stranded]
        first = now if self._changed_at is not None else now - max(0.0, self.age_s)  # so old is what the file says
        idle = self._idle_since
        self._idle_since = {job_id: idle.get(job_id, first) for job_id in running if connected.get(job_id) == 0}
        has_surplus = self.missing < 0 and bool(self.waiting())
        self.surplus_since = (now if self.surplus_since is None else self.surplus_since) if has_surplus else None

    def idle(self, patience_s: float, now: float) -> list[Job]:
        """The jobs that have certainly been idle for this time."""
        least_s = max(patience_s, CERTAIN_S) - ROUNDING_S
        running, since = self.jobs.live(JobState.RUNNING), self._idle_since
        return [job for job in running if now >= since.get(job.job_id, math.inf) + least_s]

    def waiting(self) -> list[Job]:
        """The jobs that wait in the queue, without evicted jobs that the master still believes to be connected."""
        return [job for job in self.jobs.live(JobState.QUEUED) if job.job_id not in self.content.connected_jobs]

    def unconnected(self) -> list[Job]:
        """The jobs that have run for a long time without connecting."""
        outside = [job_id for job_id in self._unconnected if job_id not in self.content.connected_jobs]
        return [job for job in self.jobs.live(JobState.RUNNING) if job.job_id in outside]

    def drainable(self, now: float) -> list[Job]:
        """The jobs whose agents its master can let leave. The last one is the smallest loss: it idles, or is young."""
        if now < self.silence.until:
            return []
        connected, idle = self.content.connected_jobs, self._idle_since
        stay = [job for job in self.jobs.live(JobState.RUNNING) if job.job_id not in self.jobs.drained]
        able = [job for job in stay if job.job_id in connected]
        return sorted(able, key=lambda job: (job.job_id in idle, -job.running_s))

    @property
    def coming(self) -> Counter[Amounts]:
        """How many of its jobs are on their way to the master, by what they were asked for."""
        return self.jobs.coming({*self.content.connected_jobs, *(job.job_id for job in self.unconnected())})

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

    def note_unfit(self, job_id: str, now: float) -> float:
        """A job has left, because nothing that waits could run there. Return for how long no other of its kind is
        submitted, in seconds."""
        pause = self.unfit.setdefault(self.jobs.amounts.get(job_id, ()), Pause(FIRST_PAUSE_S, LONGEST_PAUSE_S))
        if now >= pause.until:
            pause.begin(now)
        return pause.until - now

    def is_unfit(self, amounts: Amounts, now: float) -> bool:
        """Whether a job that was asked for this has left, because nothing that waits could run there."""
        return amounts in self.unfit and now < self.unfit[amounts].until

    def wanted(self, now: float) -> dict[Amounts, int]:
        """How many jobs to submit, by what they must be asked for."""
        return {each: count for each, count in self.shortages.items() if count > 0 and not self.is_unfit(each, now)}

    @property
    def missing(self) -> int:
        """How many more jobs are needed; negative if more are coming than are needed."""
        shortages = self.shortages.values()
        return sum(max(0, each) for each in shortages) or sum(shortages)
