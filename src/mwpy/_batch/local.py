"""Processes on this machine as jobs; see `_host.py`. There is no queue, so each job starts at once."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import Factory, define

from mwpy._batch import BatchUnavailable, Launch, _host
from mwpy._values.errors import returncode_of_shell
from mwpy._values.jobs import End, Job, JobState, Outcome

Reports = dict[str, dict[str, Any]]
"""What `_host.look` reports, by job."""


@define(eq=False, repr=False)
class Local:
    """This machine.

    Args:
        folder: the parent of the jobs' folders; it is made if it is missing.
    """

    _folder: Path
    _children: list[int] = Factory(list)
    """The shells that this process has started."""

    def submit(self, launch: Launch, count: int) -> list[str]:
        """Start jobs."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _host.forget_old(str(self._folder))
            command = launch.agent_command(launch.resource_path)
            return [self.start(command, launch.mark, launch.log_dir) for _ in range(count)]
        except OSError as error:
            raise BatchUnavailable(
                f"a process cannot be started here: {error}; make {self._folder} and {launch.log_dir} writable"
            ) from error

    def start(self, command: list[str], mark: str, log_dir: str) -> str:
        """Start a process as a job, and return its id.

        Raises:
            OSError: it cannot be started, or a folder cannot be written.
        """
        job = f"job-{secrets.token_hex(6)}"
        about = {"mark": mark, "slaves": 1}
        self._children.append(_host.start(str(self._folder / job), command, about, f"{log_dir}/{mark}.{job}."))
        return job

    def free_places(self, slaves: int) -> None:
        """Jobs are always taken."""

    def jobs(self) -> list[Job]:
        """The jobs that are alive."""
        return [job_of(job_id, report) for job_id, report in self._look()[0].items()]

    def remove(self, job_ids: Sequence[str]) -> None:
        """Send SIGTERM to jobs. A later call of `jobs` kills those that ignore it."""
        self._look(to_stop=job_ids)

    def outcome(self, job_id: str) -> Outcome | None:
        """How a job ended."""
        _, ended = self._look(known=[job_id])
        return outcome_of(ended[job_id]) if job_id in ended else None

    def _look(self, to_stop: Sequence[str] = (), known: Sequence[str] = ()) -> tuple[Reports, Reports]:
        for child in [*self._children]:
            with suppress(ChildProcessError):  # it had ended when it was started
                if os.waitpid(child, os.WNOHANG) == (0, 0):
                    continue
            self._children.remove(child)
        try:
            return _host.look(str(self._folder), to_stop, known) if self._folder.exists() else ({}, {})
        except OSError as error:
            raise BatchUnavailable(f"{self._folder} cannot be read: {error}") from error


def job_of(job_id: str, report: Mapping[str, Any], host: str = "") -> Job:
    """A job that a machine has reported."""
    state = JobState.LEAVING if report["leaving"] else JobState.RUNNING
    running_s = 0.0 if report["leaving"] else report["running_s"]
    return Job(job_id, report.get("mark", ""), state, running_s, host=host, slaves=report.get("slaves", 1))


def outcome_of(report: Mapping[str, Any], host: str = "") -> Outcome:
    """The end of a job that a machine has reported."""
    code, ran_s, stderr = report["code"], max(0.0, report["ran_s"]), report["stderr"]
    if report["removed"]:
        return Outcome(End.REMOVED, "removed", None, ran_s, stderr, host)
    if code is None:
        return Outcome(End.LOST, "its processes are gone without an exit code", None, ran_s, stderr, host)
    return Outcome.of_process(returncode_of_shell(code), ran_s, stderr, host)
