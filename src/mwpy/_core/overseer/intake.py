"""Receives what resource files and the batch system say, and decides when the next round is due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from mwpy._core.overseer.complaints import About, Complaints
from mwpy._core.overseer.computation import WatchedComputation
from mwpy._core.overseer.failures import YOUNG_S, explain, is_failure, may_pass
from mwpy._core.overseer.files import Need
from mwpy._core.overseer.state import OverseerState
from mwpy._values.jobs import End, Job, JobState, Outcome
from mwpy._values.phrases import amount, counted, first_of

__all__ = ["Intake"]

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
