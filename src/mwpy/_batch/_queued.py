"""What HTCondor, Slurm, Grid Engine and PBS share: they are used through commands.

Grid Engine and PBS say how a job has ended only where the site keeps records of ended jobs, and some seconds late. So
in their jobs a shell stays with the agent, and writes into a file how the agent ended, beside the output of the job.
There is no such file if the shell was killed, too. Then the batch system is asked.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from attrs import Factory, define, evolve

from mwpy._batch import BatchUnavailable, Launch, end_of
from mwpy._system import process
from mwpy._values.errors import UsageError, returncode_of_shell
from mwpy._values.jobs import Job, Outcome

TIMEOUT_S = 60.0
"""Seconds that a command may take. Slurm's own commands give up on a dead controller after 10 to 20 s."""

OPTION = ("-", "#")
"""The beginnings of a user's lines that are options. The other lines are commands for the job's shell."""

PERHAPS = "the jobs may be in the queue anyway: list them before submitting again"
"""What is known if the answer to a submission is lost."""

FILES = "the overseer names the files of its jobs; --log-dir chooses their folder"
COUNT = "the overseer decides how many jobs are submitted"
NAMED = "the overseer finds its jobs by their name; --job-name puts yours before it"
"""Why a user's line cannot replace what a submission sets."""

SUPERVISE = """\
rm -f "$mwpy_logs.end"
mwpy_begun=$(date +%s)
trap 'mwpy_again=1; kill -TERM "$!" 2>/dev/null' USR1 USR2 TERM
(trap '' USR1 USR2; exec {agent}) &
while mwpy_again=; wait "$!"; mwpy_code=$?; [ "$mwpy_again" ] && [ "$mwpy_code" -gt 128 ]; do :; done
echo "$mwpy_code $(($(date +%s) - mwpy_begun)) {host}" >"$mwpy_logs.new" && mv "$mwpy_logs.new" "$mwpy_logs.end"
exit "$mwpy_code"
"""
"""Runs the agent, and writes its exit code, its seconds and its machine. Grid Engine announces the end of a job by
SIGUSR1 or SIGUSR2 to all its processes: the agent gets SIGTERM instead. Where only the shell gets SIGTERM, the agent
gets it from the shell. PBS sends it to both; a second one changes nothing in the agent. A signal interrupts `wait`,
which is then called again. A job that runs again has the same id, so it removes the file of its first run."""


def run(
    system: str,
    words: Sequence[str],
    *,
    standard_input: str = "",
    hint: str = "is its server overloaded?",
    timeout_s: float = TIMEOUT_S,
    environment: Mapping[str, str | None] | None = None,
) -> process.Finished:
    """Run a command of a batch system.

    Args:
        system: the name of the batch system, for messages.
        words: the command and its arguments.
        standard_input: what it reads.
        hint: the advice if it takes too long.
        timeout_s: how long it may take, in seconds.
        environment: variables to set, or to remove (None).

    Raises:
        BatchUnavailable: it takes too long, or cannot be run.
    """
    try:
        return process.run(words, timeout_s=timeout_s, standard_input=standard_input.encode(), environment=environment)
    except process.TimedOut as error:
        raise BatchUnavailable(f"{words[0]} gave {error}; {hint}") from None
    except OSError as error:
        remedy = f"run this where {system}'s commands are, with them in PATH"
        raise BatchUnavailable(f"{words[0]} cannot be run: {error.strerror}; {remedy}") from None


def refusal(system: str, count: int, ran: process.Finished) -> BatchUnavailable:
    """The error for a submission of `count` jobs that failed. It says whether the jobs may be in the queue."""
    lost = f"; {PERHAPS}" if re.search("time(d )?out|read error", ran.complaint, re.IGNORECASE) else ""
    return BatchUnavailable(f"{system} did not take {count} jobs: {ran.complaint}{lost}")


