"""What a slave runs for an executor with an initializer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Initialized"]

_done: set[str] = set()
"""The executors whose initializer has run in this slave, by their marks."""


class Initialized:
    """A function that first calls an initializer, once in each process.

    Args:
        mark: names the executor.
        initializer: the initializer, and `initargs` its arguments.
        function: the function of the task.
    """

    def __init__(
        self, mark: str, initializer: Callable[..., object], initargs: tuple[Any, ...], function: Callable[..., Any]
    ) -> None:
        self._mark = mark
        self._initializer = initializer
        self._initargs = initargs
        self._function = function
        self.__qualname__ = str(getattr(function, "__qualname__", type(function).__qualname__))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._mark not in _done:
            self._initializer(*self._initargs)
            _done.add(self._mark)
        return self._function(*args, **kwargs)
