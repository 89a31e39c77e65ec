"""References in the arguments of tasks: each stands for an object that does not travel with the arguments.

A reference notes itself while the arguments of a call are pickled, so that the submission knows what the call refers
to. It does not matter how deep in lists, dicts or other objects it is.

`result` makes a reference to the result of another task. While the arguments are unpickled in a slave, the values to
which they refer are in `GIVEN`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from typing import Any

from mwpy._values.errors import UsageError
from mwpy._values.ids import Buffer, TaskId

__all__ = ["GIVEN", "NOTED", "Reference", "ReferringBuffers", "ResultReference", "extended", "result"]


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


class ReferringBuffers(list[Buffer]):
    """The large buffers of a call that contains references, even if there is none. It is always true.

    Args:
        buffers: the large buffers.
        references: the references in the call, each once.
    """

    def __init__(self, buffers: Iterable[Buffer], references: Iterable[Reference]) -> None:
        super().__init__(buffers)
        self.references = tuple(references)

    def __bool__(self) -> bool:
        return True


def extended(buffers: Sequence[Buffer], more: Iterable[Buffer]) -> Sequence[Buffer]:
    """Return the large buffers of a call, with its references, and more buffers behind them."""
    together = [*buffers, *more]
    return ReferringBuffers(together, buffers.references) if isinstance(buffers, ReferringBuffers) else together


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
