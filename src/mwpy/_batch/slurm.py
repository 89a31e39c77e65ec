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
from collections.abc import Mapping, Sequence

from attrs import evolve

from mwpy._batch import BatchUnavailable, Launch, end_of, mark_in
from mwpy._batch._queued import COUNT, FILES, NAMED, OPTION, PERHAPS, TIMEOUT_S, refusal, run
from mwpy._system.process import Finished
from mwpy._values.errors import UsageError
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


class Slurm:
    """The Slurm whose commands are in PATH, for the user of this process."""

    def __init__(self) -> None:
        self._log_dirs: dict[str, str] = {}
        """The folders for the output of submitted jobs, by mark: Slurm shows a wrong path if it contains a `%`."""

    def submit(self, launch: Launch, count: int) -> list[str]:
        """Submit one array of `count` jobs.

        Raises:
            BatchUnavailable: Slurm refused, or its answer was lost; the message says which.
        """
        words = ["sbatch", "--parsable", f"--array=0-{count - 1}", f"--job-name={launch.job_name}"]
        self._log_dirs[launch.mark] = launch.log_dir
        log_dir = launch.log_dir.replace("%", "%%")
        words += [f"--output={log_dir}/{launch.mark}.%A_%a.out"]
        words += [f"--error={log_dir}/{launch.mark}.%A_%a.err"]
        ran = _run(words, standard_input=script(launch), hint=PERHAPS)
        if ran.returncode:
            raise refusal("Slurm", count, ran)
        array = ran.out.strip().partition(";")[0]  # if there are several clusters, the name of the cluster follows
        return [f"{array}_{number}" for number in range(count)]

    def free_places(self, slaves: int) -> None:
        """Jobs are always taken."""

    def jobs(self) -> list[Job]:
        """This user's jobs with names of mwpy, as `squeue` shows them."""
        ran = _run(("squeue", "-h", "-r", "--me", "-o", QUEUE_FORMAT))
        if ran.returncode:
            raise BatchUnavailable(f"Slurm does not show its queue: {ran.complaint}; is slurmctld running?")
        return queue(ran.out)

    def remove(self, job_ids: Sequence[str]) -> None:
        """Cancel jobs. Running jobs get SIGTERM, and then SIGKILL after the site's KillWait."""
        if not job_ids:
            return
        ran = _run(("scancel", "--quiet", *job_ids))
        if ran.returncode:
            raise BatchUnavailable(f"Slurm did not cancel {len(job_ids)} jobs: {ran.complaint}")

    def outcome(self, job_id: str) -> Outcome | None:
        """How a job ended, as long as `scontrol show job` knows it."""
        try:
            ran = _run(("scontrol", "-o", "show", "job", job_id))
        except BatchUnavailable:
            return None
        return None if ran.returncode else outcome(ran.out, self._log_dirs)


_TIME = re.compile(r"(?:--time(?:=| +)|-t *)([0-9:-]+)")
"""The option for the time limit, after `#SBATCH` is removed."""


def time_limit_s(lines: Sequence[str]) -> float | None:
    """Return after how many seconds a job gets SIGTERM, by the time limit in a user's lines; None if they set none."""
    found = [_TIME.fullmatch(line.removeprefix("#SBATCH").strip()) for line in lines if line.startswith(OPTION)]
    limits = [limit for each in found if each is not None and (limit := seconds(each[1]))]  # 0: there is no limit
    return max(0.0, limits[-1] - WARNED_S) if limits else None


_OWN = re.compile(r"(?:--(job-name|array|output|error)\b|-([Jaoe])(?=[ \w/]))")
"""The options that `submit` gives to `sbatch` itself. They take precedence over the same options in a script."""

OWN_REASONS = {
    "job-name": NAMED,
    "array": COUNT,
    "output": FILES,
    "error": FILES,
}
SHORT = {"J": "job-name", "a": "array", "o": "output", "e": "error"}


def check_lines(lines: Sequence[str]) -> None:
    """Check that a user's lines contain no option that a submission sets itself.

    Raises:
        UsageError: a line would have no effect; the message says why.
    """
    for line in lines:
        found = _OWN.match(line.removeprefix("#SBATCH").strip()) if line.startswith(OPTION) else None
        if found is not None:
            raise UsageError(f"--line={line} is refused: {OWN_REASONS[found[1] or SHORT[found[2]]]}")


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


def outcome(shown: str, log_dirs: Mapping[str, str]) -> Outcome | None:
    """Read from the output of `scontrol -o show job` how a job ended; None while it waits or runs.

    `log_dirs` has the folders for the output of jobs, by mark, as far as they are known.
    """
    fields = dict(re.findall(r"(\w+)=(.*?)(?=\s+[\w/:]+=|\s*$)", shown.partition("\n")[0]))
    state = fields.get("JobState", "")
    ran_s = seconds(fields.get("RunTime", ""))
    folder, name = os.path.split(fields.get("StdErr", ""))
    folder = log_dirs.get(mark_in(fields.get("JobName", "")), folder)
    stderr = end_of(os.path.join(folder, name)).strip()
    host = fields.get("NodeList", "").replace("(null)", "")
    if state in BY_EXIT_CODE:
        code, _, number = fields.get("ExitCode", "0:0").partition(":")
        return evolve(Outcome.of_process(-int(number or 0) or int(code), ran_s, stderr), host=host)
    if state in ENDS:
        end, text = ENDS[state]
        return Outcome(end, text, None, ran_s, stderr, host)
    return None


def _run(words: Sequence[str], *, standard_input: str = "", hint: str = "is slurmctld overloaded?") -> Finished:
    """Run a command of Slurm; `hint` is the advice if it takes too long."""
    left_out = {name: None for name in os.environ if name.startswith(LEFT_OUT) and name not in KEPT}
    return run("Slurm", words, standard_input=standard_input, hint=hint, timeout_s=TIMEOUT_S, environment=left_out)
