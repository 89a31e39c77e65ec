"""PBS Professional and OpenPBS, through their commands `qsub`, `qselect`, `qstat -f` and `qdel`. Torque differs.

The mark of a job is the end of its name, `mwpy.MARK`. Several jobs are submitted as one array, so PBS accepts all or
none. A job is an element of an array, `42[5].server`, or a job of its own, `42.server`. The file system is shared: jobs
read the resource file where the master wrote it, and write their output there, because PBS itself copies output only
after the end of a job.

`qstat -f` is read as text. Its JSON cannot be read if the environment of any job contains certain characters, and one
version shows only the first of several jobs in it.

PBS sends SIGTERM to all processes of a job that is deleted or whose time is over, and kills it some seconds later
(`kill_delay` of the queue, ten seconds by default). PBS cannot avoid a machine, so this module names none.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Iterator
from datetime import datetime

from attrs import evolve

from mwpy._batch import Launch, mark_in
from mwpy._batch._queued import COUNT, FILES, NAMED, Language, Queued, duration_s
from mwpy._batch._queued import script as script_of
from mwpy._system import clock
from mwpy._values.errors import returncode_of_shell
from mwpy._values.jobs import End, Job, JobState, Outcome
from mwpy._values.requires import MEMORY

OWN_RESOURCES = re.compile(r"^-l.*[ ,](?:select|nodes|ncpus|ngpus|mem)=")
"""A user's option that says what a job needs. PBS refuses a job that says it in two ways, so this one says all."""

STATES = dict.fromkeys("QWT", JobState.QUEUED) | dict.fromkeys("RSU", JobState.RUNNING)
STATES |= {"H": JobState.HELD, "E": JobState.LEAVING}
"""The states of jobs that are listed. The others are arrays as a whole, and jobs that have ended or have moved."""

TERMINATED = " and terminated by "
"""Is in the comment of a deleted job. Until `kill_delay` is over, PBS shows it as running, even if it has ended."""

BEGUN = "Job Array Began"
"""The comment of all elements of an array that wait, when another element runs. It is no reason."""

FORGOTTEN = "Subjob finished"
"""The comment of an element of an array, when PBS has forgotten how it ended and shows the exit status of the array."""

TIME_FORM = "%a %b %d %H:%M:%S %Y"

SIGNALLED = 256
"""Is added to the number of the signal that killed a job, in its exit status."""

BY_LIMIT = {-29: (End.REMOVED, "its time limit was reached"), -28: (End.REMOVED, "its processor time is used up")}
BY_LIMIT |= dict.fromkeys((-26, -27), (End.KILLED, "killed by PBS: it used more memory than it had asked for"))
"""Exit statuses of jobs that PBS ended because of a limit. Other negative ones are faults of the system."""

LANGUAGE = Language(
    directive="#PBS",
    own={
        "-N": NAMED,
        "-J": COUNT,
        "-[oejk]": FILES,
        "-[SCI]": "the overseer submits a script for /bin/sh",
    },
    limit=r"^-l.*[ ,](walltime)=([\d:]+)",
    seconds=duration_s,
)


class Pbs(Queued):
    """The PBS whose commands are in PATH."""

    NAME, SERVER = "PBS", "its server"
    GONE = "Unknown Job Id|Job has finished|invalid for state of job"

    def submit(self, launch: Launch, count: int) -> list[str]:
        """Submit one array of `count` jobs, or one job.

        Raises:
            BatchUnavailable: PBS refused, or its answer was lost; the message says which.
        """
        array, form = (["-J", f"0-{count - 1}"], r"\[\]") if count > 1 else ([], "")
        words = ["qsub", "-N", launch.job_name, *array]
        found = self.put(launch, count, words, script(launch), rf"^(\d+){form}((?:\.\S+)?)$")
        if not array:
            return [f"{found[1]}{found[2]}"]
        return [f"{found[1]}[{number}]{found[2]}" for number in range(count)]

    def jobs(self) -> list[Job]:
        """This user's jobs with names of mwpy, as `qstat -f` shows them."""
        job_ids = self.show("qselect", "-u", getpass.getuser()).split()
        shown = self.show("qstat", "-f", "-t", *job_ids, but=self.GONE) if job_ids else ""
        return self.listed(queue(shown, clock.wall()))

    def known_outcome(self, job_id: str) -> Outcome | None:
        """How a job ended, by what the history of PBS keeps."""
        ran = self.run("qstat", "-x", "-f", job_id)
        return None if ran.returncode else outcome(ran.out, self.stderr(job_id))


def script(launch: Launch) -> str:
    """The script of a launch: options, and then the agent."""
    own = LANGUAGE.options(launch.extra)
    needs = f"-l select=1:ncpus={launch.cpus}"
    needs += f":ngpus={launch.gpus}" if launch.gpus else ""
    needs += f":mem={mib}mb" if (mib := launch.mib(MEMORY)) else ""
    if any(map(OWN_RESOURCES.match, own)):
        needs, launch = "", evolve(launch, amounts=())
    own_first = ("-S /bin/sh", "-o /dev/null", "-e /dev/null", "-m n", needs)
    header = [
        "#!/bin/sh",
        *(f"#PBS {option}" for option in (*own_first, *own) if option),
        'cd "$PBS_O_WORKDIR" || exit',
        'export MWPY_JOB="$PBS_JOBID"',
    ]
    return script_of(launch, LANGUAGE, header, "", writes_itself=True)


def queue(shown: str, now: float) -> list[Job]:
    """Read the jobs of mwpy from the output of `qstat -f -t`.

    Args:
        shown: the output.
        now: the time, in Unix seconds.
    """
    return [_job(job_id, each, now) for job_id, each in _shown(shown) if _is_listed(job_id, each)]


def _shown(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The ids and the attributes of jobs. A long value continues on the next lines, after a tab or more blanks."""
    joined = re.sub(r"\n(?:\t| {8})", "", text)
    for block in re.split(r"^Job Id: ", joined, flags=re.MULTILINE)[1:]:
        job_id, *lines = block.splitlines()
        yield job_id.strip(), dict(re.findall(r"^    ([\w.]+) = (.*)$", "\n".join(lines), re.MULTILINE))


def _is_listed(job_id: str, shown: dict[str, str]) -> bool:
    is_array = "[]" in job_id
    return not is_array and shown.get("job_state") in STATES and mark_in(shown.get("Job_Name", "")) != ""


def _job(job_id: str, shown: dict[str, str], now: float) -> Job:
    state = JobState.LEAVING if TERMINATED in shown.get("comment", "") else STATES[shown["job_state"]]
    started = shown.get("stime", "") if state is JobState.RUNNING else ""
    running_s = max(0.0, now - datetime.strptime(started, TIME_FORM).timestamp()) if started else 0.0
    note = shown.get("comment", "") if state in (JobState.QUEUED, JobState.HELD) else ""
    if note.startswith(BEGUN):
        note = ""
    if state is JobState.HELD:
        note = note or "it is on hold (qhold)"
    return Job(job_id, mark_in(shown["Job_Name"]), state, running_s, note)


def outcome(shown: str, stderr: str) -> Outcome | None:
    """Read from the output of `qstat -x -f` how a job ended; None while it waits or runs."""
    for _, each in _shown(shown):
        code = each.get("Exit_status", "")
        if not re.fullmatch(r"-?\d+", code) or each.get("comment") == FORGOTTEN:
            continue
        ran_s = duration_s(each.get("resources_used.walltime", ""))
        if int(code) < 0:
            end, text = BY_LIMIT.get(int(code), (End.LOST, f"PBS says: {each.get('comment', code)}"))
            return Outcome(end, text, None, ran_s, stderr)
        number = int(code) - SIGNALLED
        return Outcome.of_process(-number if number > 0 else returncode_of_shell(int(code)), ran_s, stderr)
    return None
