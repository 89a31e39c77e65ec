"""HTCondor, through its commands: `condor_submit`, `condor_q`, `condor_rm` and `condor_history`.

The commands are those of the site, so they fit its daemons and its configuration, and nothing must be installed for
them. (HTCondor's Python bindings are another version than the daemons, which may refuse them, and hold the interpreter
lock while a schedd does not answer.)

Jobs are in the vanilla universe and are marked by the attribute `MwpyMark`. HTCondor transfers the resource file to
each job, so each start has a fresh copy. By default, the program and the script are on a file system that submit and
execute machines share. The user can also let HTCondor transfer them. There is no `on_exit_remove`: an ended job leaves
the queue, and the overseer decides whether to submit another one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mwpy._batch import BatchUnavailable, Launch, end_of
from mwpy._batch._queued import FILES, Language, Queued
from mwpy._system import clock
from mwpy._values import requires
from mwpy._values.errors import UsageError
from mwpy._values.jobs import End, Job, JobState, Outcome

ATTRIBUTES = (
    *("ClusterId", "ProcId", "MwpyMark", "JobStatus", "JobCurrentStartDate", "ServerTime", "LastRejMatchReason"),
    *("HoldReason", "HoldReasonCode", "HoldReasonSubCode", "EnteredCurrentStatus"),
    *("RemoveReason", "ExitBySignal", "ExitCode", "ExitSignal", "Err"),
    *("RemoteHost", "LastRemoteHost"),
)
"""What is asked about a job."""

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

NOT_EXECUTED = 6
"""HoldReasonCode: the program of the job cannot be started, most often because it is not on that machine."""

UNSEEN = "If that machine does not see this path, pack the script (mwpy pack), and use --transfer and --command"

MEMORY_SHORT = (
    "Ask for more memory (--memory), or give the tasks a memory_max: then agents keep within their job's memory"
)


class HTCondor(Queued):
    """The HTCondor of this machine.

    Args:
        memory: the memory that a job asks for, as HTCondor writes it.
        disk: the disk space that a job asks for, as HTCondor writes it.
        transfer: files that HTCondor transfers to each job. If the command contains the path of such a file, the job's
            command contains the name of the transferred file.

    Raises:
        UsageError: HTCondor's commands are not on this machine.
    """

    NAME, SERVER = "HTCondor", "its schedd"
    REMOVE = ("condor_rm", "-reason", "removed by mwpy oversee")
    GONE = "not found$|marked for removal"

    def __init__(self, memory: str = "1GB", disk: str = "1GB", transfer: Sequence[Path] = ()) -> None:
        super().__init__()
        if shutil.which("condor_submit") is None:
            raise UsageError(
                "--with htcondor needs HTCondor's commands, and condor_submit is not in PATH: run this on a machine "
                "where you submit jobs"
            )
        self._memory = memory
        self._disk = disk
        self._transfer = [Path(os.path.abspath(path)) for path in transfer]

    def submit(self, launch: Launch, count: int) -> list[str]:
        """Submit one cluster of jobs.

        Raises:
            BatchUnavailable: HTCondor refused, or its answer was lost; the message says which.
        """
        text = f"{description(launch, self._memory, self._disk, self._transfer)}queue {count}\n"
        found = self.put(launch, count, ("condor_submit", "-terse", "-disable"), text, r"^(\d+)\.")
        return [f"{found[1]}.{process}" for process in range(count)]

    def jobs(self) -> list[Job]:
        """This user's marked jobs in the queue."""
        return [_job(ad) for ad in _ads(self.show("condor_q", *AS_JSON, "-constraint", "MwpyMark =!= undefined"))]

    def known_outcome(self, job_id: str) -> Outcome | None:
        """The history's entry about a job, and the end of its error file.

        Entries that are older than `HISTORY_S` are not searched, because a history may have gigabytes.
        """
        since = f"EnteredCurrentStatus < {int(clock.wall()) - HISTORY_S}"
        ran = self.run("condor_history", *AS_JSON, "-since", since, "-limit", "1", job_id)
        ads = [] if ran.returncode else _ads(ran.out)
        return _outcome(ads[0]) if ads else None


