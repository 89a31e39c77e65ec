"""Jobs of a batch system, as an overseer sees them; each job is one agent."""

from __future__ import annotations

from enum import Enum

from attrs import frozen

__all__ = ["Job", "JobState", "Outcome"]


class JobState(Enum):
    """Where a job stands in its queue."""

    QUEUED = "queued"
    RUNNING = "running"
    HELD = "held"
    """It waits for somebody to release it."""
    LEAVING = "leaving"
    """It was removed and is not gone yet; it can neither be counted nor removed again."""


@frozen
class Job:
    """A job in the queue."""

    job_id: str
    """As the batch system writes it (`17.3`, `42_5`); an agent tells its master the same, read from `MWPY_JOB`."""
    mark: str
    """Of the computation that it was submitted for; see `Launch`."""
    state: JobState
    running_s: float = 0.0
    """Seconds since it started, if it runs."""
    note: str = ""
    """Why it is held, or why it cannot start, in the batch system's words."""


@frozen
class Outcome:
    """What became of a job that is in the queue no more."""

    ended: str
    """`exit code 4`, `killed by SIGKILL (9)`, or what else the batch system says. What begins with `killed by` was
    nobody's wish and counts as a failure; a job that was removed, cancelled or evicted is told in other words."""
    exit_code: int | None
    """None if it did not exit by itself, or if that is not to be had."""
    ran_s: float
    """Seconds from its last start to its end; 0 if it never started."""
    stderr: str
    """The end of what it wrote to standard error; empty if that is not to be had."""
