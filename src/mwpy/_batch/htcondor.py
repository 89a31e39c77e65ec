"""HTCondor, through its Python bindings (`htcondor2`). A process of its own calls them; see `_htcondor_calls`.

Jobs are in the vanilla universe and are marked by the attribute `MwpyMark`. HTCondor transfers the resource file to
each job, so each start has a fresh copy. By default, the program and the script are on a file system that submit and
execute machines share. The user can also let HTCondor transfer them. There is no `on_exit_remove`: an ended job leaves
the queue, and the overseer decides whether to submit another one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import evolve

from mwpy._batch import BatchUnavailable, Launch, _htcondor_calls, end_of
from mwpy._system import clock, process
from mwpy._values import requires
from mwpy._values.errors import UsageError
from mwpy._values.jobs import End, Job, JobState, Outcome

CALL_S = 60.0
"""Seconds that a call may take. The bindings themselves give up after 20 s in most cases."""

HISTORY_S = 3600
"""How far back the history is searched, in seconds."""

END = "SLURM_JOB_END_TIME=$$([(AllowedExecuteDuration?:AllowedJobDuration)+time()?:false])"
"""The variable with the time when the job will be ended, under the name that Slurm uses. HTCondor computes it at each
start. For a job without a limit the value is not a number."""

MEMORY = "SLURM_MEM_PER_NODE=$$([RequestMemory])"
"""The variable with the memory of the job, in MiB, under the name that Slurm uses."""

LEASE_S = "300"
"""Seconds without contact to a machine until HTCondor runs its job elsewhere. HTCondor's own value is 40 minutes."""

STATES = {
    1: JobState.QUEUED,
    2: JobState.RUNNING,
    3: JobState.LEAVING,
    4: JobState.LEAVING,
    5: JobState.HELD,
    6: JobState.RUNNING,
    7: JobState.RUNNING,
}
"""The states for JobStatus: idle, running, removed, completed, held, transferring output, suspended."""

LIMIT_EXCEEDED = 34
"""HoldReasonCode: the kernel killed the job because it used too much memory, or it used too much disk space."""

POLICIES = (3, 26)
"""HoldReasonCode: an expression of the job or of the pool says that the job is held."""


class HTCondor:
    """The HTCondor of this machine.

    Args:
        memory: the memory that a job asks for, as HTCondor writes it.
        disk: the disk space that a job asks for, as HTCondor writes it.
        transfer: files that HTCondor transfers to each job. If the command contains the path of such a file, the job's
            command contains the name of the transferred file.

    Raises:
        UsageError: the bindings are not installed.
    """

    def __init__(self, memory: str = "1GB", disk: str = "1GB", transfer: Sequence[Path] = ()) -> None:
        if importlib.util.find_spec("htcondor2") is None:
            raise UsageError(
                "--with htcondor needs HTCondor's Python bindings: install them with "
                "`pip install 'mwpy-cluster[htcondor]'`"
            )
        self._memory = memory
        self._disk = disk
        self._transfer = [Path(os.path.abspath(path)) for path in transfer]

    def submit(self, launch: Launch, count: int) -> list[str]:
        """Submit one cluster of jobs."""
        cluster, processes = self._call("submit", description(launch, self._memory, self._disk, self._transfer), count)
        return [f"{cluster}.{process}" for process in range(processes)]

    def free_places(self, slaves: int) -> None:
        """Jobs are always taken."""

    def jobs(self) -> list[Job]:
        """The marked jobs in the queue."""
        return [_job(ad) for ad in self._call("query")]

    def remove(self, job_ids: Sequence[str]) -> None:
        """Remove jobs."""
        self._call("remove", list(job_ids))

    def outcome(self, job_id: str) -> Outcome | None:
        """The history's entry about a job, and the end of its error file."""
        cluster, process = job_id.split(".")
        try:
            ads = self._call("history", int(cluster), int(process), int(clock.wall()) - HISTORY_S)
        except BatchUnavailable:
            return None
        return _outcome(ads[0]) if ads else None

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call a function of `_htcondor_calls` in a process of its own."""
        command = [sys.executable, "-P", _htcondor_calls.__file__]  # -P: the modules beside it are not those it imports
        try:
            ran = process.run(command, timeout_s=CALL_S, standard_input=json.dumps([name, arguments]).encode())
        except process.TimedOut as error:
            raise BatchUnavailable(f"HTCondor gave {error}: is its schedd overloaded?") from None
        except OSError as error:
            raise BatchUnavailable(f"HTCondor's Python bindings cannot be called: {error}") from error
        if ran.returncode:
            raise BatchUnavailable(f"HTCondor's Python bindings ended with {ran.end}")
        answer = json.loads(ran.out)
        if "error" in answer:
            hint = ". Is its schedd running on this machine?" if "local daemon" in answer["error"] else ""
            raise BatchUnavailable(f"HTCondor says: {answer['error'].rstrip('.')}{hint}")
        return answer["answer"]


_LIMIT = re.compile(
    r"(?:allowed_execute_duration|allowed_job_duration|(?:\+|MY\.)MaxRuntime)\s*=\s*(\d+)", re.IGNORECASE
)
"""The lines that limit the time of a job, in seconds. Some pools read `MaxRuntime`."""


def time_limit_s(lines: Sequence[str]) -> float | None:
    """Return the time limit that a user's lines set for a job, in seconds; None if they set none."""
    found = [_LIMIT.fullmatch(line.strip()) for line in lines]
    return min((float(each[1]) for each in found if each is not None), default=None)


