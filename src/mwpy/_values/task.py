"""What passes between an application and mwpy: calls, results, unrunnable tasks, references, seeds, failures.

Results and unrunnable tasks: the values that pass between an application and mwpy.

`f.task(...)` makes a `TaskCall`: an algorithm and its arguments. Submitting it makes a task, and pickles its arguments
at once. The task ends as a `Result` or, if its policy forbids another attempt, as an `UnrunnableTask`. Both carry the
task's tag, which is the same object that was submitted.

There is one `Result` for each task, so it is a msgspec `Struct`: C code creates it in a third of the time that a Python
class needs.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from types import MappingProxyType
from typing import Any, Generic, SupportsIndex, TypeVar

from attrs import frozen
from msgspec import Struct

from mwpy._values.bounds import Buffer, SlaveId, TaskId, shortened
from mwpy._values.causes import PlainEnum
from mwpy._values.errors import TaskFailed, TaskUnrunnable, UsageError
from mwpy._values.last_words import Death, story_of
from mwpy._values.messagepack import MALFORMED, STORED, Pickled, decoder
from mwpy._values.phrases import text_of


@frozen
class StoredAt:
    """Where a value in the run database is. It is read when it is asked for, in the thread that asks."""

    row: int
    place: int
    """The place of the value in the results of the row."""
    read: Callable[[int, int], tuple[Any, Sequence[Buffer]]]
    """Reads the entry of a value and its large buffers; its arguments are `row` and `place`."""

    def load(self) -> tuple[Any, Sequence[Buffer]]:
        """Read the entry of the value and its large buffers, as they arrived.

        Raises:
            MwpyError: the file cannot be read.
        """
        return self.read(self.row, self.place)


R = TypeVar("R")


class SlaveKind(PlainEnum):
    """Which tasks a slave may run; docs/glossary.md explains the kinds."""

    ORDERED = "ordered"
    INTERMINGLE = "intermingle"
    UNORDERED = "unordered"


class SlaveState(PlainEnum):
    """The state of a slave in the master; `ConnectedSlave.next_state` says how it follows."""

    CONNECTING = "connecting"
    IDLE = "idle"
    BUSY = "busy"
    AWAY = "away"
    SHUTTING_DOWN = "shutting-down"


class TaskState(PlainEnum):
    """The state of a task in the master; `_core/master/tasks.py` has the table of transitions."""

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
            "error": None if error is None else f"{error.text} ({error.remedy})" if error.remedy else error.text,
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
        failure = TaskFailed(
            self.algorithm,
            self.sid,
            type(error).__qualname__,
            f"{text_of(error)} (its value was computed, but cannot be unpickled here: is the module that "
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


def stored_at(result: Result[Any]) -> StoredAt | None:
    """Return where the value of a result is in the run database; None if it is here or was read already."""
    return result._buffers[0] if result._value is _STORED else None  # type: ignore[return-value]


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


# References in the arguments of tasks: each stands for an object that does not travel with the arguments.
#
# A reference notes itself while the arguments of a call are pickled, so that the submission knows what the call refers
# to. It does not matter how deep in lists, dicts or other objects it is.
#
# `result` makes a reference to the result of another task. While the arguments are unpickled in a slave, the values to
# which they refer are in `GIVEN`.


class _Noted(threading.local):
    """The references in the call that this thread pickles just now."""

    found: dict[Reference, None] | None = None
    """In the order in which they were first pickled; None if no call is pickled."""


NOTED = _Noted()
"""It is global because a reference has no other way to find the call that is pickled."""


class Reference(ABC):
    """The base of all references. Two references that stand for the same object are equal."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        found = NOTED.found
        if found is None:
            raise UsageError(f"{self!r} has a meaning only in the arguments of a task: submit it there")
        found[self] = None
        return self.rebuilt_by()

    @abstractmethod
    def rebuilt_by(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return the function, and its arguments, that give the object when the arguments are unpickled in a slave."""


NOTHING_SHARED: Mapping[int, Any] = MappingProxyType({})


class ReferringBuffers(list[Buffer]):
    """The large buffers of a call that contains references, even if there is none. It is always true.

    Args:
        buffers: the large buffers.
        references: the references in the call, each once.
        shared: the shared objects whose contents are among the buffers, by their places. They do not travel with the
            call.
    """

    def __init__(
        self, buffers: Iterable[Buffer], references: Iterable[Reference], shared: Mapping[int, Any] = NOTHING_SHARED
    ) -> None:
        super().__init__(buffers)
        self.references = tuple(references)
        self.shared = shared

    def __bool__(self) -> bool:
        return True


def extended(
    buffers: Sequence[Buffer], more: Iterable[Buffer], shared: Mapping[int, Any] = NOTHING_SHARED
) -> Sequence[Buffer]:
    """Return the large buffers of a call, with its references, and more buffers behind them.

    Args:
        shared: the shared objects whose contents are among the additional buffers, by their places there.
    """
    together = [*buffers, *more]
    if not (shared or isinstance(buffers, ReferringBuffers)):
        return together
    references, former = (
        (buffers.references, buffers.shared) if isinstance(buffers, ReferringBuffers) else ((), NOTHING_SHARED)
    )
    return ReferringBuffers(together, references, {**former, **{len(buffers) + at: shared[at] for at in shared}})


def travelling(buffers: Sequence[Buffer]) -> Sequence[Buffer]:
    """Return the large buffers of a call as they travel: empty ones in the places of those that are shared."""
    if not (isinstance(buffers, ReferringBuffers) and buffers.shared):
        return buffers
    return [b"" if place in buffers.shared else buffer for place, buffer in enumerate(buffers)]


class _Given(threading.local):
    """The values to which the call refers that this thread unpickles just now."""

    values: Mapping[int, object] | None = None
    """By the id of their task; None if no call is unpickled."""


GIVEN = _Given()
"""It is global because an object that is unpickled has no other way to find them."""


class ResultReference(Reference):
    """Stands for the result of a task.

    Args:
        task_id: the id of this task.
    """

    __slots__ = ("task_id",)

    def __init__(self, task_id: int) -> None:
        self.task_id = task_id

    def rebuilt_by(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """As `Reference.rebuilt_by`."""
        return given_value, (self.task_id,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ResultReference) and other.task_id == self.task_id

    def __hash__(self) -> int:
        return hash((ResultReference, self.task_id))

    def __repr__(self) -> str:
        return f"mwpy.result({self.task_id})"


def given_value(task_id: int) -> object:
    """Return the value to which a call refers. Pickles have the name of this function."""
    if GIVEN.values is None:
        raise UsageError(f"mwpy.result({task_id}) stands for a value only in the arguments of a task")
    return GIVEN.values[task_id]


def result(task_id: TaskId) -> Any:
    """Return what stands for the result of a task in the arguments of a later task.

    It can be anywhere in the arguments, also in lists, dicts and other objects. The later task starts when the other
    one has ended, and gets the value itself. The value does not pass through the master algorithm. If the other task
    fails, is cancelled or is unrunnable, then the later task never runs, and its result is a failure with
    `mwpy.DependencyFailed`.

    Args:
        task_id: what `mw.submit` returned. The result of this task must not have been fetched with `mw.results()`
            when the later task is submitted.

    Raises:
        UsageError: it is not the id of a task; the caller's fault.

    Examples:
        >>> left, right = mw.submit(load.task("a")), mw.submit(load.task("b"))         # doctest: +SKIP
        >>> mw.submit(compare.task(mwpy.result(left), mwpy.result(right)))             # doctest: +SKIP
    """
    try:
        return ResultReference(index(task_id))
    except TypeError:
        raise UsageError(f"mwpy.result needs the id of a task, which mw.submit returned, not {task_id!r}") from None


# Seeds of tasks: the same numbers for the same task, with any number of slaves, attempts and restarts.
#
# The seed of a task is made from two numbers: the `seed` of its policy, which the user chooses, and the position of the
# task. In a map, this is the position of the item. Otherwise it says how many tasks were submitted with the same `seed`
# before. It is not the task id: other tasks, which may be submitted at any time, change the ids.
#
# The master makes the seed at submission. It travels with the arguments, so each attempt of the task has the same seed.


SEED_BYTES = 16
"""The size of a task's seed: as many bits as the state that NumPy makes from a seed."""


def seed_at(seed: SupportsIndex, position: int) -> int:
    """The seed of the task at a position. A digest makes it, so that neighbours have nothing in common."""
    import hashlib  # only here, because it loads OpenSSL, and the start of a local agent would wait for that

    return int.from_bytes(hashlib.sha256(f"{index(seed)} {position}".encode()).digest()[:SEED_BYTES], "big")


NOTHING_GIVEN: Mapping[str, int] = MappingProxyType({})


class Running(Struct, eq=False):
    """What is known about the task that runs in this process."""

    seed: int | None = None
    """None if no task runs, or if its policy has no seed."""
    given: Mapping[str, int] = NOTHING_GIVEN
    """The amounts that the task was given."""
    end_at: Callable[[], float] | None = None
    """Returns when the task must end, on the monotonic clock, as far as this is known now. None if no task runs, or if
    nobody would end it."""


RUNNING = Running()
"""It is global because a process runs one task at a time, and the functions that a task calls, such as `task_seed`,
have no other way to find it."""


def given() -> dict[str, int]:
    """Return what the task that calls this was given, of what it requires.

    Its process sees no more than this: the GPUs are those in `CUDA_VISIBLE_DEVICES`, and its threads are pinned to its
    processors.

    Returns:
        Amounts by name, such as `{"cpus": 4, "gpus": 1}`; memory and disk in bytes. It is empty if the task requires
        nothing, and outside of tasks.

    Examples:
        >>> def fit(data):                                     # doctest: +SKIP
        ...     return RandomForestRegressor(n_jobs=mwpy.given()["cpus"]).fit(*data)
        >>> models = list(mw.map(fit, tables, cpus=4))         # doctest: +SKIP
    """
    return dict(RUNNING.given)


def task_seed() -> int:
    """Return the seed of the task that calls this: a random number that is always the same for the same task.

    It depends on the `seed` of the task's policy and on the position of the task: of its item in a map, or among the
    tasks that were submitted one by one with the same `seed`. It does not depend on slaves, attempts and restarts.

    Returns:
        A number of 128 bits, for `random.Random`, `numpy.random.default_rng` and the like.

    Raises:
        UsageError: no task runs in this process, or the policy of the task has no `seed`; the caller's fault.

    Examples:
        >>> def sample(size):                                  # doctest: +SKIP
        ...     return numpy.random.default_rng(mwpy.task_seed()).normal(size=size)
        >>> list(mw.map(sample, [3, 3, 3], seed=1))            # doctest: +SKIP
    """
    if RUNNING.seed is None:
        raise UsageError(
            "mwpy.task_seed() works only in a task with a seed: submit the task with seed=1 (any whole number), as in "
            "mw.map(f, items, seed=1), or mark its function with @mwpy.task_algorithm(seed=1)"
        )
    return RUNNING.seed


# Failures: what a failed task sends instead of a value.
#
# Type, text and traceback of the exception are texts, so everybody can read them, without its class and without
# unpickling. The exception itself is a pickle, which may be missing.


HEADLINE_CHARACTERS = 200

KIND_CHARACTERS = 60


class Failure(Struct, frozen=True, array_like=True):
    """An exception that a task raised."""

    type_name: str
    text: str
    traceback: str
    cause: bytes
    """The pickled exception; empty if it cannot be pickled."""


class _Head(Struct, frozen=True, array_like=True):
    """The first fields of a `Failure`; the others are not read."""

    type_name: str
    text: str


read_failure = decoder(Failure)
"""Read an encoded `Failure`. Raises one of `messagepack.MALFORMED` for everything else."""

_read_head = decoder(_Head)


def headline(data: Buffer) -> str:
    """Return type and text of an encoded failure as one short line."""
    try:
        head = _read_head(bytes(data))
    except MALFORMED:
        return "a failure that cannot be read"
    return in_one_line(head.type_name, head.text)


def kind_of(data: Buffer) -> str:
    """Return the type of an encoded failure."""
    try:
        return " ".join(shortened(_read_head(bytes(data)).type_name, KIND_CHARACTERS).split())
    except MALFORMED:
        return "unreadable"


def in_one_line(type_name: str, text: str) -> str:
    """Return type and text of an exception as one short line."""
    line = f"{type_name}: {text}" if text else type_name
    return " ".join(shortened(line, HEADLINE_CHARACTERS).split())
