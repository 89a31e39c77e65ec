"""What an overseer asks of a batch system, and what each of the modules here answers.

A batch system keeps a queue of jobs; each job is one agent. The overseer marks the jobs that it submits, and finds them
again by that mark and never by memory: after its own restart, the jobs that it submitted before are in the list as
all others. A job that ended is not run again by the batch system, unless it was evicted: the overseer decides whether
there is to be another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from attrs import frozen

from mwpy._values.errors import ExitCode, MwpyError
from mwpy._values.jobs import Job, JobState, Outcome

__all__ = ["Batch", "BatchUnavailable", "Job", "JobState", "Launch", "Outcome"]


class BatchUnavailable(MwpyError):
    """The batch system cannot be asked now, or will not: what it said, and what to do.

    Mostly nothing was changed; but where an answer was lost it may have been.
    """

    exit_code = ExitCode.UNREACHABLE


@frozen
class Launch:
    """What is submitted for one computation."""

    mark: str
    """Letters, digits and hyphens, the same in every life of the overseer: what makes its jobs its own."""
    resource_path: str
    """The resource file, absolute."""
    command: tuple[str, ...]
    """The agent's program and arguments, `--mw-slave` among them, without the resource file; see `agent_command`."""
    slaves: int
    """How many slave processes a job has, and so the processor cores it asks for."""
    log_dir: str
    """Where its output and error files go, absolute; it exists."""
    extra: tuple[str, ...] = ()
    """Lines that the user adds to each submission, in the batch system's own language."""

    def agent_command(self, resource_path: str) -> list[str]:
        """The agent's command line, with the resource file under the path that it has where the agent runs."""
        role = self.command.index("--mw-slave") + 1  # before the application's own arguments, and a `--` among them
        return [*self.command[:role], "--mw-resource-file", resource_path, *self.command[role:]]


class Batch(Protocol):
    """One batch system. Calls block, for seconds if need be, and may come from any one thread."""

    def submit(self, launch: Launch, count: int) -> list[str]:
        """Put `count` jobs into the queue, all or none. They start in the directory of this process.

        Returns:
            Their ids. One that ends before the next look at the queue is in no list, and yet asked for by `outcome`.

        Raises:
            BatchUnavailable: it will not.
        """

    def jobs(self) -> list[Job]:
        """All jobs of this user that carry a mark of mwpy, whoever submitted them.

        Raises:
            BatchUnavailable: it does not answer. It never answers with a part of them.
        """

    def remove(self, job_ids: Sequence[str]) -> None:
        """Take jobs out of the queue; those that run get SIGTERM. One that is gone meanwhile is no error.

        Raises:
            BatchUnavailable: it will not.
        """

    def outcome(self, job_id: str) -> Outcome | None:
        """What became of a job that was in the queue and is no more; None if nothing is known (yet)."""
