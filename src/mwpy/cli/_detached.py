"""Sweeps that go on without the terminal that started them: start, watch and stop them.

A detached sweep is a job of its batch system, or a process with a session of its own. Its `job.json` is written before
it is submitted, with a mark by which the job is found in the queue. So nothing is lost if the process that submits it
is killed, and the folder of the sweep is all that the commands need.
"""

from __future__ import annotations

import io
import os
import platform
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import uuid4

from msgspec.structs import replace

import mwpy
from mwpy import ExitCode, MwpyError, UsageError
from mwpy._roles.progress import Figures, display_of
from mwpy._system import clock, process
from mwpy.sweep.job import FILE, MARK, RESOURCE, Job, store, stored

__all__ = ["State", "attached", "detach", "job_in", "master_of", "state_of", "stop"]

LOG, SCRIPT = "job.log", "job.sh"
"""Files in the folder of a sweep: what a detached sweep prints, and what its job runs."""

ANSWER_S = 60.0
"""How long a command of a batch system may take, in seconds."""

STARTS_S = 0.05
"""Seconds between two checks whether a detached process makes runs."""

LOOK_S, QUEUE_S = 0.5, 3.0
"""How often `attach` looks at a sweep, and at the queue of its batch system, in seconds."""

LAST_BYTES = 2000
"""How much of the end of the log is shown."""

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
OVER = ("", "3", "4")
"""The states of a job that does not start again: it is not in the queue, or leaves it."""

NO_REASON = ("", "None", "undefined")


class State(Enum):
    """What a sweep does."""

    WAITS = "waits"
    RUNS = "runs"
    ENDED = "ended"
    LOST = "lost"
    """Its process or job is gone, and has not said how it ended."""


def detach(folder: Path, arguments: Sequence[str], system: str, cores: int) -> Job:
    """Start a sweep that goes on without this terminal. Return it when it runs, or is in the queue.

    Args:
        folder: that of the sweep.
        arguments: those of `mwpy sweep`, without `--detach`.
        system: the batch system whose job it becomes; empty for a process.
        cores: how many cores the job asks for.

    Raises:
        UsageError: it runs already, or cannot be submitted.
    """
    before = stored(folder / FILE, Job)
    if before is not None and (found := state_of(before, folder))[0] in (State.WAITS, State.RUNS):
        raise UsageError(f"the sweep in {folder} {found[1]}: `mwpy sweep attach {folder}` shows it")
    job = Job([*arguments], os.getcwd(), uuid4().hex, system)
    store(folder / FILE, job)
    log, script = folder.absolute() / LOG, folder.absolute() / SCRIPT
    log.write_bytes(b"")
    command = shlex.join([sys.executable, "-m", "mwpy", "sweep", *arguments])
    script.write_text(JOB.format(cores, shlex.quote(str(log)), shlex.quote(job.base), MARK, job.mark, command))
    script.chmod(0o755)
    if system:
        _submit(job, script, folder)
    else:
        started = process.start([str(script)], detached=True)
        while not job.pid and started.poll() is None:
            clock.sleep(STARTS_S)
            job = stored(folder / FILE, Job) or job
        started.leave()
    return stored(folder / FILE, Job) or job


def _submit(job: Job, script: Path, folder: Path) -> None:
    log = str(script.with_name(LOG)).replace("%", "%%")
    try:
        if job.system == "htcondor":
            process.answer_of(["condor_submit", "-"], ANSWER_S, SUBMISSION.format(script, job.mark))
        else:
            name = f"--job-name=mwpy-sweep-{job.mark}"
            process.answer_of(["sbatch", name, f"--output={log}", "--open-mode=append", str(script)], ANSWER_S)
    except UsageError:
        (folder / FILE).unlink()
        raise


def job_in(folder: Path) -> Job:
    """Return the last start of the sweep in a folder.

    Raises:
        UsageError: there was none.
    """
    job = stored(folder / FILE, Job)
    if job is None:
        raise UsageError(f"no sweep was started in {folder}: give the folder of a sweep, or its study")
    return job


def master_of(folder: Path) -> dict[str, Any] | None:
    """Return what the master of a sweep does; None if it does not answer."""
    try:
        answer = mwpy.status(folder / RESOURCE)
    except MwpyError:
        return None
    return answer if answer["state"] == "running" else None


