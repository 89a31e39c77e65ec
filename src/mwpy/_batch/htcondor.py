"""HTCondor, through its Python bindings (`htcondor2`), which `_htcondor_calls` calls in a process of its own.

Jobs are vanilla, marked by the attribute `MwpyMark`. The resource file is carried to each job, so that each start has a
fresh copy. Program and script are used where they are, on a file system that submit and execute machines share, unless
they are to be carried too. No `on_exit_remove`: what ends leaves the queue, and the overseer decides about another.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mwpy._batch import BatchUnavailable, Job, JobState, Launch, Outcome
from mwpy._batch._command import end_of, killed
from mwpy._values.errors import UsageError

__all__ = ["HTCondor", "description"]

CALL_S = 60.0
"""Seconds that a call gets: the bindings themselves give up after 20 in most cases."""

HISTORY_S = 3600
"""Seconds for which the history is searched."""

END = "SLURM_JOB_END_TIME=$$([(AllowedExecuteDuration?:AllowedJobDuration)+time()?:false])"
"""Tells a job when its time is over, as Slurm does; worked out at each start, and no number where it has no limit."""

STATES = {
    1: JobState.QUEUED,
    2: JobState.RUNNING,
    3: JobState.LEAVING,
    4: JobState.LEAVING,
    5: JobState.HELD,
    6: JobState.RUNNING,
    7: JobState.RUNNING,
}
"""By JobStatus: idle, running, removed, completed, held, transferring output, suspended."""


class HTCondor:
    """The HTCondor of this machine.

    Args:
        memory: that a job asks for, as HTCondor writes it.
        disk: the same.
        transfer: files that are carried to each job. Where the command names one, it is named as it is there.

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
        self._calls: subprocess.Popen[bytes] | None = None

    def submit(self, launch: Launch, count: int) -> list[str]:
        """Submit one cluster of jobs."""
        cluster, processes = self._call("submit", description(launch, self._memory, self._disk, self._transfer), count)
        return [f"{cluster}.{process}" for process in range(processes)]

    def jobs(self) -> list[Job]:
        """The marked jobs in the queue."""
        return [_job(ad) for ad in self._call("query")]

    def remove(self, job_ids: Sequence[str]) -> None:
        """Remove jobs."""
        self._call("remove", list(job_ids))

    def outcome(self, job_id: str) -> Outcome | None:
        """What the history has of a job, and the end of its error file."""
        cluster, process = job_id.split(".")
        try:
            ads = self._call("history", int(cluster), int(process), int(time.time()) - HISTORY_S)
        except BatchUnavailable:
            return None
        return _outcome(ads[0]) if ads else None

    # ---- calls ---------------------------------------------------------------------------------------------

    def _call(self, name: str, *arguments: Any) -> Any:
        if self._calls is None:
            self._calls = subprocess.Popen(
                [sys.executable, "-m", "mwpy._batch._htcondor_calls"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                bufsize=0,
            )
        done = False
        try:
            answer = json.loads(_exchange(self._calls, json.dumps([name, arguments]).encode() + b"\n"))
            done = True
        finally:
            if not done:
                self._calls.kill()
                self._calls.communicate()
                self._calls = None
        if "error" in answer:
            down = ". Is its schedd running on this machine?" if "local daemon" in answer["error"] else ""
            raise BatchUnavailable(f"HTCondor says: {answer['error'].rstrip('.')}{down}")
        return answer["answer"]


def description(launch: Launch, memory: str, disk: str, transfer: Sequence[Path]) -> str:
    """The submit description of a launch."""
    resource = Path(launch.resource_path)
    command = launch.agent_command(resource.name)
    carried = [resource]
    program = shutil.which(command[0]) or command[0]
    for path in transfer:
        if os.path.abspath(program) != str(path):
            carried.append(path)
            command = [path.name if os.path.abspath(word) == str(path) else word for word in command]
    if bad := [str(path) for path in carried if "," in str(path)]:
        raise BatchUnavailable(f"HTCondor cannot carry {bad[0]}, as there is a comma in its name: rename it")
    own = Path(os.path.abspath(program)) in transfer
    logs = f"{_verbatim(launch.log_dir)}/{launch.mark}"
    lines = {
        "universe": "vanilla",
        "executable": _verbatim(program),
        "transfer_executable": "true" if own else "false",
        "arguments": _verbatim(_arguments(command[1:])),
        "environment": f'"MWPY_JOB=$(CLUSTER).$(PROCESS) {END}"',
        "initialdir": _verbatim(os.getcwd()),
        "should_transfer_files": "YES",
        "transfer_input_files": _verbatim(", ".join(map(str, carried))),
        "when_to_transfer_output": "ON_EXIT",  # an evicted job's old copies must not win over fresh ones
        "transfer_output_files": '""',
        "request_cpus": str(launch.slaves),
        "request_memory": memory,
        "request_disk": disk,
        "output": f"{logs}.$(CLUSTER).$(PROCESS).out",
        "error": f"{logs}.$(CLUSTER).$(PROCESS).err",
        "log": f"{logs}.log",
        "notification": "NEVER",
        "MY.MwpyMark": f'"{launch.mark}"',
    }
    return "\n".join([*(f"{name} = {value}" for name, value in lines.items()), *launch.extra]) + "\n"


def _exchange(calls: subprocess.Popen[bytes], request: bytes) -> bytes:
    """Send a request and read the answer, a line, in the time that a call gets."""
    assert calls.stdin is not None
    assert calls.stdout is not None
    answer = b""
    deadline = time.monotonic() + CALL_S
    try:
        calls.stdin.write(request)
        while not answer.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([calls.stdout], [], [], left)[0]:
                raise BatchUnavailable(f"HTCondor did not answer within {CALL_S:.0f} s: is its schedd overloaded?")
            part = os.read(calls.stdout.fileno(), 1 << 20)
            if not part:
                raise BatchUnavailable(f"HTCondor's Python bindings ended with exit code {calls.wait()}")
            answer += part
    except BrokenPipeError:
        raise BatchUnavailable(f"HTCondor's Python bindings ended with exit code {calls.wait()}") from None
    return answer


def _arguments(words: Sequence[str]) -> str:
    """Words in HTCondor's new syntax for arguments."""
    quoted = " ".join("'" + word.replace("'", "''") + "'" for word in words)
    return '"' + quoted.replace('"', '""') + '"'


def _verbatim(text: str) -> str:
    """A text in which HTCondor expands nothing."""
    return text.replace("$", "$(DOLLAR)")


def _job(ad: dict[str, Any]) -> Job:
    state = STATES.get(ad["JobStatus"], JobState.LEAVING)
    ran_s = float(ad["ServerTime"] - ad["JobCurrentStartDate"]) if "JobCurrentStartDate" in ad else 0.0
    note = str(ad.get("LastRejMatchReason", "")).strip() if state is JobState.QUEUED else ""
    if state is JobState.HELD:
        codes = f"code {ad.get('HoldReasonCode', '?')}, sub code {ad.get('HoldReasonSubCode', '?')}"
        note = f"{ad.get('HoldReason') or 'no reason is given'} ({codes})"
    running_s = max(0.0, ran_s) if state is JobState.RUNNING else 0.0
    return Job(f"{ad['ClusterId']}.{ad['ProcId']}", ad["MwpyMark"], state, running_s, note)


def _outcome(ad: dict[str, Any]) -> Outcome:
    ran_s = float(ad["EnteredCurrentStatus"] - ad["JobCurrentStartDate"]) if "JobCurrentStartDate" in ad else 0.0
    if ad["JobStatus"] == 3 or not {"ExitCode", "ExitSignal"} & ad.keys():
        return Outcome(f"removed: {ad.get('RemoveReason', 'no reason is given')}", None, ran_s, "")
    stderr = end_of(ad["Err"])
    if ad.get("ExitBySignal"):
        return Outcome(killed(ad["ExitSignal"]), None, ran_s, stderr)
    return Outcome(f"exit code {ad['ExitCode']}", ad["ExitCode"], ran_s, stderr)
