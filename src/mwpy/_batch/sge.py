"""Grid Engine (also Son of Grid Engine, Univa), through its commands `qsub`, `qstat`, `qdel` and `qacct`.

The mark of a job is the end of its name, `mwpy.MARK`. Each submission is one array, so Grid Engine accepts all its jobs
or none. A job is a task of an array, `42.5`. The file system is shared: jobs read the resource file where the master
wrote it.

Jobs are submitted with `-notify`: before Grid Engine kills or suspends a job, it sends SIGUSR2 or SIGUSR1, and waits
for the `notify` time of the queue, which is a minute unless the site has changed it. The shell of the job passes this
on to the agent as SIGTERM. So the `notify` time must be longer than the grace period of the agent. A suspended agent
would lose its tasks; this one gives them back and leaves. The agent, and the programs that its tasks start, ignore
SIGUSR1 and SIGUSR2.

Memory is asked for by `mem_free`. `h_vmem` is a limit of address space, of which Python and numeric libraries reserve
much more than they use; a user's own line can ask for it.
"""

from __future__ import annotations

import getpass
import re
from datetime import datetime
from xml.etree import ElementTree as ET

from msgspec.structs import replace

from mwpy._batch import BatchUnavailable, Launch, mark_in
from mwpy._batch._queued import COUNT, FILES, NAMED, Language, Queued, duration_s
from mwpy._batch._queued import script as script_of
from mwpy._system import clock
from mwpy._values.errors import returncode_of_shell
from mwpy._values.jobs import End, Job, JobState, Outcome
from mwpy._values.requires import MEMORY

IN_ERROR = "it is in the state of an error"

ACCOUNTS_S = 20.0
"""Seconds that `qacct` may take: it reads the records of all jobs that ever ran."""

ENVIRONMENT = "smp"
"""The usual name of a parallel environment that takes all cores on one machine."""

BY_SIGNAL, BY_LIMIT = 100, 37
"""What failed, in the records of a job that was killed. 0 is nothing, and other numbers are faults of the system."""

LANGUAGE = Language(
    directive="#$",
    own={
        r"-N\b": NAMED,
        r"-tc?\b": COUNT,
        r"-[oej]\b": FILES,
        r"-(?:sync|now)\b": "the overseer does not wait for its jobs",
        r"-(?:b|S|terse)\b": "the overseer submits a script for /bin/sh, and reads the answer",
    },
    limit=r"(?:^-l|,).*?\b([sh]_rt)=([\d:]+)",
    seconds=duration_s,
)


class GridEngine(Queued):
    """The Grid Engine whose commands are in PATH."""

    NAME, SERVER = "Grid Engine", "its qmaster"
    GONE = "for deletion|has deleted job|already in deletion|does not exist"

    def submit(self, launch: Launch, count: int) -> list[str]:
        """Submit one array of `count` jobs.

        Raises:
            BatchUnavailable: Grid Engine refused, or its answer was lost; the message says which.
        """
        if bad := [character for character in "$,:" if character in launch.log_dir]:
            why = f"because its path contains {bad[0]!r}: give another --log-dir"
            raise BatchUnavailable(f"Grid Engine cannot write into {launch.log_dir}, {why}")
        logs = f"{launch.log_dir}/{launch.mark}.$JOB_ID.$TASK_ID"
        words = ["qsub", "-terse", "-t", f"1-{count}", "-N", launch.job_name, "-o", f"{logs}.out", "-e", f"{logs}.err"]
        found = self.put(launch, count, words, script(launch), r"^(?:\D* )?(\d+)\.1-")
        return [f"{found[1]}.{number}" for number in range(1, count + 1)]

    def jobs(self) -> list[Job]:
        """This user's jobs with names of mwpy, as `qstat` shows them."""
        found = self.listed(queue(self.show("qstat", "-xml", "-g", "d", "-u", getpass.getuser()), clock.wall()))
        arrays = {job.job_id: job.job_id.partition(".")[0] for job in found if job.note == IN_ERROR}
        notes = reasons(self.run("qstat", "-j", ",".join({*arrays.values()})).out) if arrays else {}
        return [replace(job, note=notes.get(arrays.get(job.job_id, ""), job.note)) for job in found]

    def known_outcome(self, job_id: str) -> Outcome | None:
        array, _, number = job_id.partition(".")
        ran = self.run("qacct", "-j", array, "-t", number, timeout_s=ACCOUNTS_S)
        return None if ran.returncode else outcome(ran.out, self.stderr(job_id))


