"""Processes on this machine as jobs. There is no queue, so each job starts at once.

A job is a folder of this user, which outlives the overseer. A shell stays with the agent and writes the agent's exit
code into the folder. Both inherit a descriptor that holds a lock on a file in this folder. So a job is alive as long as
its lock is held, even if the process that started it is gone. A process number that is used again causes no mistake.
While the lock is held, the shell's process group exists, so it is safe to send it signals.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

from attrs import Factory, define

from mwpy._batch import BatchUnavailable, Launch, end_of
from mwpy._system import clock, process
from mwpy._values.errors import returncode_of_shell
from mwpy._values.jobs import End, Job, JobState, Outcome
from mwpy._values.options import JOB_VARIABLE

KILL_S = 20.0
"""Seconds from the removal of a job until it is killed: more than its grace period, which is 5 s by default."""

KEEP_S = 86400.0
"""The folder of an ended job is kept for this many seconds."""

# $0 is the job's folder. The trap keeps the shell alive for the exit code when its whole group gets SIGTERM.
SCRIPT = 'trap : TERM INT; echo $$ >"$0/pid"; "$@"; echo $? >"$0/exit.new"; mv "$0/exit.new" "$0/exit"'


@define(eq=False, repr=False)
class Local:
    """This machine.

    Args:
        folder: the parent of the jobs' folders; it is made if it is missing.
    """

    _folder: Path
    _children: list[process.Child] = Factory(list)

    def submit(self, launch: Launch, count: int) -> list[str]:
        """Start jobs."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._forget_old()
            command = launch.agent_command(launch.resource_path)
            return [self.start(command, launch.mark, launch.log_dir) for _ in range(count)]
        except OSError as error:
            raise BatchUnavailable(
                f"a process cannot be started here: {error}; make {self._folder} and {launch.log_dir} writable"
            ) from error

    def start(self, command: Sequence[str], mark: str, log_dir: str) -> str:
        """Start a process as a job, and return its id.

        Raises:
            OSError: it cannot be started, or a folder cannot be written.
        """
        job = Path(tempfile.mkdtemp(prefix="job-", dir=self._folder))
        logs = os.path.join(log_dir, f"{mark}.{job.name}")
        (job / "about").write_text(json.dumps({"mark": mark, "stderr": f"{logs}.err"}), encoding="utf-8")
        with (job / "lock").open("w") as lock, open(f"{logs}.out", "wb") as out, open(f"{logs}.err", "wb") as err:
            fcntl.flock(lock, fcntl.LOCK_EX)
            child = process.start(
                ["/bin/sh", "-c", SCRIPT, str(job), *command],
                environment={JOB_VARIABLE: job.name},
                pass_fds=[lock.fileno()],
                output=(out, err),
                detached=True,
            )
        self._children.append(child)
        return job.name

    def free_places(self, slaves: int) -> None:
        """Jobs are always taken."""

    def jobs(self) -> list[Job]:
        """The jobs that are alive."""
        self._children = [child for child in self._children if child.poll() is None]
        try:
            folders = sorted(self._folder.iterdir()) if self._folder.exists() else []
        except OSError as error:
            raise BatchUnavailable(f"{self._folder} cannot be read: {error}") from error
        return [_job(folder) for folder in folders if _is_alive(folder)]

    def remove(self, job_ids: Sequence[str]) -> None:
        """Send SIGTERM to jobs. A later call of `jobs` kills those that ignore it."""
        for job_id in job_ids:
            folder = self._folder / job_id
            if _is_alive(folder):
                (folder / "removed").touch()
                _signal(folder, signal.SIGTERM)

    def outcome(self, job_id: str) -> Outcome | None:
        """How a job ended."""
        folder = self._folder / job_id
        if not (folder / "about").exists() or _is_alive(folder):
            return None
        stderr = end_of(_about(folder)[1])
        if (folder / "removed").exists():
            return Outcome(End.REMOVED, "removed", None, 0.0, stderr)
        try:
            code = int((folder / "exit").read_text())
        except (OSError, ValueError):
            return Outcome.of_vanished(0.0, stderr)
        ran_s = max(0.0, (folder / "exit").stat().st_mtime - (folder / "about").stat().st_mtime)
        return Outcome.of_process(returncode_of_shell(code), ran_s, stderr)

    def _forget_old(self) -> None:
        for folder in self._folder.iterdir():
            if clock.wall() > folder.stat().st_mtime + KEEP_S and not _is_alive(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_alive(folder: Path) -> bool:
    try:
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _about(folder: Path) -> tuple[str, str]:
    """The mark of a job, and the path of its standard error. Both are empty if a full disk has damaged the file."""
    try:
        about = json.loads((folder / "about").read_bytes())
        return str(about["mark"]), str(about["stderr"])
    except (ValueError, KeyError, TypeError):
        return "", ""


def _job(folder: Path) -> Job:
    mark, _ = _about(folder)
    removed = folder / "removed"
    if removed.exists():
        if clock.wall() > removed.stat().st_mtime + KILL_S:
            _signal(folder, signal.SIGKILL)
        return Job(folder.name, mark, JobState.LEAVING)
    return Job(folder.name, mark, JobState.RUNNING, clock.wall() - (folder / "about").stat().st_mtime)


def _signal(folder: Path, number: signal.Signals) -> None:
    """Send a signal to the process group of a living job. A job that has just begun or ended gets none."""
    try:
        os.killpg(int((folder / "pid").read_text()), number)
    except (OSError, ValueError):
        pass
