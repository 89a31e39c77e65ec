"""Slurm, by its commands: `sbatch`, `squeue`, `scancel` and `scontrol show job`; no accounting database is needed.

A job's mark is its name, `mwpy.MARK`, which `squeue` shows to everybody and no site's plug-in rewrites, as some do with
comments. Each submission is one job array, so that it happens for all or for none, and a job is an element of an
array, `42_5`. The file system is shared: jobs read the resource file where the master wrote it.

A submission that ended badly may have happened all the same: the controller took the jobs and its answer was lost. The
error says so, and whoever lists before it submits again will find them.

What became of a job is known to the controller for a while only (MinJobAge, five minutes unless the site says
otherwise).
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

from mwpy._batch import BatchUnavailable, Job, JobState, Launch, Outcome
from mwpy._batch._command import Ran, end_of, killed, run

__all__ = ["Slurm"]

TIMEOUT_S = 60.0
"""Seconds that a command gets; Slurm's own give up on a dead controller after 10 to 20."""

WARNED_S = 60
"""Seconds before a job's time limit at which it gets SIGTERM: enough for an agent's grace period and its goodbye."""

PREFIX = "mwpy."

QUEUE_FORMAT = "%i|%T|%M|%r|%j"
"""Id, state, time since the start, reason, name; the name last, as anything may stand in those of other jobs."""

ORDINARY = ("None", "Priority", "Resources", "BeginTime", "Dependency", "JobArrayTaskLimit")
"""Reasons of a waiting job that will start by itself."""

STATES = {"RUNNING": JobState.RUNNING, "SUSPENDED": JobState.RUNNING, "STOPPED": JobState.RUNNING}
STATES |= dict.fromkeys(("COMPLETING", "SIGNALING", "STAGE_OUT"), JobState.LEAVING)
STATES |= dict.fromkeys(("REQUEUE_HOLD", "SPECIAL_EXIT"), JobState.HELD)

ENDED = (
    ("COMPLETED", ""),
    ("FAILED", ""),
    ("CANCELLED", "cancelled"),
    ("TIMEOUT", "its time limit was reached"),
    ("OUT_OF_MEMORY", "killed by Slurm: out of memory"),
    ("NODE_FAIL", "its node failed"),
    ("BOOT_FAIL", "its node could not be started"),
    ("PREEMPTED", "preempted"),
    ("DEADLINE", "its deadline has passed"),
)
"""States of a job that has ended, and what they say beyond the exit code."""

ASK_END = "SLURM_TIME_FORMAT=%s timeout 10 squeue -h -j $MWPY_JOB -o %e 2>/dev/null"
"""Says in a job when its time limit ends, in Unix seconds, or something else where there is none or nobody knows."""

LEFT_OUT = ("SQUEUE_", "SCANCEL_", "MWPY_")
"""Variables with these beginnings are kept from the commands, and so from the jobs."""


class Slurm:
    """The Slurm whose commands are in PATH, for the user who runs this."""

    def submit(self, launch: Launch, count: int) -> list[str]:
        """Submit one array of `count` jobs.

        Raises:
            BatchUnavailable: it will not, or nobody knows: the message tells which.
        """
        words = ["sbatch", "--parsable", f"--array=0-{count - 1}", f"--job-name={PREFIX}{launch.mark}"]
        words += [f"--output={launch.log_dir}/%A_%a.out", f"--error={launch.log_dir}/%A_%a.err"]
        perhaps = "the jobs may be in the queue all the same: list them before submitting again"
        ran = _ask(words, given=script(launch), unknown=perhaps)
        if ran.code:
            lost = f"; {perhaps}" if "timed out" in ran.words.lower() else ""
            raise BatchUnavailable(f"Slurm did not take {count} jobs: {ran.words}{lost}")
        array = ran.out.strip().partition(";")[0]  # behind it the name of the cluster, where there are several
        return [f"{array}_{number}" for number in range(count)]

    def jobs(self) -> list[Job]:
        """What `squeue` shows of this user's jobs with mwpy's names."""
        ran = _ask(("squeue", "-h", "-r", "--me", "-o", QUEUE_FORMAT))
        if ran.code:
            raise BatchUnavailable(f"Slurm does not show its queue: {ran.words}; is slurmctld running?")
        return queue(ran.out)

    def remove(self, job_ids: Sequence[str]) -> None:
        """Cancel jobs; what runs gets SIGTERM, and SIGKILL after the site's KillWait."""
        if not job_ids:
            return
        ran = _ask(("scancel", "--quiet", *job_ids))
        if ran.code:
            raise BatchUnavailable(f"Slurm did not cancel {len(job_ids)} jobs: {ran.words}")

    def outcome(self, job_id: str) -> Outcome | None:
        """What `scontrol show job` says, while it does."""
        try:
            ran = _ask(("scontrol", "-o", "show", "job", job_id))
        except BatchUnavailable:
            return None
        return None if ran.code else outcome(ran.out)


