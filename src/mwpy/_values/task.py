"""Tasks and what becomes of them: the values that pass between an application and mwpy.

A `TaskCall` is what `f.task(...)` makes: an algorithm and its arguments, nothing sent yet. Submitting
it makes a task, whose arguments are pickled then and there. It ends as a `Result` or, when its
policy forbids another try, as an `UnrunnableTask`. The tag comes back with either, the very same object.


What there is one of for each task is a msgspec `Struct`, made in C in a third of the time that a class of Python
takes. One that holds nothing the garbage collector could be after is not shown to it, so a million tasks and results
do not slow down what is pickled next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Generic, TypeVar

from attrs import define, frozen
from msgspec import Struct

from mwpy._values.errors import TaskFailed, UsageError
from mwpy._values.ids import Buffer, SlaveId, TaskId
from mwpy._values.last_words import Death, story_of
from mwpy._values.messagepack import Pickled

__all__ = [
    "DEFAULT_POLICY",
    "PlainEnum",
    "Result",
    "SlaveKind",
    "SlaveState",
    "TaskPolicy",
    "TaskState",
    "UnrunnableTask",
    "unpickle_with",
]

R = TypeVar("R")


class PlainEnum(Enum):
    """An enumeration whose members are hashed as other objects are: `Enum` hashes their names, in Python."""

    __hash__ = object.__hash__


class SlaveKind(PlainEnum):
    """What a slave may run: see the words in the manual."""

    ORDERED = "ordered"
    INTERMINGLE = "intermingle"
    UNORDERED = "unordered"


class SlaveState(PlainEnum):
    """Where a slave stands in the master; `_core/master/members.py` has the table of the ways between."""

    CONNECTING = "connecting"
    IDLE = "idle"
    BUSY = "busy"
    SHUTTING_DOWN = "shutting-down"
    GONE = "gone"
    LOST = "lost"


class TaskState(PlainEnum):
    """Where a task stands in the master; `_core/master/taskjar.py` has the table of the ways between."""

    NEW = "new"
    PENDING = "pending"
    ALLOCATED = "allocated"
    FINISHED = "finished"
    UNRUNNABLE = "unrunnable"


@frozen(slots=True)
class TaskPolicy:
    """How and where a task may run.

    Args:
        sid: the slave that the task is addressed to (an *ordered* task), or None for any slave.
        retry: whether a task that was lost with its slave may be tried again. False means at most once:
            if the slave is lost after the task may have started, the task becomes unrunnable.
        do_it_anyway: whether an ordered task whose slave is gone may run on any other slave.
    """

    sid: SlaveId | None = None
    retry: bool = True
    do_it_anyway: bool = False

    @classmethod
    def of(cls, **policy: Any) -> TaskPolicy:
        """Make a policy from keywords, naming the culprit when one is unknown.

        Raises:
            UsageError: a keyword is no policy; the caller's fault.
        """
        unknown = [name for name in policy if name not in ("sid", "retry", "do_it_anyway")]
        if unknown:
            raise UsageError(
                f"unknown task policy {unknown[0]!r}: the policies are sid, retry and do_it_anyway (and tag)"
            )
        return cls(**policy)


DEFAULT_POLICY = TaskPolicy()


Loads = Callable[[Any, Sequence[Buffer]], Any]
"""Turns what was decoded and its out-of-band buffers into the object that it was."""

_loads: list[Loads] = []


def unpickle_with(value: Loads, arguments: Loads) -> None:
    """Have pickled values and a task's encoded arguments read; `_codec` calls it, for these do not know how."""
    _loads[:] = [value, arguments]


class Result(Struct, Generic[R], eq=False):
    """What a finished task came to.

    A value that is no plain one is unpickled when it is first asked for, in the thread that asks.

    Example:
        >>> for result in mw.results():                      # doctest: +SKIP
        ...     print(result.tag, result.value)
    """

    task_id: TaskId
    algorithm: str
    """Name of the task algorithm."""
    sid: SlaveId | None
    """The slave that ran the task; None if the task failed before it left the master."""
    tag: Any
    """The object given at submission, unchanged."""
    compute_seconds: float
    """How long the task algorithm ran on the slave, in seconds."""
    _failed: bool
    _value: Any
    _buffers: Sequence[Buffer] = ()

    @property
    def value(self) -> R:
        """The task algorithm's return value.

        Raises:
            TaskFailed: the task raised an exception, or its value could not be brought back. The
                task's fault; the remote traceback is in the message.
        """
        value = self._value
        if type(value) is Pickled:
            value = self._load(value)
        if self._failed:
            raise value
        return value  # type: ignore[no-any-return]

    @property
    def error(self) -> TaskFailed | None:
        """The `TaskFailed` that `.value` would raise, or None if the task succeeded."""
        # only loading shows whether a value that was computed can be brought back
        if type(self._value) is Pickled:
            self._load(self._value)
        return self._value if self._failed else None

    def _load(self, pickled: Pickled) -> Any:
        try:
            loaded = _loads[0](pickled, self._buffers)
        except Exception as error:
            loaded = self._not_unpickled(error)
        else:
            if self._failed:
                loaded = self._failure(*loaded)
        self._value, self._buffers = loaded, ()
        return loaded

    def _not_unpickled(self, error: Exception) -> TaskFailed:
        self._failed = True
        failure = TaskFailed(
            self.algorithm,
            self.sid,
            type(error).__qualname__,
            f"{error} (its value was computed, but cannot be unpickled here: is the module that "
            f"defines its type importable on the master?)",
        )
        failure.__cause__ = error
        return failure

    def _failure(self, type_name: str, text: str, remote_traceback: str, cause: BaseException | None) -> TaskFailed:
        failure = TaskFailed(self.algorithm, self.sid, type_name, text, remote_traceback)
        failure.__cause__ = cause
        return failure

    def __repr__(self) -> str:
        outcome = "failed" if self._failed else "ok"
        return f"<Result of task {self.task_id} ({self.algorithm}) on {self.sid}: {outcome}, tag={self.tag!r}>"


@define(slots=True, eq=False, repr=False)
class UnrunnableTask:
    """A task handed back because its policy forbids running it elsewhere or again."""

    task_id: TaskId
    algorithm: str
    """Name of the task algorithm."""
    sid: SlaveId | None
    """The slave that the task was addressed to, or None."""
    tag: Any
    """The object given at submission, unchanged."""
    reason: str
    """Why it was given up, in one line."""
    deaths: tuple[Death, ...]
    """The slaves that died while they ran it, first to last. Printing the task shows the last one's last words."""
    _payload: Buffer
    _buffers: Sequence[Buffer]

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The task's positional and keyword arguments, as they were at submission."""
        args, kwargs = _loads[1](self._payload, self._buffers)
        return tuple(args), kwargs

    def __str__(self) -> str:
        return f"task {self.task_id} ({self.algorithm}) is unrunnable: {self.reason}\n{story_of(self.deaths)}".rstrip()

    def __repr__(self) -> str:
        return f"<UnrunnableTask {self.task_id} ({self.algorithm}): {self.reason}, tag={self.tag!r}>"
