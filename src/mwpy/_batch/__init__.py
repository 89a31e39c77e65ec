"""The interface between an overseer and a batch system. Each module in this package is one batch system.

A batch system keeps a queue of jobs; each job is one agent. The overseer marks the jobs that it submits, and finds them
again only by this mark. So after a restart, an overseer also finds the jobs that it submitted before. The batch system
does not run an ended job again, unless the job was evicted. The overseer decides whether to submit another job.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Protocol

from attrs import frozen

from mwpy._values.errors import ExitCode, MwpyError
from mwpy._values.jobs import Amounts, End, Job, JobState, Outcome
from mwpy._values.requires import CPUS, GPUS

__all__ = ["Batch", "BatchUnavailable", "End", "Job", "JobState", "Launch", "NoFreePlace", "Outcome"]


class BatchUnavailable(MwpyError):
    """The batch system does not answer, or refuses. The message contains its answer, and says what to do.

    Usually nothing was changed. If an answer was lost, something may have been changed.
    """

    exit_code = ExitCode.UNREACHABLE


class NoFreePlace(BatchUnavailable):
    """All places of the batch system are in use now, which is no fault."""


PROLOGUE = f"""\
eval "$0" || {{ code=$?; echo "mwpy: the prologue failed, exit code $code: $0" >&2; exit {ExitCode.PROLOGUE:d}; }}; \
exec "$@\""""
"""Runs a prologue, and then replaces itself by the agent, so that signals reach the agent."""

AGENT_MIB = 128
"""How much memory, and disk space, the agent needs beside the tasks."""


PROLOGUE_WORDS = ("/bin/bash", "-lc", PROLOGUE)

NAME = "mwpy."
"""Comes before the mark in the name of a job."""


def mark_in(name: str) -> str:
    """The mark in the name of a job; empty if it is no job of mwpy."""
    found = re.search(r"(?:^|\.)mwpy\.([^.]+)$", name)
    return found[1] if found else ""


@frozen
class Launch:
    """What is submitted for one computation."""

    mark: str
    """The mark of the computation's jobs: letters, digits and hyphens. A restart of the overseer does not change it."""
    resource_path: str
    """The absolute path of the resource file."""
    command: tuple[str, ...]
    """The agent's program and arguments, with `--mw-slave` and without the resource file; see `agent_command`."""
    slaves: int
    """How many slave processes a job has."""
    log_dir: str
    """The absolute path of the folder for its output and error files. The folder exists.

    The names of these files are MARK, a dot, and the rest. So the overseer can delete old files.
    """
    extra: tuple[str, ...] = ()
    """Lines that the user adds to each submission, in the batch system's own language."""
    avoided: tuple[str, ...] = ()
    """The machines on which the jobs must not run, as `Job.host` names them."""
    prologue: str = ""
    """Lines for a login shell (bash), which run before the agent. If they fail, the job ends."""
    name: str = ""
    """The name of the jobs for people; empty for the batch system's usual one."""
    amounts: Amounts = ()
    """What each slave needs for its tasks. Batch systems without a queue do not look at it."""

    @property
    def cpus(self) -> int:
        """How many processor cores a job asks for."""
        return self.slaves * max(1, dict(self.amounts).get(CPUS, 1))

    @property
    def gpus(self) -> int:
        """How many GPUs a job asks for."""
        return self.slaves * dict(self.amounts).get(GPUS, 0)

    def mib(self, name: str) -> int:
        """How much memory or disk space a job asks for, in MiB; 0 if its tasks do not say what they need."""
        each = dict(self.amounts).get(name, 0)
        return each and -(-each * self.slaves >> 20) + AGENT_MIB

    @property
    def job_name(self) -> str:
        """The name of a job that is found by its name: it ends with the mark."""
        return f"{self.name}.{NAME}{self.mark}" if self.name else f"{NAME}{self.mark}"

    def agent_command(self, resource_path: str) -> list[str]:
        """The command line of a job. `resource_path` is the path of the resource file on the agent's machine."""
        return self.after_prologue(self.bare_command(resource_path))

    def after_prologue(self, command: list[str]) -> list[str]:
        """The command line that runs the prologue, if there is one, and then another command line."""
        return [*PROLOGUE_WORDS, self.prologue, *command] if self.prologue else command

    def bare_command(self, resource_path: str) -> list[str]:
        """The agent's command line, without the prologue."""
        role = self.command.index("--mw-slave") + 1  # the application's own arguments, perhaps with a `--`, come later
        return [*self.command[:role], "--mw-resource-file", resource_path, *self.command[role:]]


class Batch(Protocol):
    """One batch system. A call may block for seconds. Only one thread may call it."""

    def submit(self, launch: Launch, count: int) -> list[str]:
        """Put `count` jobs into the queue: all of them or none. They start in the working directory of this process.

        Without a queue (see `free_places`), only as many jobs as have a place are taken, at least one.

        Returns:
            Their ids. A job that ends before the next call of `jobs` is in no list, but `outcome` knows it.

        Raises:
            BatchUnavailable: the batch system refuses.
        """

    def free_places(self, slaves: int) -> int | None:
        """How many jobs of this many slaves can start now, as the last call of `jobs` found it.

        None if jobs without a free place wait in the queue of the batch system.
        """

    def jobs(self) -> list[Job]:
        """All jobs of this user that have a mark of mwpy, including jobs that another process submitted.

        Raises:
            BatchUnavailable: the batch system does not answer. It never returns only some of the jobs.
        """

    def remove(self, job_ids: Sequence[str]) -> None:
        """Remove jobs from the queue; those that run get SIGTERM. It is no error if a job has ended meanwhile.

        Raises:
            BatchUnavailable: the batch system refuses.
        """

    def outcome(self, job_id: str) -> Outcome | None:
        """The end of a job that has left the queue; None if it is not known, or not known yet."""


END_BYTES = 8192
"""How many bytes of the end of a file are read. They show why a process died."""


def end_of(path: str) -> str:
    """The end of what a process wrote into a file; empty if the file cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - END_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
