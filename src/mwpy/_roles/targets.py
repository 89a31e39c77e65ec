"""Numbers that a master algorithm wants: of pending tasks, and of slaves."""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any

from msgspec import Struct, field

from mwpy._values.errors import UsageError
from mwpy._values.task import SlaveKind

__all__ = ["TargetNumbers", "kind_of_slave", "whole_number"]


class TargetNumbers(Struct, eq=False):
    """How many pending tasks are wanted in memory, of one algorithm or (None) of all."""

    _numbers: dict[Any, int] = field(default_factory=dict)

    def set(self, number: int, algorithm: Callable[..., Any] | None) -> None:
        """Set a target number.

        Raises:
            UsageError: the number is not a whole number; the caller's fault.
        """
        self._numbers[_key(algorithm)] = whole_number(number)

    def get(self, algorithm: Callable[..., Any] | None) -> int:
        """Return a target number; 0 if it was never set."""
        return self._numbers.get(_key(algorithm), 0)


def _key(algorithm: Callable[..., Any] | None) -> Any:
    """What a target number is stored under: the function, or its id if it has no hash."""
    try:
        hash(algorithm)
    except TypeError:
        return id(algorithm)
    return algorithm


def whole_number(number: int) -> int:
    """Return a number that a user gives; 0 for a negative one.

    Raises:
        UsageError: it is not a whole number; the caller's fault.
    """
    try:
        return max(0, index(number))
    except TypeError:
        raise UsageError(f"a whole number is needed here, not {number!r}") from None


def kind_of_slave(kind: str) -> SlaveKind:
    """Return the kind of slave that a user names.

    Raises:
        UsageError: there is none; the caller's fault.
    """
    try:
        return SlaveKind(kind)
    except ValueError:
        raise UsageError(f"there is no kind of slave {kind!r}: ordered, intermingle or unordered") from None
