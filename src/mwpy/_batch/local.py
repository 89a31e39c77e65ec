"""Processes on this machine as jobs: there is no queue, so each starts at once.

A job is a folder of this user, which outlives the overseer. A shell stays with the agent and writes the agent's exit
code there. Both hold a lock on a file in it, through a file that they inherited: so a job lives as long as its lock is
held, whoever started it and whatever killed whom, and no process number is ever mistaken for another's. While the lock
is held the shell's process group is in use, and can be sent signals safely.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from mwpy._batch import BatchUnavailable, Job, JobState, Launch, Outcome
from mwpy._batch._command import end_of

__all__ = ["Local"]

KILL_S = 20.0
"""Seconds after its removal that a job is killed: more than its grace period, which is 5 s if nobody says otherwise."""

KEEP_S = 86400.0
"""Seconds for which is kept what became of a job."""

# $0 is the job's folder. The trap keeps the shell for the exit code when all of its group is told to go.
SCRIPT = 'trap : TERM INT; echo $$ >"$0/pid"; "$@"; echo $? >"$0/exit.new"; mv "$0/exit.new" "$0/exit"'


class Local:
    """This machine.

    Args:
        folder: where the jobs' folders are; made if it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: list[subprocess.Popen[bytes]] = []

    def submit(self, launch: Launch, count: int) -> list[str]:
        """Start jobs."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._forget_old()
            return [self._start(launch) for _ in range(count)]
        except OSError as error:
            raise BatchUnavailable(
                f"a process cannot be started here: {error}; see that {self._folder} and {launch.log_dir} are writable"
            ) from error

    def _start(self, launch: Launch) -> str:
        job = Path(tempfile.mkdtemp(prefix="job-", dir=self._folder))
        logs = os.path.join(launch.log_dir, job.name)
        (job / "about").write_text(json.dumps({"mark": launch.mark, "stderr": f"{logs}.err"}), encoding="utf-8")
        environment = {**os.environ, "MWPY_JOB": job.name}
        with (job / "lock").open("w") as lock, open(f"{logs}.out", "wb") as out, open(f"{logs}.err", "wb") as err:
            fcntl.flock(lock, fcntl.LOCK_EX)
            child = subprocess.Popen(
                ["/bin/sh", "-c", SCRIPT, str(job), *launch.agent_command(launch.resource_path)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                pass_fds=[lock.fileno()],
                start_new_session=True,
            )
        self._children.append(child)
        return job.name

    def jobs(self) -> list[Job]:
        """The jobs that live."""
        self._children = [child for child in self._children if child.poll() is None]
        try:
            folders = sorted(self._folder.iterdir()) if self._folder.exists() else []
        except OSError as error:
            raise BatchUnavailable(f"{self._folder} cannot be read: {error}") from error
        return [_job(folder) for folder in folders if _lives(folder)]

    def remove(self, job_ids: Sequence[str]) -> None:
        """Send jobs SIGTERM; those that are still there later are killed when they are looked for."""
        for job_id in job_ids:
            folder = self._folder / job_id
            if _lives(folder):
                (folder / "removed").touch()
                _signal(folder, signal.SIGTERM)

    def outcome(self, job_id: str) -> Outcome | None:
        """What became of a job."""
        folder = self._folder / job_id
        if not (folder / "about").exists() or _lives(folder):
            return None
        about = json.loads((folder / "about").read_text(encoding="utf-8"))
        stderr = end_of(about["stderr"])
        try:
            code = int((folder / "exit").read_text())
        except (OSError, ValueError):
            return Outcome("its processes are gone without an exit code", None, 0.0, stderr)
        ran_s = (folder / "exit").stat().st_mtime - (folder / "about").stat().st_mtime
        ended, exit_code = _in_words(code)
        return Outcome(ended, exit_code, ran_s, stderr)

    def _forget_old(self) -> None:
        for folder in self._folder.iterdir():
            if time.time() > folder.stat().st_mtime + KEEP_S and not _lives(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _lives(folder: Path) -> bool:
    try:
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _job(folder: Path) -> Job:
    about = json.loads((folder / "about").read_text(encoding="utf-8"))
    removed = folder / "removed"
    if removed.exists():
        if time.time() > removed.stat().st_mtime + KILL_S:
            _signal(folder, signal.SIGKILL)
        return Job(folder.name, about["mark"], JobState.LEAVING)
    return Job(folder.name, about["mark"], JobState.RUNNING, time.time() - (folder / "about").stat().st_mtime)


def _signal(folder: Path, number: signal.Signals) -> None:
    """Send a signal to the process group of a job that lives; one that has just begun or ended is passed over."""
    try:
        os.killpg(int((folder / "pid").read_text()), number)
    except (OSError, ValueError):
        pass


def _in_words(code: int) -> tuple[str, int | None]:
    """A shell's exit code: above 128, but for those that mwpy has itself, it is a signal."""
    try:
        number = signal.Signals(code - 128)
    except ValueError:
        return f"exit code {code}", code
    return f"killed by {number.name} ({number.value})", None