def script(launch: Launch) -> str:
    """The batch script of a launch: its options, then the agent in the place of the shell, so that signals reach it."""
    options = [line for line in launch.extra if line.startswith(("-", "#"))]
    lines = [
        "#!/bin/sh",
        f"#SBATCH --cpus-per-task={launch.slaves}",
        f"#SBATCH --signal=B:TERM@{WARNED_S}",
        *(f"#SBATCH {line}" if line.startswith("-") else line for line in options),
        'export MWPY_JOB="${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"',
        f'export SLURM_JOB_END_TIME="${{SLURM_JOB_END_TIME:-$({ASK_END})}}"',  # older Slurms do not set it
        *(line for line in launch.extra if line not in options),
        f"exec {shlex.join(launch.agent_command(launch.resource_path))}",
    ]
    return "\n".join(lines) + "\n"


def queue(shown: str) -> list[Job]:
    """The jobs of mwpy in what `squeue` printed in `QUEUE_FORMAT`."""
    return [
        _job(*fields)
        for line in shown.splitlines()
        if len(fields := line.split("|", 4)) == 5 and fields[4].startswith(PREFIX)
    ]


def _job(job_id: str, word: str, ran: str, reason: str, name: str) -> Job:
    state = STATES.get(word, JobState.QUEUED)
    if state is JobState.QUEUED and "held" in reason.lower():
        state = JobState.HELD
    running_s = seconds(ran) if state is JobState.RUNNING else 0.0
    waits = state in (JobState.QUEUED, JobState.HELD) and reason.strip("()") not in ORDINARY
    return Job(job_id, name.removeprefix(PREFIX), state, running_s, reason if waits else "")


def seconds(shown: str) -> float:
    """Slurm's `[DAYS-][HOURS:]MINUTES:SECONDS` as seconds; 0 for what is none."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", shown)
    if found is None:
        return 0.0
    days, hours, minutes, rest = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)


def outcome(shown: str) -> Outcome | None:
    """What `scontrol -o show job` says became of a job; None while it waits or runs."""
    fields = dict(re.findall(r"(\w+)=(.*?)(?=\s+[\w/:]+=|\s*$)", shown.partition("\n")[0]))
    told = dict(ENDED).get(fields.get("JobState", ""))
    if told is None:
        return None
    code, _, number = fields.get("ExitCode", "0:0").partition(":")
    stderr = end_of(fields.get("StdErr", "")).strip()
    if told:
        ended, exit_code = told, None
    elif int(number or 0):
        ended, exit_code = killed(int(number)), None
    else:
        ended, exit_code = f"exit code {code}", int(code)
    return Outcome(ended, exit_code, seconds(fields.get("RunTime", "")), stderr)


def _ask(words: Sequence[str], *, given: str = "", unknown: str = "is slurmctld overloaded?") -> Ran:
    try:
        return run(words, timeout_s=TIMEOUT_S, given=given.encode(), environment=_environment())
    except TimeoutError as error:
        raise BatchUnavailable(f"{words[0]} gave {error}; {unknown}") from None
    except OSError as error:
        remedy = "run this where Slurm's commands are, with them in PATH"
        raise BatchUnavailable(f"{words[0]} cannot be run: {error.strerror}; {remedy}") from None


def _environment() -> dict[str, str]:
    """This process's own, without directions for it alone and what changes the meaning of a command."""
    return {name: value for name, value in os.environ.items() if not name.startswith(LEFT_OUT)}
