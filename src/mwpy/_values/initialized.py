"""What a slave runs for an executor with an initializer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["AFTER_INITIALIZER", "Initialized"]

_done: set[str] = set()
"""The executors whose initializer has run in this process, by their marks."""

AFTER_INITIALIZER: list[Callable[[], None]] = []
"""What this process calls after an initializer."""


class Initialized:
    """A function that first calls an initializer, once in each process.

    Args:
        mark: names the executor. No other executor has the same one, not even in another run. So it does not count
            when the code is compared with that of an earlier run.
        initializer: the initializer, and `initargs` its arguments.
        function: the function of the task.
    """

    def __init__(
        self, mark: str, initializer: Callable[..., object], initargs: tuple[Any, ...], function: Callable[..., Any]
    ) -> None:
        self._mark = mark
        self.initializer = initializer
        self.initargs = initargs
        self.function = function
        self.__qualname__ = str(getattr(function, "__qualname__", type(function).__qualname__))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._mark not in _done:
            self.initializer(*self.initargs)
            _done.add(self._mark)
            for call in AFTER_INITIALIZER:
                call()
        return self.function(*args, **kwargs)
