"""Sweeps that go on without the terminal that started them, and how they are found again.

Each start of a sweep writes `job.json` into the folder of the sweep: which process makes the runs, where, and at the
end the exit code. A detached sweep is a job of its batch system, or a process with a session of its own. The file is
written before the job is submitted and has its mark, by which the job is found in the queue. So nothing is lost if the
process that submits it is killed. From then on, only the job writes the file.
"""

from __future__ import annotations

import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import msgspec
from msgspec import Struct, field

import mwpy
from mwpy import ExitCode, MwpyError, UsageError

T = TypeVar("T")

FILE, LOG, SCRIPT, RESOURCE = "job.json", "job.log", "job.sh", "sweep.rsc"
"""Files in the folder of a sweep: what is known about its last start, what a detached sweep prints, what its job runs,
and the resource file of its master."""

MARK = "MWPY_SWEEP_JOB"
"""The environment variable with the mark of the job."""

ANSWER_S = 60.0
"""How long a command of a batch system may take, in seconds."""

STARTS_S = 0.05
"""Seconds between two checks whether a detached process makes runs."""

LAST_BYTES = 2000
"""How much of the end of the log is read to find its last line."""

SUBMISSION = """universe = scheduler
executable = {}
getenv = true
My.MwpySweep = "{}"
batch_name = mwpy-sweep
notification = NEVER
on_exit_remove = ExitBySignal == False
on_exit_hold = ExitBySignal && NumJobStarts >= 20
queue
"""
"""The job in HTCondor. If a signal kills it, it starts again, and continues."""

JOB = """#!/bin/sh
#SBATCH --cpus-per-task={}
#SBATCH --mem=1G
#SBATCH --requeue
exec >> {} 2>&1
cd {} || exit
export {}={}
exec {}
"""
"""What a job runs. It may start more than once. Variables SBATCH_* of the user count instead of the options here."""

QUEUES = {
    "htcondor": """condor_q -constraint 'MwpySweep == "{}"' -af ClusterId JobStatus HoldReason""",
    "slurm": "squeue -h --me -n mwpy-sweep-{} -o '%A %T %r'",
}
"""The commands that show the job with a mark: its id, its state, and a reason."""

RUNNING, HELD = ("2", "RUNNING", "COMPLETING"), ("5", "REQUEUE_HOLD", "SPECIAL_EXIT")
NO_REASON = ("", "None", "undefined")


class State(Enum):
    """What a sweep does."""

    WAITS = "waits"
    RUNS = "runs"
    ENDED = "ended"
    LOST = "lost"
    """Its process or job is gone, and has not said how it ended."""


class Job(Struct, omit_defaults=True):
    """The last start of a sweep."""

    arguments: list[str]
    """Those of `mwpy sweep`, without `--detach`."""
    base: str
    """The working folder in which it was started."""
    mark: str = ""
    """The mark of a detached sweep."""
    system: str = ""
    """The batch system whose job it is; empty for a process."""
    pid: int = 0
    """The process that makes the runs; 0 if none has begun."""
    born: str = ""
    """When this process began, in ticks since the boot, because another process may have its number later."""
    host: str = ""
    runs: int = 0
    """How many runs there are."""
    code: int | None = None
    """The exit code; None before the end."""
    summary: dict[str, Any] = field(default_factory=dict)

    def begin(self, folder: Path, runs: int) -> None:
        """This process makes the runs from now on."""
        self.pid, self.born, self.host, self.runs = os.getpid(), _born(os.getpid()), platform.node(), runs
        store(folder / FILE, self)

    @property
    def is_here(self) -> bool:
        """Whether its process lives, on this machine."""
        return bool(self.pid) and self.host == platform.node() and _born(self.pid) == self.born

    def state(self, folder: Path) -> tuple[State, str]:
        """Return what the sweep does, and the same as a text.

        Raises:
            UsageError: its batch system does not answer.
        """
        again = shlex.join(["mwpy", "sweep", *(["--detach"] if self.mark else []), *self.arguments])
        remedy = f"; the same command continues it: cd {shlex.quote(self.base)} && {again}"
        last = _last_line(folder / LOG) if self.mark else ""
        if self.code is not None:
            text = f"has ended with exit code {self.code}: "
            text += "{succeeded} of {runs} runs succeeded".format_map(self.summary) if self.summary else last
            return State.ENDED, text if self.code in (ExitCode.OK, 1) else text + remedy
        if self.is_here:
            return State.RUNS, f"runs in process {self.pid} on {self.host}"
        where = f"in process {self.pid} on {self.host}"
        if self.system:
            number, state, reason = self.queued()
            where = f"as job {number} of {self.system}" if state else f"as a job of {self.system}"
            if state in RUNNING:
                return State.RUNS, f"runs {where}"
            if state:
                why = f" ({reason.strip()})" if reason.strip() not in NO_REASON else ""
                return State.WAITS, f"{'is held' if state in HELD else 'waits'} {where}{why}"
        elif self.host != platform.node():
            with suppress(MwpyError):
                if mwpy.status(folder / RESOURCE)["state"] == "running":
                    return State.RUNS, f"runs {where}"
        after = stored(folder / FILE, Job)  # it may just have ended
        if after is not None and after.code is not None:
            return after.state(folder)
        return State.LOST, f"was started {where}, which is gone and has not said how it ended ({last}){remedy}"

    def queued(self) -> list[str]:
        """Return its id in the batch system, its state there, and a reason; empty if it is not there."""
        found = _run(shlex.split(QUEUES[self.system].format(self.mark)))
        return f"{found}  ".split(" ", 2)

    def stop(self, folder: Path, now: bool) -> None:
        """Let the sweep finish what runs, and end; or end it now.

        Raises:
            UsageError: it does not run, or not on this machine, or the batch system does not answer.
        """
        state, text = self.state(folder)
        if state in (State.ENDED, State.LOST):
            raise UsageError(f"the sweep in {folder} cannot be stopped: it {text}")
        if self.is_here:
            os.kill(self.pid, signal.SIGTERM if now else signal.SIGINT)
        elif not self.system:
            raise UsageError(f"the sweep in {folder} {text}: run this command there")
        elif self.system == "slurm" and state is State.RUNS and not now:
            _run(["scancel", "--batch", "--signal=INT", self.queued()[0]])
        else:
            _run(["scancel" if self.system == "slurm" else "condor_rm", self.queued()[0]])


def stored(path: Path, kind: type[T]) -> T | None:
    """Read what a file in the folder of a sweep says; None if there is no such file.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path} cannot be read ({error}): remove it, or give another --folder") from error


def store(path: Path, value: Struct) -> None:
    """Write such a file, as a whole.

    Raises:
        UsageError: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.new")
        new.write_bytes(msgspec.json.format(msgspec.json.encode(value)))
        new.replace(path)
    except OSError as error:
        raise UsageError(
            f"the folder {path.parent} cannot be written ({error.strerror}): give another --folder"
        ) from error


def _born(pid: int) -> str:
    """Return when a process began; empty if it has ended."""
    try:
        state, *others = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else others[18]


def _last_line(log: Path) -> str:
    text = log.read_bytes()[-LAST_BYTES:].decode(errors="replace").strip() if log.exists() else ""
    return text.rpartition("\n")[2] or "it wrote nothing"


def _run(words: Sequence[str], text: str = "") -> str:
    """Run a command of a batch system, and return what it says.

    Raises:
        UsageError: it failed.
    """
    try:
        ran = subprocess.run(words, input=text, capture_output=True, text=True, timeout=ANSWER_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise UsageError(f"{words[0]} failed: {' '.join(said.split())}") from error
    return ran.stdout.strip()


@contextmanager
def recorded(folder: Path, arguments: Sequence[str]) -> Iterator[Job]:
    """Give the job of a sweep that starts here, and record at its end how it has ended.

    A job of a batch system that starts once more has the `pid` of its last start.
    """
    mark, job = os.environ.pop(MARK, ""), stored(folder / FILE, Job)
    if job is None or not mark or job.mark != mark:
        job = Job([*arguments], os.getcwd())
    try:
        yield job
    except BaseException as error:
        ended = ExitCode.INTERRUPTED if isinstance(error, KeyboardInterrupt) else ExitCode.FAILED
        job.code = int(getattr(error, "exit_code", ended))
        raise
    finally:
        if job.pid or job.mark:
            store(folder / FILE, job)


def detach(folder: Path, arguments: Sequence[str], system: str, cores: int) -> Job:
    """Start a sweep that goes on without this terminal. Return it when it runs, or is in the queue.

    Args:
        folder: that of the sweep.
        system: the batch system whose job it becomes; empty for a process.
        cores: how many cores the job asks for.

    Raises:
        UsageError: it runs already, or cannot be submitted.
    """
    before = stored(folder / FILE, Job)
    if before is not None and (found := before.state(folder))[0] in (State.WAITS, State.RUNS):
        raise UsageError(f"the sweep in {folder} {found[1]}: `mwpy sweep attach {folder}` shows it")
    job = Job([*arguments], os.getcwd(), uuid4().hex, system)
    store(folder / FILE, job)
    log, script = folder.absolute() / LOG, folder.absolute() / SCRIPT
    log.write_bytes(b"")
    command = shlex.join([sys.executable, "-m", "mwpy", "sweep", *arguments])
    script.write_text(JOB.format(cores, shlex.quote(str(log)), shlex.quote(job.base), MARK, job.mark, command))
    script.chmod(0o755)
    if system == "htcondor":
        _run(["condor_submit", "-"], SUBMISSION.format(script, job.mark))
    elif system == "slurm":
        output = f"--output={log}".replace("%", "%%")
        _run(["sbatch", f"--job-name=mwpy-sweep-{job.mark}", output, "--open-mode=append", str(script)])
    else:
        process = subprocess.Popen([script], stdin=subprocess.DEVNULL, start_new_session=True)
        while not job.pid and process.poll() is None:
            time.sleep(STARTS_S)
            job = stored(folder / FILE, Job) or job
        process.returncode = 0  # it goes on
    return stored(folder / FILE, Job) or job