def state_of(job: Job, folder: Path) -> tuple[State, str]:
    """Return what a sweep does, and the same as a text.

    Raises:
        UsageError: its batch system does not answer.
    """
    words = [*job.arguments]
    if job.pid and "--again" in words and words[(at := words.index("--again")) + 1] != "failed":
        del words[at : at + 2]  # these rows are known, and would run once more
    line = shlex.join(["mwpy", "sweep", *(["--detach"] if job.mark else []), *words])
    remedy = f"; the same command continues it: cd {shlex.quote(job.base)} && {line}"
    last = _last_line(folder / LOG) if job.mark else ""
    is_over = job.code != ExitCode.INTERRUPTED or not job.system or _queued(job)[1] in OVER  # else it was evicted
    if job.code is not None and is_over:
        if job.summary:
            last = "{succeeded} of {runs} runs succeeded".format_map(job.summary)
        elif job.code == ExitCode.INTERRUPTED:
            last = ""  # it would only say the same
        text = f"has ended with exit code {job.code}" + (f": {last}" if last else "")
        return State.ENDED, text if job.code in (ExitCode.OK, 1) else text + remedy
    where = f"in process {job.pid} on {job.host}"
    if job.is_here:
        return State.RUNS, f"runs {where}"
    if job.system:
        number, state, reason = _queued(job)
        where = f"as job {number} of {job.system}" if state else f"as a job of {job.system}"
        if state in RUNNING:
            return State.RUNS, f"runs {where}"
        if state:
            why = f" ({reason.strip()})" if reason.strip() not in NO_REASON else ""
            return State.WAITS, f"{'is held' if state in HELD else 'waits'} {where}{why}"
    elif job.host != platform.node() and master_of(folder):
        return State.RUNS, f"runs {where}"
    after = stored(folder / FILE, Job)  # it may just have ended
    if after is not None and after.code is not None:
        return state_of(after, folder)
    why = f" ({last})" if last else ""
    return State.LOST, f"was started {where}, which is gone and has not said how it ended{why}{remedy}"


def _last_line(log: Path) -> str:
    text = log.read_bytes()[-LAST_BYTES:].decode(errors="replace").strip() if log.exists() else ""
    return text.rpartition("\n")[2] or "it wrote nothing"


def _queued(job: Job) -> list[str]:
    """Return the id of a job in its batch system, its state there, and a reason; empty if it is not there."""
    found = process.answer_of(shlex.split(QUEUES[job.system].format(job.mark)), ANSWER_S)
    return f"{found}  ".split(" ", 2)


def stop(job: Job, folder: Path, now: bool) -> None:
    """Let a sweep finish what runs, and end; or end it now.

    Raises:
        UsageError: it does not run, or not on this machine, or the batch system does not answer.
    """
    state, text = state_of(job, folder)
    if state in (State.ENDED, State.LOST):
        raise UsageError(f"the sweep in {folder} cannot be stopped: it {text}")
    if job.is_here:
        os.kill(job.pid, signal.SIGTERM if now else signal.SIGINT)
    elif not job.system:
        raise UsageError(f"the sweep in {folder} {text}: run this command there")
    elif job.system == "slurm" and job.pid and state is State.RUNS and not now:
        process.answer_of(["scancel", "--batch", "--signal=INT", _queued(job)[0]], ANSWER_S)
    else:
        process.answer_of(["scancel" if job.system == "slurm" else "condor_rm", _queued(job)[0]], ANSWER_S)
        if not job.pid:  # it has not begun, so it does not say that it ended
            store(folder / FILE, replace(job, code=int(ExitCode.INTERRUPTED)))


def attached(folder: Path) -> tuple[State, str, Job]:
    """Show a sweep until its end, or until Ctrl-C."""
    job, display, figures, said = job_in(folder), display_of("tasks"), None, ""
    log = (folder / LOG).open(errors="replace") if job.mark else io.StringIO()
    log.seek(max(0, log.seek(0, io.SEEK_END) - LAST_BYTES))
    try:
        while True:
            answer, job = master_of(folder), job_in(folder)
            state, text = (State.RUNS, said) if answer and said and job.code is None else state_of(job, folder)
            print(log.read(), end="", flush=True)
            if state in (State.ENDED, State.LOST):
                if figures is not None and job.code in (ExitCode.OK, 1):
                    figures = replace(figures, done=job.runs, failed=job.summary["failed"])
                return state, text, job
            if text != said:
                said = text
                print(f"mwpy sweep: the sweep in {folder} {text}", file=sys.stderr)
            if answer and sys.stderr.isatty():  # else the lines of the log show the progress
                figures = _figures(answer, job.runs)
                display(figures, False)
            clock.sleep(LOOK_S if answer or job.is_here else QUEUE_S)
    except KeyboardInterrupt:
        return State.RUNS, f"goes on; `mwpy sweep attach {folder}` shows it again, and `stop` ends it", job
    finally:
        log.close()
        if figures is not None:
            display(figures, True)


def _figures(answer: Mapping[str, Any], runs: int) -> Figures:
    done = sum(answer["tasks"][state] for state in ("succeeded", "failed", "cancelled"))
    slaves, rate = answer["slaves_connected"], answer["rate"] or None
    return Figures(done, runs, answer["tasks"]["failed"], slaves, answer["reused"], rate)