def options(lines: Iterable[str], directive: str) -> list[str]:
    """The options among a user's lines, without the word that begins an option in a script of the batch system."""
    return [line.removeprefix(directive).strip() for line in lines if line.startswith(OPTION)]


def check(lines: Iterable[str], directive: str, reasons: Mapping[str, str]) -> None:
    """Check that a user's lines contain no option that a submission sets itself.

    Args:
        lines: the user's lines.
        directive: the word that begins an option in a script.
        reasons: why an option is refused, by its first letters.

    Raises:
        UsageError: a line would have no effect, or do harm; the message says why.
    """
    for line in lines:
        for option in options([line], directive):
            if (name := option.split(maxsplit=1)[0] if option else "") in reasons:
                raise UsageError(f"--line={line} is refused: {reasons[name]}")


def duration_s(shown: str) -> float:
    """Read a time in the form `[[HOURS:]MINUTES:]SECONDS`; 0 for a text of another form."""
    if not re.fullmatch(r"[\d:]+(\.\d+)?", shown):
        return 0.0
    total = 0.0
    for part in shown.split(":"):
        total = 60 * total + float(part or 0)
    return total


def script(launch: Launch, header: Sequence[str], host: str, *, writes_itself: bool = False) -> str:
    """The script of a job: what comes first, the user's commands, and then the agent with the shell that stays with it.

    Args:
        launch: what is submitted.
        header: its first lines, with the options; they set `MWPY_JOB`.
        host: what the shell expands to the name of its machine; empty if that is of no use.
        writes_itself: whether the shell opens the files for the output of the job.
    """
    agent = shlex.join(launch.agent_command(launch.resource_path))
    lines = [
        *header,
        f'mwpy_logs={shlex.quote(f"{launch.log_dir}/{launch.mark}.")}"$MWPY_JOB"',
        *(['exec >"$mwpy_logs.out" 2>"$mwpy_logs.err"'] if writes_itself else ()),
        *(line for line in launch.extra if not line.startswith(OPTION)),
        SUPERVISE.format(agent=agent, host=host),
    ]
    return "\n".join(lines)


@define(eq=False, repr=False)
class Ends:
    """Reads how jobs ended from the files that their shells have written.

    The jobs of an earlier overseer are known as soon as their computation has got a job from this one.
    """

    _log_dirs: dict[str, str] = Factory(dict)
    """The folders for the output of jobs, by mark."""
    _marks: dict[str, str] = Factory(dict)
    """The marks of jobs, by the number that all jobs of a submission share."""

    def submitted(self, launch: Launch, job_id: str) -> None:
        """Record one of the jobs that were submitted together."""
        self._log_dirs[launch.mark] = launch.log_dir
        self._marks[_number(job_id)] = launch.mark

    def listed(self, jobs: Iterable[Job]) -> None:
        """Record which jobs exist."""
        self._marks |= {_number(job.job_id): job.mark for job in jobs}

    def stderr(self, job_id: str) -> str:
        """The end of the standard error of a job; empty if it is not known."""
        logs = self._logs(job_id)
        return end_of(f"{logs}.err").strip() if logs else ""

    def outcome(self, job_id: str) -> Outcome | None:
        """How the agent of a job ended; None if its shell has written nothing."""
        try:
            code, ran_s, *host = Path(f"{self._logs(job_id)}.end").read_text(encoding="utf-8").split()
        except (OSError, ValueError):
            return None
        ended = Outcome.of_process(returncode_of_shell(int(code)), float(ran_s), self.stderr(job_id))
        return evolve(ended, host="".join(host))

    def _logs(self, job_id: str) -> str:
        """What the paths of a job's files begin with; empty if it is not known."""
        mark = self._marks.get(_number(job_id), "")
        return f"{self._log_dirs[mark]}/{mark}.{job_id}" if mark in self._log_dirs else ""


def _number(job_id: str) -> str:
    """The number that all jobs of a submission share: 12 in `12.3`, `12[3].server` and `12.server`."""
    return re.split(r"[.\[]", job_id)[0]
