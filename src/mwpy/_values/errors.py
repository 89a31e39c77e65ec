"""Everything that mwpy raises, and the exit codes of its processes.

The class of an error says whose fault it is. Its message says in one line what happened to which task, slave or file,
the reason if it is known, and what to do next. All errors are `MwpyError`s, so one `except` separates them from the
errors of the application.
"""

from __future__ import annotations

from enum import IntEnum

from mwpy._values.last_words import Death

__all__ = [
    "AlgorithmUnavailable",
    "ArgumentNotPicklable",
    "ExitCode",
    "InternalError",
    "MasterUnreachable",
    "MwpyError",
    "ProtocolError",
    "Refused",
    "ResourceFileError",
    "TaskCancelled",
    "TaskFailed",
    "UsageError",
]


class ExitCode(IntEnum):
    """The exit codes of mwpy's processes. A batch system keeps a job in the queue unless the job exits with 0."""

    OK = 0
    """The master shut it down, or the resource file says `finished`."""
    USAGE = 2
    """An option is wrong, a file is missing or incomplete, or a port is in use. Nothing was started."""
    REFUSED = 3
    """The master, or another process at its address, refused this agent."""
    UNREACHABLE = 4
    """No candidate address of the master answered."""
    EVICTED = 5
    """The batch system takes the machine back: SIGTERM came, or the job's time is nearly used up."""
    CANNOT_START = 6
    """The slaves of this agent end before they can take a task."""
    INTERRUPTED = 130
    """Ctrl-C or SIGTERM on the master."""
    FAILED = 255
    """The algorithm raised an exception or returned no valid code; in an agent: the master was lost."""


class MwpyError(Exception):
    """The base of all errors of mwpy."""

    exit_code = ExitCode.FAILED


class UsageError(MwpyError):
    """The caller asked for something that is not possible; the message says what to write instead."""

    exit_code = ExitCode.USAGE


class ResourceFileError(UsageError):
    """A resource file is missing or incomplete, or one of its keys has a value of a wrong type."""


class ArgumentNotPicklable(MwpyError, TypeError):
    """An argument of a task cannot be pickled; raised at the line that submitted the task."""


class ProtocolError(MwpyError):
    """A peer sent something that no correct peer sends. It is the fault of this peer, which is dropped."""


class Refused(MwpyError):
    """The master refused this agent; the message has the master's reason."""

    exit_code = ExitCode.REFUSED


class MasterUnreachable(MwpyError):
    """No candidate address of the master answered in time."""

    exit_code = ExitCode.UNREACHABLE


class AlgorithmUnavailable(MwpyError):
    """A slave cannot run a task algorithm: it is missing there, is another version, or cannot be loaded."""


class InternalError(MwpyError):
    """A fault of mwpy itself. Please report it with the whole message."""


class TaskFailed(MwpyError):
    """A task raised an exception, or its result could not be returned to the master.

    `Result.value` raises it and `Result.error` returns it. Its `__cause__` is the original exception, if the master
    could rebuild it. The type, text and traceback of the original exception are always available as text.

    Args:
        algorithm: name of the task algorithm.
        sid: the slave that ran the task, or None if it never left the master.
        type_name: qualified name of the remote exception's class.
        text: `str()` of the remote exception.
        remote_traceback: the remote traceback as text. If the task is unrunnable because slaves died while they ran it,
            this is the last output of the last of these slaves. Empty if there is none.
    """

    deaths: tuple[Death, ...] = ()
    """The slaves that died while they ran the task, if the task failed for this reason."""

    def __init__(self, algorithm: str, sid: str | None, type_name: str, text: str, remote_traceback: str = "") -> None:
        super().__init__(algorithm, sid, type_name, text, remote_traceback)
        self.algorithm = algorithm
        self.sid = sid
        self.type_name = type_name
        self.text = text
        self.remote_traceback = remote_traceback

    def __str__(self) -> str:
        where = f" on {self.sid}" if self.sid else ""
        story = f"task {self.algorithm} failed{where}: {self.type_name}: {self.text}"
        return f"{story}\n{self.remote_traceback}".rstrip()


class TaskCancelled(TaskFailed):
    """A task was cancelled with `mw.cancel`, so it has no value.

    `Result.error` returns it, and `Result.value` raises it. Its `text` says how far the task was.
    """