AS_JSON = ("-json", "-attributes", ",".join(ATTRIBUTES))


def _ads(shown: str) -> list[dict[str, Any]]:
    """Read jobs from the output of a command, which is empty without jobs. Expressions are left out.

    Raises:
        BatchUnavailable: the output is incomplete.
    """
    try:
        ads = json.loads(shown or "[]", strict=False)
    except ValueError as error:
        raise BatchUnavailable(f"HTCondor's answer cannot be read: {error}; is its schedd overloaded?") from None
    return [{name: value for name, value in ad.items() if not str(value).startswith("/Expr(")} for ad in ads]


def _settings(*names: str) -> str:
    """A pattern for a line that sets one of these."""
    return rf"(?i)(?:\+|MY\.)?(?:{'|'.join(names)})\s*="


LANGUAGE = Language(
    directive="",
    own={
        r"(?i)queue\b": "the overseer decides how many jobs are submitted",
        _settings("MwpyMark"): "the overseer finds its jobs by their mark",
        _settings("universe"): "the overseer's jobs are in the vanilla universe; `container_image` works there, too",
        _settings("environment"): (
            "the overseer's jobs find their id there; `getenv = NAME` adds variables of the overseer"
        ),
        _settings("executable", "transfer_executable", "arguments"): (
            "the overseer writes the command of its jobs; --command replaces the program and its first arguments"
        ),
        _settings("should_transfer_files", "transfer_input_files"): (
            "the overseer names the files that its jobs need; --transfer adds others"
        ),
        _settings("when_to_transfer_output", "transfer_output_files"): (
            "HTCondor brings no files back from these jobs; tasks return values, or write to a shared folder"
        ),
        _settings("output", "error", "log"): FILES,
    },
    limit=r"(?i)^(allowed_execute_duration|allowed_job_duration|(?:\+|MY\.)MaxRuntime)\s*=\s*(\d+)$",
    seconds=float,
)
"""Of the settings in `description`, a user's line replaces those that are not here. Some pools read `MaxRuntime`."""


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
    job_id = f"{ad['ClusterId']}.{ad['ProcId']}"
    note = str(ad.get("LastRejMatchReason", "")).strip() if state is JobState.QUEUED else ""
    note += f" (`condor_q -better-analyze {job_id}` says which machines match)" if note else ""
    if state is JobState.HELD:
        codes = f"code {ad.get('HoldReasonCode', '?')}, sub code {ad.get('HoldReasonSubCode', '?')}"
        note = f"{ad.get('HoldReason') or 'no reason is given'} ({codes})"
        note += f". {UNSEEN}" if ad.get("HoldReasonCode") == NOT_EXECUTED else ""
        note += f". {MEMORY_SHORT}" if re.search("memory|residentsetsize", note, re.IGNORECASE) else ""
    running_s = max(0.0, ran_s) if state is JobState.RUNNING else 0.0
    return Job(job_id, ad["MwpyMark"], state, running_s, note, _host(ad))


def _host(ad: dict[str, Any]) -> str:
    """The machine on which a job runs or ran last. HTCondor gives the name of a slot, `slot1_2@MACHINE`."""
    return str(ad.get("RemoteHost") or ad.get("LastRemoteHost", "")).rpartition("@")[2]


def _outcome(ad: dict[str, Any]) -> Outcome:
    ran_s = float(ad["EnteredCurrentStatus"] - ad["JobCurrentStartDate"]) if "JobCurrentStartDate" in ad else 0.0
    if ad["JobStatus"] == 3 or not {"ExitCode", "ExitSignal"} & ad.keys():
        return Outcome(End.REMOVED, f"removed: {ad.get('RemoveReason', 'no reason is given')}", None, ran_s)
    returncode = -ad["ExitSignal"] if ad.get("ExitBySignal") else ad["ExitCode"]
    return Outcome.of_process(returncode, ran_s, end_of(ad["Err"]), _host(ad))
