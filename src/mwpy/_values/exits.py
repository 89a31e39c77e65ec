"""How a process ended, in words: the one wording for slaves, agents, jobs and commands.

A *return code* is an exit code, or the negative number of the signal that killed the process, as in `subprocess`.
"""

from __future__ import annotations

import signal

from mwpy._values.errors import ExitCode

__all__ = ["REPLACED", "describe_exit", "is_from_outside", "returncode_of_shell"]

REPLACED = "replaced after"
"""How the reason begins for which a slave ended with which nothing was wrong: it had run enough tasks, or had grown."""

_USUAL_CAUSES = {
    signal.SIGKILL: "the kernel's out-of-memory killer, the batch system or a person's kill command",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGBUS: "a crash in native code, or a full disk or a shrunken file behind a memory map",
    signal.SIGILL: "native code for another processor",
    signal.SIGFPE: "a division by zero in native code",
    signal.SIGABRT: "native code gave up; see what it wrote last",
    signal.SIGTERM: "another process asked it to end",
    signal.SIGXCPU: "the limit of processor time",
    signal.SIGXFSZ: "the limit of file size",
}

_LAST_SIGNAL = 64

_FROM_OUTSIDE = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGTERM}
"""The signals that another process sends. All others follow from what the process itself did."""


def describe_exit(returncode: int, *, cause: str = "") -> str:
    """Describe the end of a process: its exit code, or the signal and what usually sends that signal.

    Args:
        returncode: the exit code, or the negative number of a signal.
        cause: what is known about why the process was killed with SIGKILL; it replaces the usual causes.
    """
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        number = signal.Signals(-returncode)
    except ValueError:  # a real-time signal
        return f"killed by signal {-returncode}"
    cause = (cause if number is signal.SIGKILL else "") or _USUAL_CAUSES.get(number, "")
    return f"killed by signal {-returncode} ({number.name})" + (f": {cause}" if cause else "")


def is_from_outside(returncode: int | None) -> bool:
    """Whether a process was ended by another one, and not by what it did itself. None stands for no process."""
    return returncode is not None and -returncode in _FROM_OUTSIDE


def returncode_of_shell(code: int) -> int:
    """Convert the exit code that a shell reports for its command into a return code.

    A shell adds 128 to the number of the signal that killed the command. mwpy's own code 130 is no signal.
    """
    is_signal = 128 < code <= 128 + _LAST_SIGNAL and code != ExitCode.INTERRUPTED
    return 128 - code if is_signal else code