def script(launch: Launch) -> str:
    """The script of a launch: options, and then the agent."""
    header = [
        "#!/bin/sh",
        *(f"#$ {option}" for option in ("-S /bin/sh", "-cwd", "-notify", *_options(launch))),
        'export MWPY_JOB="$JOB_ID.$SGE_TASK_ID"',
    ]
    return script_of(launch, LANGUAGE, header, "$HOSTNAME")


def _options(launch: Launch) -> list[str]:
    """What the job asks for, and then the user's options. Of the same option, Grid Engine uses the last.

    Grid Engine multiplies an amount of memory by the number of slots. A user's `-pe NAME` names the environment only.
    """
    own = [re.sub(r"^-pe\s+\S+$", rf"\g<0> {launch.cpus}", option) for option in LANGUAGE.options(launch.extra)]
    mib = launch.mib(MEMORY)
    names_environment = any(option.startswith("-pe ") for option in own)
    found = [
        *([f"-pe {ENVIRONMENT} {launch.cpus}"] if launch.cpus > 1 and not names_environment else ()),
        *([f"-l gpu={launch.gpus}"] if launch.gpus else ()),
        *([f"-l mem_free={-(-mib // launch.cpus)}M"] if mib else ()),
        *own,
    ]
    if launch.avoided:
        places = [shown for option in own for shown in re.findall(r"^-l.*[ ,](?:h|hostname)=([^,]+)", option)]
        hosts = f"!({'|'.join(launch.avoided)})"
        found.append(f"-l hostname=({places[-1]})&{hosts}" if places else f"-l hostname={hosts}")
    return found


def queue(shown: str, now: float) -> list[Job]:
    """Read the jobs of mwpy from the output of `qstat -xml -g d`.

    Args:
        shown: the output.
        now: the time, in Unix seconds.

    Raises:
        BatchUnavailable: it is no XML.
    """
    try:
        found = list(ET.fromstring(shown).iter("job_list"))
    except ET.ParseError as error:
        raise BatchUnavailable(f"what Grid Engine's qstat shows cannot be read ({error}): see `qstat -xml`") from None
    return [_job(each, now) for each in found if mark_in(each.findtext("JB_name", ""))]


def _job(shown: ET.Element, now: float) -> Job:
    text = shown.findtext
    state = _state(text("state", ""))
    started = text("JAT_start_time", "") if state is JobState.RUNNING else ""
    running_s = max(0.0, now - datetime.fromisoformat(started).timestamp()) if started else 0.0
    note = "" if state is not JobState.HELD else IN_ERROR if "E" in text("state", "") else "it is on hold (qhold)"
    host = text("queue_name", "").rpartition("@")[2]
    job_id = f"{text('JB_job_number')}.{text('tasks', '1')}"
    return Job(job_id, mark_in(text("JB_name", "")), state, running_s, note, host)


def _state(letters: str) -> JobState:
    """The state for letters of `qstat`, such as `qw`, `hqw`, `Eqw`, `r`, `t`, `Rr`, `s`, `dr`."""
    if "d" in letters:
        return JobState.LEAVING
    if "E" in letters or ("h" in letters and "q" in letters):
        return JobState.HELD
    return JobState.QUEUED if "q" in letters else JobState.RUNNING


def reasons(shown: str) -> dict[str, str]:
    """Read from the output of `qstat -j` why jobs are in the state of an error, by the number of their array."""
    found: dict[str, str] = {}
    number = ""
    for line in shown.splitlines():
        name, _, value = line.partition(":")
        if name == "job_number":
            number = value.strip()
        elif name.startswith("error reason") and number:
            found[number] = re.sub(r"^\s*[\d/]+ [\d:]+ \[[^]]*\]:\s*", "", value).strip()
    return found


def outcome(shown: str, stderr: str) -> Outcome | None:
    """Read from the output of `qacct -j` how a job ended. If it ran several times, its last end counts."""
    fields = dict(line.split(maxsplit=1) for line in shown.splitlines() if len(line.split(maxsplit=1)) == 2)
    failed, _, why = fields.get("failed", "").partition(":")
    code, ran = (re.match(r"[\d.]*", fields.get(name, "")) for name in ("exit_status", "ru_wallclock"))
    if not failed.strip().isdigit() or code is None or not code[0]:
        return None
    ran_s = float(ran[0]) if ran and ran[0] else 0.0
    host = fields.get("hostname", "").strip()
    if int(failed) in (0, BY_SIGNAL):
        return Outcome.of_process(returncode_of_shell(int(code[0])), ran_s, stderr, host)
    end = End.REMOVED if int(failed) == BY_LIMIT else End.LOST
    return Outcome(end, f"Grid Engine says: {why.strip() or failed.strip()}", None, ran_s, stderr, host)
