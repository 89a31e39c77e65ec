"""Slurm, through its commands `sbatch`, `squeue`, `scancel` and `scontrol show job`. It needs no accounting database.

The mark of a job is the end of its name, `mwpy.MARK`. `squeue` shows the name to all users. Plug-ins of a site do not
change the name of a job, but some of them change its comment. Each submission is one job array, so Slurm accepts all
its jobs or none. A job is an element of an array, `42_5`. The file system is shared: jobs read the resource file where
the master wrote it.

After an error, the jobs may be in the queue nevertheless: the controller may have accepted them although its answer was
lost. The error says so. A caller that lists the jobs before it submits again will find them.

For a while after the end of a job, the controller knows how it ended (MinJobAge, five minutes by default).
"""

from __future__ import annotations

import os
import re
import shlex

from mwpy._batch import Launch, end_of, mark_in
from mwpy._batch._queued import COUNT, FILES, NAMED, OPTION, Language, Queued
from mwpy._values.jobs import End, Job, JobState, Outcome
from mwpy._values.requires import MEMORY

WARNED_S = 60
"""A job gets SIGTERM this many seconds before its time limit: enough for an agent's grace period and its goodbye."""

EXCLUDE = "--exclude="
"""The beginning of the option that names nodes which a job avoids."""

QUEUE_FORMAT = "%i|%T|%M|%r|%N|%j"
"""Id, state, time since the start, reason, node, name. The name is last: other jobs' names may contain a `|`."""

ORDINARY = ("None", "Priority", "Resources", "BeginTime", "Dependency", "JobArrayTaskLimit")
"""Reasons that squeue gives for a waiting job which will start by itself."""

STATES = {"RUNNING": JobState.RUNNING, "SUSPENDED": JobState.RUNNING, "STOPPED": JobState.RUNNING}
STATES |= dict.fromkeys(("COMPLETING", "SIGNALING", "STAGE_OUT"), JobState.LEAVING)
STATES |= dict.fromkeys(("REQUEUE_HOLD", "SPECIAL_EXIT"), JobState.HELD)

BY_EXIT_CODE = ("COMPLETED", "FAILED")
"""States of a job that ended by itself; its exit code says how."""

ENDS = {
    "CANCELLED": (End.REMOVED, "cancelled"),
    "TIMEOUT": (End.REMOVED, "its time limit was reached"),
    "OUT_OF_MEMORY": (End.KILLED, "killed by Slurm: out of memory"),
    "NODE_FAIL": (End.LOST, "its node failed"),
    "BOOT_FAIL": (End.LOST, "its node could not be started"),
    "PREEMPTED": (End.REMOVED, "preempted"),
    "DEADLINE": (End.REMOVED, "its deadline has passed"),
}
"""The other states of a job that has ended, and what they mean."""

ASK_END = "SLURM_TIME_FORMAT=%s timeout 10 squeue -h -j $MWPY_JOB -o %e 2>/dev/null"
"""Prints inside a job when its time limit ends, in Unix seconds. Without a limit the output is not a number."""

LEFT_OUT = ("SLURM_", "SQUEUE_", "SCANCEL_", "MWPY_")
"""Prefixes of environment variables that are removed for the commands, and therefore also for the jobs. If this process
is in a job, it has many variables SLURM_*, which describe only that job."""

KEPT = ("SLURM_CLUSTERS", "SLURM_CONF", "SLURM_JWT")
"""Variables that tell the commands how to reach Slurm."""


class Slurm(Queued):
    """The Slurm whose commands are in PATH."""

    NAME, SERVER = "Slurm", "slurmctld"
    REMOVE = ("scancel", "--quiet")
    GONE = "(?!)"  # it says nothing

    def submit(self, launch: Launch, count: int) -> list[str]:
        """Submit one array of `count` jobs.

        Raises:
            BatchUnavailable: Slurm refused, or its answer was lost; the message says which.
        """
        logs = f"{launch.log_dir.replace('%', '%%')}/{launch.mark}.%A_%a"
        words = ["sbatch", "--parsable", f"--array=0-{count - 1}", f"--job-name={launch.job_name}"]
        words += [f"--output={logs}.out", f"--error={logs}.err"]
        found = self.put(launch, count, words, script(launch), r"^(\d+)")  # perhaps with `;CLUSTER`
        return [f"{found[1]}_{number}" for number in range(count)]

    def jobs(self) -> list[Job]:
        """This user's jobs with names of mwpy, as `squeue` shows them."""
        return self.listed(queue(self.show("squeue", "-h", "-r", "--me", "-o", QUEUE_FORMAT)))

    def known_outcome(self, job_id: str) -> Outcome | None:
        """How a job ended, by what `scontrol show job` keeps."""
        ran = self.run("scontrol", "-o", "show", "job", job_id)
        return None if ran.returncode else outcome(ran.out, self.stderr(job_id))

    def environment(self) -> dict[str, str | None]:
        """Without the variables of a job in which this process runs."""
        return {name: None for name in os.environ if name.startswith(LEFT_OUT) and name not in KEPT}


