"""The jobs of one computation: those in the list of the batch system, and those that should be there.

Between a submission and the next list, only this table knows the submitted jobs. It also counts jobs that an attempt to
submit may have created although its answer was lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from mwpy._values.jobs import Job, JobState

__all__ = ["JobTable"]

SETTLE_S = 30.0
"""Within this many seconds a submitted job appears in the list. The slowest batch systems answer from a cache."""

REMOVE_AGAIN_S = 60.0
"""After this many seconds, a removed job that is still in the list is removed again."""

QUESTIONS_PER_JOB = 3
"""How often the batch system is asked how a job ended."""

QUESTIONS_AT_ONCE = 5
"""If many jobs vanish at the same time, the overseer asks about this many. The first few show what happened to all."""


class _Submission(Struct, eq=False):
    at: float
    entered: bool = False
    """Whether one of its jobs was in a list, or is known to have ended. Then the others were in the queue, too."""


class JobTable(Struct, eq=False):
    """The jobs of one computation."""

    listed: Mapping[str, Job] = field(default_factory=dict)
    """The jobs in the last list."""
    _expected: dict[str, _Submission] = field(default_factory=dict)
    """Jobs that were submitted and have not been in a list yet. They may have ended."""
    _unasked: list[str] = field(default_factory=list)
    """Those of them that were not asked for since the last list."""
    _uncertain: int = 0
    """How many jobs may exist because an attempt to submit them ended without an answer."""
    _uncertain_at: float = 0.0
    _removed: dict[str, float] = field(default_factory=dict)
    """Listed jobs that were removed, and when."""
    _unexplained: dict[str, int] = field(default_factory=dict)
    """Jobs that left the list for an unknown reason, and how often the batch system was asked for the reason."""

    # ---- what happens ----------------------------------------------------------------------------------------

    def take_list(self, jobs: Mapping[str, Job], now: float) -> list[Job]:
        """Record the list of the computation's jobs. Return the jobs that are held and were not held before."""
        before, self.listed = self.listed, jobs
        new = [job_id for job_id in jobs if job_id not in before]
        self._uncertain = max(0, self._uncertain - sum(job_id not in self._expected for job_id in new))
        for job_id in new:
            if (submission := self._expected.pop(job_id, None)) is not None:
                submission.entered = True
            self._unexplained.pop(job_id, None)
        for job_id, job in before.items():
            if job_id not in jobs and job.state is not JobState.LEAVING and job_id not in self._removed:
                self._unexplained[job_id] = 0
        self._removed = {
            job_id: since
            for job_id, since in self._removed.items()
            if job_id in jobs and (jobs[job_id].state is JobState.LEAVING or now < since + REMOVE_AGAIN_S)
        }
        held = [job for job in jobs.values() if job.state is JobState.HELD]
        return [job for job in held if (old := before.get(job.job_id)) is None or old.state is not JobState.HELD]

    def add_submitted(self, job_ids: Sequence[str], now: float) -> None:
        """Add jobs that were submitted."""
        submission = _Submission(now)
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

    # ---- jobs that ended -------------------------------------------------------------------------------------

    def questions(self) -> list[str]:
        """Choose the ended jobs whose outcomes the overseer asks for."""
        asked = list(self._unexplained)[:QUESTIONS_AT_ONCE]
        self._unexplained = {job_id: self._unexplained[job_id] for job_id in asked}
        expected = list(self._expected)
        self._unasked = expected[QUESTIONS_AT_ONCE:]
        return [*asked, *expected[:QUESTIONS_AT_ONCE]]

    def next_question(self) -> list[str]:
        """Choose one more submitted job that is in no list; none if the overseer has asked for all."""
        asked, self._unasked = self._unasked[:1], self._unasked[1:]
        return asked

    def take_answer(self, job_id: str, *, ended: bool) -> bool:
        """Record whether the outcome of a job is known. Return whether the core had asked for it."""
        if job_id not in self._unexplained and job_id not in self._expected:
            return False
        if ended:
            if (submission := self._expected.pop(job_id, None)) is not None:
                submission.entered = True
            self._unexplained.pop(job_id, None)
        elif job_id in self._unexplained:
            self._unexplained[job_id] += 1
            if self._unexplained[job_id] >= QUESTIONS_PER_JOB:
                del self._unexplained[job_id]
        return True

    def stop_asking(self) -> None:
        """Stop asking how jobs ended."""
        self._unexplained.clear()

    @property
    def unexplained(self) -> bool:
        """Whether the overseer still asks for the outcome of some job."""
        return bool(self._unexplained)

    # ---- counting --------------------------------------------------------------------------------------------

    def is_removed(self, job_id: str) -> bool:
        """Whether a job was removed and is still in the list."""
        return job_id in self._removed

    def live(self, *states: JobState) -> list[Job]:
        """The listed jobs in one of these states, without removed jobs."""
        return [job for job in self.listed.values() if job.state in states and job.job_id not in self._removed]

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
        """How many of these places will soon be free, because their jobs were removed."""
        return sum(self.listed[job_id].state is not JobState.LEAVING for job_id in self._removed)

    def check(self) -> None:
        """Compare the stored facts about jobs with the list.

        Raises:
            AssertionError: they contradict each other.
        """
        assert not [job_id for job_id in self._expected if job_id in self.listed], "a listed job is still expected"
        assert all(job_id in self.listed for job_id in self._removed), "a removed job is kept after it left the list"
        assert not [job_id for job_id in self._unexplained if job_id in self.listed], "a listed job counts as ended"
        assert self._uncertain >= 0, "the number of uncertain jobs is negative"
