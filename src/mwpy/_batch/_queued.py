"""What HTCondor, Slurm, Grid Engine and PBS share: they are used through commands.

Grid Engine and PBS say how a job has ended only where the site keeps records of ended jobs, and some seconds late. So
in their jobs a shell stays with the agent, and writes into a file how the agent ended, beside the output of the job.
There is no such file if the shell was killed, too. Then the batch system is asked.
"""

from __future__ import annotations

import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from attrs import Factory, define, frozen

from mwpy._batch import BatchUnavailable, Launch, end_of
from mwpy._system import process
from mwpy._values.errors import UsageError, returncode_of_shell
from mwpy._values.jobs import Job, Outcome
from mwpy._values.requires import MEMORY

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


@frozen
class Language:
    """The lines that a user adds to submissions, in the language of a batch system."""

    directive: str
    """The word that begins an option in a script of the batch system; empty if each line is an option."""
    own: Mapping[str, str]
    """Why an option is refused because a submission sets it itself, by a pattern for its beginning."""
    limit: str
    """A pattern for the options that limit the time of a job: the name of the limit, and its value. Of the same name,
    the last one counts."""
    seconds: Callable[[str], float]
    """Reads such a value; 0 is no limit."""
    warned_s: float = 0.0
    """How many seconds before its time limit a job gets SIGTERM."""

    def options(self, lines: Iterable[str]) -> list[str]:
        """The options among lines, without the word that begins them."""
        found = [line for line in lines if not self.directive or line.startswith(OPTION)]
        return [line.removeprefix(self.directive).strip() for line in found]

    def check(self, lines: Iterable[str]) -> None:
        """Check that lines contain no option that a submission sets itself.

        Raises:
            UsageError: a line would have no effect, or do harm; the message says why.
        """
        for line in lines:
            for option in self.options([line]):
                for pattern, reason in self.own.items():
                    if re.match(pattern, option):
                        raise UsageError(f"--line={line} is refused: {reason}")

    def time_limit_s(self, lines: Iterable[str]) -> float | None:
        """Return after how many seconds a job must end, by the limits in lines; None if they set none."""
        found: dict[str, float] = {}
        for option in self.options(lines):
            found |= {name: self.seconds(shown) for name, shown in re.findall(self.limit, option)}
        shortest = min(filter(None, found.values()), default=None)
        return shortest and max(0.0, shortest - self.warned_s)


def duration_s(shown: str) -> float:
    """Read a time in the form `[[HOURS:]MINUTES:]SECONDS`; 0 for a text of another form."""
    if not re.fullmatch(r"[\d:]+(\.\d+)?", shown):
        return 0.0
    total = 0.0
    for part in shown.split(":"):
        total = 60 * total + float(part or 0)
    return total


def script(launch: Launch, language: Language, header: Sequence[str], host: str, *, writes_itself: bool = False) -> str:
    """The script of a job: what comes first, the user's commands, and then the agent with the shell that stays with it.

    Args:
        launch: what is submitted.
        language: that of the user's lines.
        header: its first lines, with the options; they set `MWPY_JOB`.
        host: what the shell expands to the name of its machine; empty if that is of no use.
        writes_itself: whether the shell opens the files for the output of the job.
    """
    agent = shlex.join(launch.agent_command(launch.resource_path))
    mib, limit_s = launch.mib(MEMORY), language.time_limit_s(launch.extra)
    lines = [
        *header,
        *([f"export SLURM_MEM_PER_NODE={mib}"] if mib else ()),
        *([f"export SLURM_JOB_END_TIME=$(($(date +%s) + {limit_s:.0f}))"] if limit_s else ()),
        f'mwpy_logs={shlex.quote(f"{launch.log_dir}/{launch.mark}.")}"$MWPY_JOB"',
        *(['exec >"$mwpy_logs.out" 2>"$mwpy_logs.err"'] if writes_itself else ()),
        *(line for line in launch.extra if not line.startswith(OPTION)),
        SUPERVISE.format(agent=agent, host=host),
    ]
    return "\n".join(lines)


