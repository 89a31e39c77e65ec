"""Everything that mwpy raises, and the exit codes of its processes.

The class of an error says whose fault it is. Its message says in one line what happened to which task, slave or file,
the reason if it is known, and what to do next. All errors are `MwpyError`s, so one `except` separates them from the
errors of the application.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from enum import IntEnum
from reprlib import Repr
from types import TracebackType
from typing import Any

from attrs import frozen

from mwpy._values.bounds import TaskId
from mwpy._values.last_words import Death
from mwpy._values.phrases import counted


class ExitCode(IntEnum):
    """The exit codes of mwpy's processes. A batch system keeps a job in the queue unless the job exits with 0."""

    OK = 0
    """The master shut it down, the resource file says `finished`, or it had no task for as long as `--mw-idle-exit`
    says."""
    USAGE = 2
    """An option is wrong, a file is missing or incomplete, or a port is in use. Nothing was started."""
    REFUSED = 3
    """The master, or another process at its address, refused this agent."""
    UNREACHABLE = 4
    """No candidate address of the master answered."""
    EVICTED = 5
    """The batch system takes the machine back: SIGTERM came, or the time of the job or master is nearly used up."""
    CANNOT_START = 6
    """The slaves of this agent end before they can take a task. In a master: so do all slaves that could join it, or
    a limit of the system was reached."""
    UNFIT = 7
    """Nothing that waits in this computation can run on this agent. Another computation may use its machine."""
    PROLOGUE = 8
    """The prologue of the job failed, so the agent was not started; see `mwpy oversee --prologue`."""
    INTERRUPTED = 130
    """Ctrl-C or SIGTERM on the master."""
    FAILED = 255
    """The algorithm raised an exception or returned no valid code; in an agent: the master was lost."""