_SET = re.compile(r"\s*(?:(\+|MY\.)?(\w+)\s*=|(queue)\b)", re.IGNORECASE)
"""A line that sets something, or that submits jobs."""

COMMAND = "the overseer writes the command of its jobs; --command replaces the program and its first arguments"
FILES = "the overseer names the files that its jobs need; --transfer adds others"
BACK = "HTCondor brings no files back from these jobs; tasks return values, or write to a shared folder"
OUTPUT = "the overseer names the files of its jobs; --log-dir chooses their folder"
OWN_REASONS = {
    "queue": "the overseer decides how many jobs are submitted",
    "mwpymark": "the overseer finds its jobs by their mark",
    "universe": "the overseer's jobs are in the vanilla universe; `container_image` works there, too",
    "environment": "the overseer's jobs find their id there; `getenv = NAME` adds variables of the overseer",
    **dict.fromkeys(("executable", "transfer_executable", "arguments"), COMMAND),
    **dict.fromkeys(("should_transfer_files", "transfer_input_files"), FILES),
    **dict.fromkeys(("when_to_transfer_output", "transfer_output_files"), BACK),
    **dict.fromkeys(("output", "error", "log"), OUTPUT),
}
"""Why a user's line cannot replace what `description` sets; for the other lines there, a user's line counts."""


def check_lines(lines: Sequence[str]) -> None:
    """Check that a user's lines replace nothing that the overseer or its jobs rely on.

    Raises:
        UsageError: a line would do that; the message says why it is not allowed.
    """
    for line in lines:
        found = _SET.match(line)
        name = "" if found is None else (found[3] or found[2]).lower()
        if name in OWN_REASONS:
            raise UsageError(f"--line={line} is refused: {OWN_REASONS[name]}")


def description(launch: Launch, memory: str, disk: str, transfer: Sequence[Path]) -> str:
    """The submit description of a launch."""
    resource = Path(launch.resource_path)
    command = launch.bare_command(resource.name)
    transferred = [resource]
    program = shutil.which(command[0]) or command[0]
    for path in transfer:
        if os.path.abspath(program) != str(path):
            transferred.append(path)
            command = [path.name if os.path.abspath(word) == str(path) else word for word in command]
    if bad := [str(path) for path in transferred if "," in str(path)]:
        raise BatchUnavailable(f"HTCondor cannot transfer {bad[0]}, because its name contains a comma: rename it")
    transfers_program = Path(os.path.abspath(program)) in transfer
    if launch.prologue:  # the shell is what HTCondor starts; it finds a transferred program beside it
        if transfers_program:
            transferred.append(Path(os.path.abspath(program)))
        command = [f"./{Path(program).name}" if transfers_program else program, *command[1:]]
        command, transfers_program = launch.after_prologue(command), False
        program = command[0]
    logs = f"{_verbatim(launch.log_dir)}/{launch.mark}"
    lines = {
        "universe": "vanilla",
        "executable": _verbatim(program),
        "transfer_executable": "true" if transfers_program else "false",
        "arguments": _verbatim(_arguments(command[1:])),
        "environment": f'"MWPY_JOB=$(CLUSTER).$(PROCESS) {END} {MEMORY}"',
        "initialdir": _verbatim(os.getcwd()),
        "should_transfer_files": "YES",
        "transfer_input_files": _verbatim(", ".join(map(str, transferred))),
        "when_to_transfer_output": "ON_EXIT",  # old copies of an evicted job must not replace fresh ones
        "transfer_output_files": '""',
        "job_lease_duration": LEASE_S,
        "request_cpus": str(launch.cpus),
        **({"request_gpus": str(launch.gpus)} if launch.gpus else {}),
        "request_memory": f"{mib}MB" if (mib := launch.mib(requires.MEMORY)) else memory,
        "request_disk": f"{mib}MB" if (mib := launch.mib(requires.DISK)) else disk,
        "output": f"{logs}.$(CLUSTER).$(PROCESS).out",
        "error": f"{logs}.$(CLUSTER).$(PROCESS).err",
        "log": f"{logs}.log",
        "batch_name": _verbatim(launch.name or resource.stem),
        "notification": "NEVER",
        "MY.MwpyMark": f'"{launch.mark}"',
    }
    text = [*(f"{name} = {value}" for name, value in lines.items()), *launch.extra]
    for host in launch.avoided:  # in addition to the requirements that the user's lines may contain
        text.append(f'requirements = ($(requirements:true)) && (TARGET.Machine =!= "{host}")')
    return "\n".join(text) + "\n"


