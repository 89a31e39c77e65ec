"""Everything that mwpy raises, and the exit codes of its processes.

Each error says whose fault it is by its class, and in one line what happened, to which task,
slave or file, why as far as known, and what to do next. All are `MwpyError`s, so that one
`except` can tell them from the errors of the application.
"""

from __future__ import annotations

from enum import IntEnum

from mwpy._values.last_words import Death

__all__ = [
    "AlgorithmUnavailable",
    "ArgumentNotPicklable",
    "ExitCode",
    "InternalError",
    "MasterLost",
    "MasterUnreachable",
    "MwpyError",
    "ProtocolError",
    "Refused",
    "ResourceFileError",
    "TaskFailed",
    "UsageError",
]


class ExitCode(IntEnum):
    """What a mwpy process exits with. A batch system keeps every job queued that did not exit 0."""

    OK = 0
    """Told to shut down by the master, or the resource file says `finished`."""
    USAGE = 2
    """A bad option, a missing or torn file, a port in use: nothing was started."""
    REFUSED = 3
    """The master, or somebody else at its address, did not let this agent in."""
    UNREACHABLE = 4
    """No candidate address of the master answered."""
    EVICTED = 5
    """SIGTERM, or the end of the job is near: the batch system wants the machine back."""
    CANNOT_START = 6
    """The slaves of this agent die before they can take a task."""
    INTERRUPTED = 130
    """Ctrl-C or SIGTERM on the master."""
    FAILED = 255
    """The algorithm raised an exception or returned no valid code; in an agent: the master was lost."""


class MwpyError(Exception):
    """The base of all errors of mwpy."""

    exit_code = ExitCode.FAILED


class UsageError(MwpyError):
    """The caller asked for something that cannot be; the message says what to write instead."""

    exit_code = ExitCode.USAGE


class ResourceFileError(UsageError):
    """A resource file is missing, torn or has a wrong type under one of its keys."""


class ArgumentNotPicklable(MwpyError, TypeError):
    """An argument of a task cannot be pickled; raised at the line that submitted the task."""


class ProtocolError(MwpyError):
    """A peer sent something that no correct peer sends. The peer's fault; it is dropped."""


class Refused(MwpyError):
    """The master did not let this agent in; the message carries the master's reason."""

    exit_code = ExitCode.REFUSED


class MasterUnreachable(MwpyError):
    """No candidate address of the master answered in time."""

    exit_code = ExitCode.UNREACHABLE


class MasterLost(MwpyError):
    """The connection to the master broke and the master had not told this agent to go."""


class AlgorithmUnavailable(MwpyError):
    """A slave cannot run a task algorithm: it is missing there, another version, or not loadable."""


class InternalError(MwpyError):
    """A fault of mwpy itself. Please report it with the whole message."""


class TaskFailed(MwpyError):
    """A task raised an exception, or its result could not be brought back.

    Raised by `Result.value` and returned by `Result.error`. The original exception, where the
    master could rebuild it, is `__cause__`; its type, text and traceback are always here as text.

    Args:
        algorithm: name of the task algorithm.
        sid: the slave that ran the task, or None if it never left the master.
        type_name: qualified name of the remote exception's class.
        text: `str()` of the remote exception.
        remote_traceback: the remote traceback as text; if the task was given up because slaves died of it, the last
            one's last words; empty if there is none.
    """

    deaths: tuple[Death, ...] = ()
    """The slaves that died while they ran the task, if that is why it failed."""

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
