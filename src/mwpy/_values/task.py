"""Results and unrunnable tasks: the values that pass between an application and mwpy.

`f.task(...)` makes a `TaskCall`: an algorithm and its arguments. Submitting it makes a task, and pickles its arguments
at once. The task ends as a `Result` or, if its policy forbids another attempt, as an `UnrunnableTask`. Both carry the
task's tag, which is the same object that was submitted.

There is one `Result` for each task, so it is a msgspec `Struct`: C code creates it in a third of the time that a Python
class needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from mwpy._values.errors import TaskFailed, TaskUnrunnable
from mwpy._values.ids import Buffer, SlaveId, TaskId
from mwpy._values.last_words import Death, story_of
from mwpy._values.messagepack import STORED, Pickled
from mwpy._values.plain_enum import PlainEnum
from mwpy._values.stored import StoredAt

__all__ = [
    "Origin",
    "Result",
    "SlaveKind",
    "SlaveState",
    "TaskState",
    "UnrunnableTask",
    "encoded_in",
    "failed",
    "is_stored",
    "loaded",
    "size_of",
    "stored_result",
    "unpickle_with",
]

R = TypeVar("R")


class SlaveKind(PlainEnum):
    """Which tasks a slave may run; the manual explains the kinds."""

    ORDERED = "ordered"
    INTERMINGLE = "intermingle"
    UNORDERED = "unordered"


class SlaveState(PlainEnum):
    """The state of a slave in the master; `_core/master/members.py` has the table of transitions."""

    CONNECTING = "connecting"
    IDLE = "idle"
    BUSY = "busy"
    AWAY = "away"
    SHUTTING_DOWN = "shutting-down"
    GONE = "gone"
    LOST = "lost"


class TaskState(PlainEnum):
    """The state of a task in the master; `_core/master/taskjar.py` has the table of transitions."""

    NEW = "new"
    PENDING = "pending"
    ALLOCATED = "allocated"
    BLOCKED = "blocked"
    DELAYED = "delayed"
    CANCELLING = "cancelling"
    FINISHED = "finished"
    UNRUNNABLE = "unrunnable"
    CANCELLED = "cancelled"


Loads = Callable[[Any, Sequence[Buffer]], Any]
"""Converts an entry of a group and its out-of-band buffers into the object."""

_loads: list[Loads] = []


def unpickle_with(value: Loads, arguments: Loads) -> None:
    """Set the functions that read values and arguments. `_transport.codec` calls it, because values must not pickle."""
    _loads[:] = [value, arguments]


def loaded(entry: Any, buffers: Sequence[Buffer] = ()) -> Any:
    """Return the object of an entry that is a value.

    Raises:
        Exception: it cannot be unpickled here.
    """
    return _loads[0](entry, buffers)


class Origin(Struct, frozen=True, gc=False):
    """What results of one algorithm that arrived together have in common."""

    algorithm: str
    """Name of the task algorithm."""
    sid: SlaveId | None
    host: str | None
    attempts: int
    finished: float


class Result(Struct, Generic[R], eq=False):
    """The end of a task: its value, or why it has none.

    A value that was pickled is unpickled when it is first read, in the thread that reads it.

    Examples:
        >>> for result in mw.results():                      # doctest: +SKIP
        ...     print(result.tag, result.value)
    """

    task_id: TaskId
    _origin: Origin
    tag: Any
    """The object given at submission, unchanged."""
    compute_seconds: float
    """How long the task algorithm ran on the slave, in seconds."""
    _failed: bool
    _value: Any
    _buffers: Sequence[Buffer] = ()

    @property
    def algorithm(self) -> str:
        """Name of the task algorithm."""
        return self._origin.algorithm

    @property
    def sid(self) -> SlaveId | None:
        """The slave that ran the task; None if the task ended before it left the master."""
        return self._origin.sid

    @property
    def host(self) -> str | None:
        """The name of the machine of that slave; None if it is unknown."""
        return self._origin.host

    @property
    def attempts(self) -> int:
        """How often the task was sent to a slave; 0 if it never left the master."""
        return self._origin.attempts

    @property
    def finished(self) -> float:
        """When the master learned that the task had ended: seconds since 1970, by the clock of the master.

        Results of short tasks travel in groups and arrive together, so this may be 50 ms and the time of a message
        after the task's own end. All machines are measured by one clock.
        """
        return self._origin.finished

    @property
    def started(self) -> float:
        """`finished` minus `compute_seconds`: when the task began to run, as late as it can have been."""
        return self._origin.finished - self.compute_seconds

    @property
    def ok(self) -> bool:
        """Whether the task succeeded, so that `.value` raises nothing. Like `.error`, this unpickles the value."""
        return self.error is None

    @property
    def value(self) -> R:
        """The task algorithm's return value.

        Raises:
            TaskFailed: the task raised an exception, or its value could not be sent or unpickled. The task's fault;
                the remote traceback is in the message. If the task is unrunnable, this is a `TaskUnrunnable`.
        """
        value = self._value
        if type(value) is Pickled:
            value = self._load(value)
        if self._failed:
            raise self._completed(value)
        return value  # type: ignore[no-any-return]

    @property
    def error(self) -> TaskFailed | None:
        """The `TaskFailed` that `.value` would raise, or None if the task succeeded."""
        # only unpickling shows whether the value can be unpickled here
        if type(self._value) is Pickled:
            self._load(self._value)
        return self._completed(self._value) if self._failed else None

    def to_dict(self) -> dict[str, Any]:
        """Return everything that is known about the end of the task, by name.

        Returns:
            `task_id`, `algorithm`, `tag`, `value` (None if the task failed),
            `error_type` and `error` (the type and the text of its exception, or None), `slave`, `host`, `attempts`,
            `started`, `finished` (seconds since 1970) and `compute_seconds`.
        """
        error = self.error
        return {
            "task_id": self.task_id,
            "algorithm": self.algorithm,
            "tag": self.tag,
            "value": None if error is not None else self.value,
            "error_type": None if error is None else error.type_name,
            "error": None if error is None else error.text,
            "slave": self.sid,
            "host": self.host,
            "attempts": self.attempts,
            "started": self.started,
            "finished": self.finished,
            "compute_seconds": self.compute_seconds,
        }

    def _completed(self, failure: TaskFailed) -> TaskFailed:
        """Add what the failure itself does not know."""
        failure.task_id, failure.item, failure.host = self.task_id, self.tag, self.host
        return failure

    def _load(self, pickled: Pickled) -> Any:
        if pickled.kind == STORED:
            self._value, self._buffers = self._buffers[0].load()  # type: ignore[union-attr]
            if type(self._value) is not Pickled:
                return self._value
            pickled = self._value
        try:
            loaded = _loads[0](pickled, self._buffers)
        except KeyboardInterrupt:  # by Ctrl-C
            raise
        except BaseException as error:  # a pickle can call anything, also sys.exit
            loaded = self._not_unpickled(error)
        else:
            if self._failed:
                loaded = self._failure(*loaded)
        self._value, self._buffers = loaded, ()
        return loaded

    def _not_unpickled(self, error: BaseException) -> TaskFailed:
        self._failed = True
        try:
            text = str(error)
        except Exception as second:
            text = f"(its text is not available: __str__ raised {type(second).__qualname__})"
        failure = TaskFailed(
            self.algorithm,
            self.sid,
            type(error).__qualname__,
            f"{text} (its value was computed, but cannot be unpickled here: is the module that "
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


def failed(result: Result[Any]) -> bool:
    """Whether a task failed, as far as this is known without unpickling its value."""
    return result._failed


def encoded_in(result: Result[Any]) -> tuple[Any, Sequence[Buffer]]:
    """Return the value of a result that was not read yet, as it arrived: its entry in a group, and its buffers."""
    if type(result._value) is Pickled and result._value.kind == STORED:
        result._value, result._buffers = result._buffers[0].load()  # type: ignore[union-attr]
    return result._value, result._buffers


_STORED = Pickled(STORED, b"")


def stored_result(
    task_id: TaskId, origin: Origin, tag: object, compute_seconds: float, has_failed: bool, stored: StoredAt
) -> Result[Any]:
    """Return a result whose value is in the run database."""
    return Result(task_id, origin, tag, compute_seconds, has_failed, _STORED, (stored,))  # type: ignore[arg-type]


def is_stored(result: Result[Any]) -> bool:
    """Whether the value of a result is in the run database, and was not read yet."""
    return result._value is _STORED


def size_of(result: Result[Any]) -> int:
    """Return about how many bytes the value of a result takes, if it was not read yet."""
    value = result._value
    if type(value) is Pickled:
        return 0 if value.kind == STORED else len(value.pickle) + sum(map(len, result._buffers))
    return len(value) if isinstance(value, str | bytes) else 0


class UnrunnableTask(Struct, eq=False):
    """A task that is returned because its policy forbids running it elsewhere or again."""

    task_id: TaskId
    algorithm: str
    """Name of the task algorithm."""
    sid: SlaveId | None
    """The slave that the task was addressed to, or None."""
    tag: Any
    """The object given at submission, unchanged."""
    reason: str
    """Why it cannot run, in one line."""
    deaths: tuple[Death, ...]
    """The slaves that died while they ran it, first to last. Printing the task shows the last words of the last one."""
    _payload: Buffer
    _buffers: Sequence[Buffer]
    _origin: Origin
    _seconds: float = 0.0

    def result(self) -> Result[Any]:
        """Return the failed result that says the same; its error is a `TaskUnrunnable`."""
        failure = TaskUnrunnable(
            self.algorithm, self._origin.sid, "TaskUnrunnable", self.reason, story_of(self.deaths), self.deaths
        )
        return Result(self.task_id, self._origin, self.tag, self._seconds, True, _value=failure)

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The task's positional and keyword arguments, as they were at submission."""
        args, kwargs = _loads[1](self._payload, self._buffers)
        return tuple(args), kwargs

    def __str__(self) -> str:
        return f"task {self.task_id} ({self.algorithm}) is unrunnable: {self.reason}\n{story_of(self.deaths)}".rstrip()

    def __repr__(self) -> str:
        return f"<UnrunnableTask {self.task_id} ({self.algorithm}): {self.reason}, tag={self.tag!r}>"