def _arguments(words: Sequence[str]) -> str:
    """Words in HTCondor's new syntax for arguments."""
    quoted = " ".join("'" + word.replace("'", "''") + "'" for word in words)
    return '"' + quoted.replace('"', '""') + '"'


def _verbatim(text: str) -> str:
    """Quote a text, so that HTCondor does not expand anything in it."""
    return text.replace("$", "$(DOLLAR)")


def _job(ad: dict[str, Any]) -> Job:
    state = STATES.get(ad["JobStatus"], JobState.LEAVING)
    ran_s = float(ad["ServerTime"] - ad["JobCurrentStartDate"]) if "JobCurrentStartDate" in ad else 0.0
    note = str(ad.get("LastRejMatchReason", "")).strip() if state is JobState.QUEUED else ""
    if state is JobState.HELD:
        codes = f"code {ad.get('HoldReasonCode', '?')}, sub code {ad.get('HoldReasonSubCode', '?')}"
        note = f"{ad.get('HoldReason') or 'no reason is given'} ({codes})"
    running_s = max(0.0, ran_s) if state is JobState.RUNNING else 0.0
    memory = _too_much_memory(ad) if state is JobState.HELD else None
    return Job(f"{ad['ClusterId']}.{ad['ProcId']}", ad["MwpyMark"], state, running_s, note, _host(ad), memory)


def _too_much_memory(ad: dict[str, Any]) -> tuple[int, int] | None:
    """How many bytes of memory a held job used and had asked for, if it is held because of its memory.

    HTCondor rounds up what it has measured, and policies compare the rounded number.
    """
    used, has = 1024 * ad.get("ResidentSetSize", 0), 1024 * 1024 * ad.get("RequestMemory", 0)
    if not re.search("memory|residentsetsize", ad.get("HoldReason", ""), re.IGNORECASE):
        return None
    code = ad.get("HoldReasonCode")
    return (used, has) if code == LIMIT_EXCEEDED or (code in POLICIES and used > has) else None


def _host(ad: dict[str, Any]) -> str:
    """The machine on which a job runs or ran last. HTCondor gives the name of a slot, `slot1_2@MACHINE`."""
    return str(ad.get("RemoteHost") or ad.get("LastRemoteHost", "")).rpartition("@")[2]


def _outcome(ad: dict[str, Any]) -> Outcome:
    ran_s = float(ad["EnteredCurrentStatus"] - ad["JobCurrentStartDate"]) if "JobCurrentStartDate" in ad else 0.0
    if ad["JobStatus"] == 3 or not {"ExitCode", "ExitSignal"} & ad.keys():
        return Outcome(End.REMOVED, f"removed: {ad.get('RemoveReason', 'no reason is given')}", None, ran_s)
    returncode = -ad["ExitSignal"] if ad.get("ExitBySignal") else ad["ExitCode"]
    return evolve(Outcome.of_process(returncode, ran_s, end_of(ad["Err"])), host=_host(ad))
