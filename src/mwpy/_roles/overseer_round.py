"""One round of an overseer as an object for scripts: what it found, what it decided, and what it did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from msgspec import Struct, field

from mwpy._batch import JobState
from mwpy._core.overseer.computation import WatchedComputation
from mwpy._core.overseer.events import OverseerActions

__all__ = ["Round"]


class Round(Struct, eq=False):
    """What was decided and done in one round, for all computations."""

    to_remove: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    to_submit: dict[str, int] = field(default_factory=dict)
    """How many jobs to submit, by the mark of the computation."""
    submitted: dict[str, list[str]] = field(default_factory=dict)
    """The jobs that were submitted, by the mark of the computation."""

    def decided(self, actions: OverseerActions) -> None:
        """Add decisions."""
        self.to_remove += actions.remove
        self.to_submit.update((submit.mark, submit.count) for submit in actions.submit)

    def of(self, computation: WatchedComputation) -> dict[str, Any]:
        """Return what concerns one computation, by name."""
        file, jobs, mark = computation.file, computation.jobs.listed, computation.mark
        states = Counter(job.state for job in jobs.values())
        return {
            "file": computation.name,
            "mark": mark,
            "readable": file.readable,
            "finished": file.finished,
            "slaves_needed": file.slaves_needed,
            "connected_jobs": len(file.connected),
            "jobs": {state.value: states[state] for state in JobState} if computation.listed else None,
            "to_submit": self.to_submit.get(mark, 0),
            "submitted": self.submitted.get(mark, []),
            "to_remove": _among(self.to_remove, jobs),
            "removed": _among(self.removed, jobs),
        }


def _among(job_ids: Iterable[str], jobs: Iterable[str]) -> list[str]:
    known = {*jobs}
    return [job_id for job_id in job_ids if job_id in known]