@define(eq=False, repr=False)
class Queued(ABC):
    """A batch system with a queue, used through its commands, for the user of this process.

    It knows where its jobs write, and reads how they ended from the files of their shells. The jobs of an earlier
    overseer are known as soon as their computation has got a job from this one.
    """

    NAME: ClassVar[str]
    SERVER: ClassVar[str]
    """The program that answers its commands."""
    REMOVE: ClassVar[Sequence[str]] = ("qdel",)
    """The command that removes jobs."""
    GONE: ClassVar[str]
    """A pattern for what this command says about a job that will leave, or has left."""

    _log_dirs: dict[str, str] = Factory(dict)
    """The folders for the output of jobs, by mark."""
    _marks: dict[str, str] = Factory(dict)
    """The marks of jobs, by the number that all jobs of a submission share."""

    def free_places(self, slaves: int) -> None:  # noqa: B027
        """Jobs are always taken."""

    def remove(self, job_ids: Sequence[str]) -> None:
        """Remove jobs. Some of them may have ended already."""
        if not job_ids:
            return
        ran = self.run(*self.REMOVE, *job_ids)
        lines = [line for line in f"{ran.out}\n{ran.err}".splitlines() if line.strip()] if ran.returncode else []
        wrong = [line for line in lines if not re.search(self.GONE, line, re.IGNORECASE)]
        if ran.returncode and not lines:
            wrong = [ran.complaint]
        if wrong:
            raise BatchUnavailable(f"{self.NAME} did not remove {len(job_ids)} jobs: {'; '.join(wrong)[:500]}")

    def outcome(self, job_id: str) -> Outcome | None:
        """How a job ended: what its shell has written, or else what the batch system knows."""
        logs = self._logs(job_id)
        try:
            code, ran_s, *host = Path(f"{logs}.end").read_text(encoding="utf-8").split()
            return Outcome.of_process(returncode_of_shell(int(code)), float(ran_s), self.stderr(job_id), *host)
        except (OSError, ValueError):
            pass
        try:
            return self.known_outcome(job_id)
        except BatchUnavailable:
            return None

    @abstractmethod
    def known_outcome(self, job_id: str) -> Outcome | None:
        """What the batch system knows about the end of a job.

        Raises:
            BatchUnavailable: it does not answer.
        """

    def run(self, *words: str, standard_input: str = "", hint: str = "", timeout_s: float = 0.0) -> process.Finished:
        """Run a command of the batch system.

        Args:
            words: the command and its arguments.
            standard_input: what it reads.
            hint: the advice if it takes too long.
            timeout_s: how long it may take, in seconds; 0 for the usual time.

        Raises:
            BatchUnavailable: it takes too long, or cannot be run.
        """
        environment, data = self.environment(), standard_input.encode()
        try:
            return process.run(words, timeout_s=timeout_s or TIMEOUT_S, standard_input=data, environment=environment)
        except process.TimedOut as error:
            raise BatchUnavailable(f"{words[0]} gave {error}; {hint or f'is {self.SERVER} overloaded?'}") from None
        except OSError as error:
            remedy = f"run this where {self.NAME}'s commands are, with them in PATH"
            raise BatchUnavailable(f"{words[0]} cannot be run: {error.strerror}; {remedy}") from None

    def environment(self) -> Mapping[str, str | None]:
        """Variables to set for the commands, or to remove (None)."""
        return {}

    def put(self, launch: Launch, count: int, words: Sequence[str], text: str, form: str) -> re.Match[str]:
        """Submit jobs. Return what the answer has in this form; its first group is the number that they share.

        Raises:
            BatchUnavailable: the batch system refused, or its answer was lost; the message says which.
        """
        ran = self.run(*words, standard_input=text, hint=PERHAPS)
        found = re.search(form, ran.out, re.MULTILINE)
        if ran.returncode or found is None:
            lost = f"; {PERHAPS}" if re.search("time(d )?out|read error", ran.complaint, re.IGNORECASE) else ""
            raise BatchUnavailable(f"{self.NAME} did not take {count} jobs: {ran.complaint}{lost}")
        self._log_dirs[launch.mark] = launch.log_dir
        self._marks[found[1]] = launch.mark
        return found

    def show(self, *words: str, but: str = "") -> str:
        """What a command shows about the queue; `but` is a pattern for complaints that are none.

        Raises:
            BatchUnavailable: the batch system does not answer.
        """
        ran = self.run(*words)
        complaints = ran.complaint.split("; ") if ran.returncode else []
        if wrong := [each for each in complaints if not (but and re.search(but, each, re.IGNORECASE))]:
            text = "; ".join(wrong)[:500]
            raise BatchUnavailable(f"{self.NAME} does not show its queue: {text}; is {self.SERVER} running?")
        return ran.out

    def listed(self, jobs: list[Job]) -> list[Job]:
        """Record which jobs exist, and return them."""
        self._marks |= {_number(job.job_id): job.mark for job in jobs}
        return jobs

    def stderr(self, job_id: str) -> str:
        """The end of the standard error of a job; empty if it is not known."""
        return end_of(f"{self._logs(job_id)}.err").strip()

    def _logs(self, job_id: str) -> str:
        """What the paths of a job's files begin with; of no file if it is not known."""
        mark = self._marks.get(_number(job_id), "")
        return f"{self._log_dirs.get(mark, '/dev/null')}/{mark}.{job_id}"


def _number(job_id: str) -> str:
    """The number that all jobs of a submission share: 12 in `12.3`, `12_3`, `12[3].server` and `12.server`."""
    return re.split(r"[._\[]", job_id)[0]
