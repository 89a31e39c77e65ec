"""Child processes: started in a session of their own, ended with all that they forked, and their end in
words.

A child leads its own session and process group: a terminal's Ctrl-C does not reach it, and one signal ends it
together with whatever it forked. When it is found dead, the rest of its group is killed *before* it is
reaped, because until then the kernel gives its number to nobody else.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

__all__ = ["Child", "describe_exit", "run", "start"]

_WHY = {
    signal.SIGKILL: "the kernel's out-of-memory killer, the batch system or somebody's kill",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGBUS: "a crash in native code, or a full disk or shrunken file behind a memory map",
    signal.SIGILL: "native code for another processor",
    signal.SIGFPE: "a division by zero in native code",
    signal.SIGABRT: "native code gave up; see what it wrote last",
    signal.SIGTERM: "somebody ended it",
    signal.SIGXCPU: "the limit of processor time",
    signal.SIGXFSZ: "the limit of file size",
}


class Child:
    """One started process; made by `start`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._kills_before = _kills()
        self.pid: int = process.pid
        self.peak_bytes = 0
        """The most memory that it, or a program that it waited for, held at a time; known once `poll` told its end."""
        self.outputs: dict[int, int] = {}
        """Non-blocking file descriptors of what it writes to standard output (1) and error (2), if asked for."""
        for number, file in ((1, process.stdout), (2, process.stderr)):
            if file is not None:
                self.outputs[number] = file.fileno()
                os.set_blocking(file.fileno(), False)

    def poll(self) -> int | None:
        """Look whether it ended, and if so kill what is left of its group. Never waits.

        Returns:
            None while it runs; then its exit code, or the negative number of the signal that killed it.
        """
        if self._process.returncode is None:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
            self._signal_group(signal.SIGKILL)
            _, status, usage = os.wait4(self.pid, 0)
            self._process.returncode = os.waitstatus_to_exitcode(status)
            self.peak_bytes = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return self._process.returncode

    def kill(self) -> None:
        """Kill it and all that it forked. `poll` tells when it is gone. No error if it is gone already."""
        if self._process.returncode is None:
            self._signal_group(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it, and not what it forked, to end (SIGTERM). No error if it is gone already."""
        self._process.terminate()

    def describe_exit(self) -> str:
        """Its end in words; call it once `poll` has told that it ended."""
        assert self._process.returncode is not None, "it has not ended, or nobody looked"
        here, anywhere = (after - before for after, before in zip(_kills(), self._kills_before, strict=True))
        return describe_exit(self._process.returncode, out_of_memory=OUT_OF_MEMORY[0 if here else 1 if anywhere else 2])

    def close(self) -> None:
        """Close the pipes of its standard output and error."""
        for file in (self._process.stdout, self._process.stderr):
            if file is not None:
                file.close()

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
            os.killpg(self.pid, number)


def start(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    keep_output: bool = False,
) -> Child:
    """Start a process in a session of its own, with no standard input and this one's standard output and error.

    Args:
        command: program and arguments.
        environment: variables to set on top of this process's own.
        pass_fds: file descriptors that it inherits, under the same numbers; no other one is.
        keep_output: make its standard output and error pipes, `Child.outputs`, which must then be read.

    Raises:
        OSError: it cannot be started.
    """
    return Child(
        subprocess.Popen(
            command,
            env={**os.environ, **(environment or {})},
            pass_fds=pass_fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if keep_output else None,
            stderr=subprocess.PIPE if keep_output else None,
            start_new_session=True,
            bufsize=0,
        )
    )


def run(command: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> tuple[str, str, str]:
    """Run a short program to its end: that in words, and what it wrote to standard output and error.

    Raises:
        OSError: it cannot be started.
    """
    child = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, err = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        out, err = child.communicate()
        return f"still running after {timeout_s:.0f} s, and killed", out, err
    return describe_exit(child.returncode), out, err


OUT_OF_MEMORY = (
    "out of memory: the kernel's out-of-memory killer struck in this job's control group meanwhile",
    "out of memory, most likely: the kernel's out-of-memory killer struck on this machine meanwhile",
    "",
)
"""What is known of a slave that was killed: the killer struck here, somewhere, or not that one could see."""


def describe_exit(returncode: int, *, out_of_memory: str = "") -> str:
    """A process's end in words: its exit code, or the signal and what usually sends it.

    Args:
        returncode: exit code, or the negative number of a signal.
        out_of_memory: what is known of the kernel's killing for lack of memory while it ran; one of `OUT_OF_MEMORY`.
    """
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        number = signal.Signals(-returncode)
    except ValueError:  # a real-time signal
        return f"killed by signal {-returncode}"
    why = (out_of_memory if number is signal.SIGKILL else "") or _WHY.get(number)
    return f"killed by signal {-returncode} ({number.name})" + (f": {why}" if why else "")


def _kills() -> tuple[int, int]:
    """How many processes the kernel has killed for lack of memory, in this control group and on this machine.

    Where it does not tell, 0.
    """
    group = 0
    for line in _lines("/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            group += _counted(f"/sys/fs/cgroup{path}/memory.events")
        elif controllers == "memory":
            group += _counted(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
    return group, _counted("/proc/vmstat")


def _counted(path: str) -> int:
    return next((int(line.split()[1]) for line in _lines(path) if line.startswith("oom_kill ")), 0)


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []
