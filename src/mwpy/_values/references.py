"""References in the arguments of tasks: each stands for an object that does not travel with the arguments.

A reference notes itself while the arguments of a call are pickled, so that the submission knows what the call refers
to. It does not matter how deep in lists, dicts or other objects it is.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from mwpy._values.errors import UsageError
from mwpy._values.ids import Buffer

__all__ = ["NOTED", "Reference", "ReferringBuffers"]


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