class MwpyError(Exception):
    """The base of all errors of mwpy."""

    exit_code = ExitCode.FAILED

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows of this error."""
        return shown_in_ipython(self)


def shown_in_ipython(shown: BaseException) -> list[str]:
    """Return what IPython shows of an error: the frames of the user, without those of mwpy and its futures."""
    seen: list[BaseException] = []
    error: BaseException | None = shown
    while error is not None and error not in seen:
        seen.append(error)
        error.__traceback__ = _frames_of_user(error.__traceback__)
        error = error.__cause__ or error.__context__
    shell: Any = sys.modules["IPython"].get_ipython()
    lines: list[str] = shell.InteractiveTB.structured_traceback(type(shown), shown, shown.__traceback__)
    return lines


def _frames_of_user(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of mwpy, and of the module that has the base of its futures."""
    frames: list[TracebackType] = []
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__"))
        if not module.startswith("mwpy.") and module != "concurrent.futures._base":
            frames.append(trace)
        trace = trace.tb_next
    for each in reversed(frames):
        trace = TracebackType(trace, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return trace


class UsageError(MwpyError):
    """The caller asked for something that is not possible; the message says what to write instead."""

    exit_code = ExitCode.USAGE


class EndIsNear(MwpyError):
    """A task has little time left. `mwpy.warned` raises it in the task, which can catch it to save what it has.

    A task can also raise it itself. If a task does not catch it, its attempt is lost when its time is over, and it is
    not charged with an eviction or a time limit of its agent.
    """


class ResourceFileError(UsageError):
    """A resource file is missing or incomplete, or one of its keys has a value of a wrong type."""


class RunDatabaseError(UsageError):
    """A run database is missing, damaged, in use by another master, or cannot be written any more."""


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


class CannotRun(MwpyError):
    """No task can run, because all slaves that could join fail in their start, or because of a limit of the system.

    The message names the reason. It is raised to the caller that waits for tasks, or that starts the master.
    """

    exit_code = ExitCode.CANNOT_START


class AlgorithmUnavailable(MwpyError):
    """A slave cannot run a task algorithm: it is missing there, is another version, or cannot be loaded."""


class SharedObjectMissing(MwpyError, MemoryError):
    """The content of a shared object is not where a task needs it, most likely for lack of memory."""


class InternalError(MwpyError):
    """A fault of mwpy itself. Please report it with the whole message."""


class TaskFailed(MwpyError):
    """A task raised an exception, or its result could not be returned to the master.

    `Result.value` raises it and `Result.error` returns it; a map raises it at the item that failed. Its `__cause__` is
    the original exception, if the master could rebuild it. The type, text and traceback of the original exception are
    always available as text.

    Args:
        algorithm: name of the task algorithm.
        sid: the slave that ran the task, or None if it never left the master.
        type_name: qualified name of the remote exception's class.
        text: `str()` of the remote exception.
        remote_traceback: the remote traceback as text. If the task is unrunnable because slaves died while they ran it,
            this is the last output of the last of these slaves. Empty if there is none.
        deaths: the slaves that died while they ran the task, if the task failed for this reason.
    """

    task_id: int | None = None
    """The id of the task."""
    item: Any = None
    """The item of a map; for a task that was submitted alone, its tag."""
    host: str | None = None
    """The name of the machine of that slave, if it is known."""
    remedy: str = ""
    """What to do, if mwpy knows it. The text of the error has it."""

    def __init__(
        self,
        algorithm: str,
        sid: str | None,
        type_name: str,
        text: str,
        remote_traceback: str = "",
        deaths: tuple[Death, ...] = (),
    ) -> None:
        super().__init__(algorithm, sid, type_name, text, remote_traceback, deaths)
        self.algorithm = algorithm
        self.sid = sid
        self.type_name = type_name
        self.text = text
        self.remote_traceback = remote_traceback
        self.deaths = deaths

    def __str__(self) -> str:
        task = self.algorithm if self.task_id is None else f"{self.task_id} ({self.algorithm})"
        where = f" on {self.sid}" if self.sid else ""
        where += f" ({self.host})" if self.host else ""
        item = "" if self.item is None else f", item {_shown(self.item)}"
        story = f"task {task} failed{where}{item}: {self.type_name}: {self.text}"
        story += f" ({self.remedy})" if self.remedy else ""
        is_own = type(self) is TaskFailed and self.task_id is not None and self.remote_traceback  # of the task's code
        again = f"\nmwpy.replay({self.task_id}) runs it again in this process" if is_own else ""
        return f"{story}\n{self.remote_traceback}".rstrip() + again


class TaskCancelled(TaskFailed):
    """A task was cancelled with `mw.cancel`, so it has no value.

    `Result.error` returns it, and `Result.value` raises it. Its `text` says how far the task was.
    """


class DependencyFailed(TaskFailed):
    """A task never ran, because another task did not end well, to whose result its arguments refer (`mwpy.result`).

    `Result.error` returns it, and `Result.value` raises it. Its `text` says which task that was, and what happened.
    """

    dependency: int = 0
    """The id of the task that failed, was cancelled or is unrunnable: the first one of a chain of tasks."""
    cause: str = ""
    """What happened to that task."""


class TaskUnrunnable(TaskFailed):
    """A task ended without a value, because its policy or the deaths of its slaves forbid another attempt.

    Its `text` says why, and `deaths` are the slaves that died while they ran the task.
    """


class OutOfTime(MwpyError):
    """The time of the master is nearly over: its lifetime, or that of its job in a batch system.

    No more tasks are sent. Save what you have: `mw.results()` returns the results that have arrived, and `mw.loop(5)`
    waits for tasks that still run. Calls that would wait without a timeout raise this error again. The computation does
    not count as finished, so the jobs of its agents stay queued.

    Args:
        seconds_left: how long the master may still run, in seconds.
        unended: how many tasks have not ended.
    """

    exit_code = ExitCode.EVICTED

    def __init__(self, seconds_left: float, unended: int) -> None:
        super().__init__(seconds_left, unended)
        self.seconds_left = seconds_left
        self.unended = unended

    def __str__(self) -> str:
        return (
            f"the time of the master is nearly over, and {counted(self.unended, 'task')} did not end: save what you "
            f"have within {self.seconds_left:.1f} s. Give the master more time with --mw-lifetime or a longer job, or "
            f"continue with another job: the same command with the same --mw-run-database"
        )


@frozen
class FailureKind:
    """Failures of one kind, in `TooManyFailures`."""

    kind: str
    """The name of the exception's class; for unrunnable tasks, with the cause of the last loss."""
    count: int
    """How many failures are of this kind."""
    example: TaskFailed
    """The first of them."""

    def __str__(self) -> str:
        story, _, _ = str(self.example).partition("\n")
        return f"{counted(self.count, 'time')} {self.kind}. Example: {story}"


class TooManyFailures(MwpyError):
    """A run was stopped, because as many tasks failed as `max_failures` allows.

    Its text counts the failures by kind, with an example of each, and says which tasks did not run. A map raises it
    after all results that arrived. Other calls raise it once, and the tasks that did not run then come back from
    `mw.results()`, with their tags and `TaskCancelled`. Failures are counted from zero again after that.

    Args:
        limit: what `max_failures` was.
        failed: how many tasks failed.
        ended: how many tasks ended, with the failed ones.
        kinds: the failures by kind, the most frequent kind first.
        task_ids: the tasks that were submitted and did not run to their end.
    """

    remaining: Iterator[Any] = iter(())
    """The items of a map that did not run to their end, also those that were not read from its iterables yet: submit
    them again with another map, or with `starmap_results` if there were several iterables or it was a starmap: then an
    item is a tuple or a dict. It can be iterated once. Without a map, there are none."""

    def __init__(
        self, limit: str, failed: int, ended: int, kinds: Sequence[FailureKind], task_ids: Sequence[TaskId]
    ) -> None:
        super().__init__(limit, failed, ended, kinds, task_ids)
        self.limit = limit
        self.failed = failed
        self.ended = ended
        self.kinds = kinds
        self.task_ids = task_ids

    def __str__(self) -> str:
        left = f"{counted(len(self.task_ids), 'submitted task')} did not run"
        if self.task_ids:
            left += f", from task {min(self.task_ids)} to task {max(self.task_ids)} (see .task_ids and .remaining)"
        story = f"the run was stopped: {self.failed} of {counted(self.ended, 'ended task')} failed"
        return "\n".join([f"{story} (max_failures={self.limit}). {left}", *(f"  {kind}" for kind in self.kinds)])


_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 100


def _shown(item: object) -> str:
    """Return a short text in one line for any object, even for one that cannot be printed."""
    return " ".join(_SHORT.repr(item).split())


# How a process ended, in words: the one wording for slaves, agents, jobs and commands.
#
# A *return code* is an exit code, or the negative number of the signal that killed the process, as in `subprocess`.


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