def seconds(shown: str) -> float:
    """Read a time of Slurm; 0 for a text of another form.

    Slurm writes `MINUTES[:SECONDS]`, `HOURS:MINUTES:SECONDS` and `DAYS-HOURS[:MINUTES[:SECONDS]]`.
    """
    days, dash, clock = shown.rpartition("-")
    try:
        whole_days, *parts = (int(part) for part in (days or "0", *clock.split(":")))
    except ValueError:
        return 0.0
    hours, minutes, rest = [*parts, 0, 0][:3] if dash or len(parts) == 3 else [0, *parts, 0][:3]
    return float(((whole_days * 24 + hours) * 60 + minutes) * 60 + rest)


LANGUAGE = Language(
    directive="#SBATCH",
    own={r"--job-name\b|-J": NAMED, r"--array\b|-a": COUNT, r"--(?:output|error)\b|-[oe]": FILES},
    limit=r"^()(?:--time(?:=| +)|-t *)([0-9:-]+)$",
    seconds=seconds,
    warned_s=WARNED_S,
)


def script(launch: Launch) -> str:
    """The batch script of a launch: options, then the agent, which replaces the shell so that signals reach it."""
    lines = [
        "#!/bin/sh",
        f"#SBATCH --cpus-per-task={launch.cpus}",
        *([f"#SBATCH --gres=gpu:{launch.gpus}"] if launch.gpus else ()),
        *([f"#SBATCH --mem={mib}M"] if (mib := launch.mib(MEMORY)) else ()),
        f"#SBATCH --signal=B:TERM@{WARNED_S}",
        *(f"#SBATCH {line}" if line.startswith("-") else line for line in _options(launch)),
        'export MWPY_JOB="${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"',
        f'export SLURM_JOB_END_TIME="${{SLURM_JOB_END_TIME:-$({ASK_END})}}"',  # older versions of Slurm do not set it
        *(line for line in launch.extra if not line.startswith(OPTION)),
        f"exec {shlex.join(launch.agent_command(launch.resource_path))}",
    ]
    return "\n".join(lines) + "\n"


def _options(launch: Launch) -> list[str]:
    """The user's options. Slurm uses only the last `--exclude`, so all avoided nodes must be in one."""
    options = [line for line in launch.extra if line.startswith(OPTION)]
    own = [line for line in options if line.startswith(EXCLUDE)]
    if launch.avoided:
        nodes = [*(line.removeprefix(EXCLUDE) for line in own), *launch.avoided]
        options = [*(line for line in options if line not in own), EXCLUDE + ",".join(nodes)]
    return options


def queue(shown: str) -> list[Job]:
    """Read the jobs of mwpy from the output of `squeue` in `QUEUE_FORMAT`."""
    return [
        _job(*fields) for line in shown.splitlines() if len(fields := line.split("|", 5)) == 6 and mark_in(fields[5])
    ]


def _job(job_id: str, word: str, ran: str, reason: str, host: str, name: str) -> Job:
    state = STATES.get(word, JobState.QUEUED)
    if state is JobState.QUEUED and "held" in reason.lower():
        state = JobState.HELD
    running_s = seconds(ran) if state is JobState.RUNNING else 0.0
    waits = state in (JobState.QUEUED, JobState.HELD) and reason.strip("()") not in ORDINARY
    return Job(job_id, mark_in(name), state, running_s, reason if waits else "", host)


def outcome(shown: str, stderr: str) -> Outcome | None:
    """Read from the output of `scontrol -o show job` how a job ended; None while it waits or runs.

    `stderr` is the end of its standard error; if it is empty, the file that Slurm names is read.
    """
    fields = dict(re.findall(r"(\w+)=(.*?)(?=\s+[\w/:]+=|\s*$)", shown.partition("\n")[0]))
    state = fields.get("JobState", "")
    ran_s = seconds(fields.get("RunTime", ""))
    stderr = stderr or end_of(fields.get("StdErr", "")).strip()
    host = fields.get("NodeList", "").replace("(null)", "")
    if state in BY_EXIT_CODE:
        code, _, number = fields.get("ExitCode", "0:0").partition(":")
        return Outcome.of_process(-int(number or 0) or int(code), ran_s, stderr, host)
    if state in ENDS:
        end, text = ENDS[state]
        return Outcome(end, text, None, ran_s, stderr, host)
    return None
