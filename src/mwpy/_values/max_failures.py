"""Limits for the number of failures: when a run stops, and what the failures had in common."""

from __future__ import annotations

import re
from operator import index
from typing import SupportsIndex

from msgspec import Struct, field

from mwpy._values.errors import FailureKind, TaskFailed, UsageError

__all__ = ["KINDS_KEPT", "OTHER_KINDS", "FailureLimit", "FailuresByKind", "MaxFailures"]

FailureLimit = SupportsIndex | str | None
"""How a user gives a limit: `10`, `"10"`, `"5%"`, `"10,finish"`, or None for no limit."""

LEAST_ENDED = 100
"""A percentage counts from this many ended tasks on, because a percentage of a few tasks says little. The manual names
this number."""

KINDS_KEPT = 50
"""How many kinds of failures are counted apart, because an exception class may be made for each task."""

OTHER_KINDS = "other kinds"

_FORM = r"(?P<number>\d+(\.\d+)?)\s*(?P<percent>%)?\s*(?P<finish>,\s*finish)?"  # compiled when it is used


class MaxFailures(Struct, frozen=True):
    """At how many failures a run stops, and whether its running tasks may finish then."""

    number: float
    is_percentage: bool = False
    finish: bool = False

    @classmethod
    def read(cls, text: str) -> MaxFailures:
        """Read a limit from its text form: `10`, `5%`, `10,finish` or `5%,finish`.

        Raises:
            ValueError: it has no such form.
        """
        found = re.fullmatch(_FORM, text.strip(), re.ASCII)
        if found is not None:
            number, is_percentage = float(found["number"]), found["percent"] is not None
            if 0 < number <= 100 if is_percentage else number >= 1 and number.is_integer():
                return cls(number, is_percentage, found["finish"] is not None)
        raise ValueError("must be a whole number from 1 on or a percentage such as 5%, and may end with ,finish")

    @classmethod
    def of(cls, value: FailureLimit) -> MaxFailures | None:
        """Return the limit that a user gives as a number or a text; None for no limit.

        Raises:
            UsageError: it is none; the caller's fault.
        """
        if value is None:
            return None
        try:
            return cls.read(value if isinstance(value, str) else str(index(value)))
        except (TypeError, ValueError):
            raise UsageError(
                f"max_failures={value!r}: give a whole number from 1 on or a percentage such as '5%', and end it with "
                f"',finish' if running tasks may finish"
            ) from None

    def is_reached(self, failed: int, ended: int) -> bool:
        """Whether a run stops when this many of its ended tasks have failed."""
        if self.is_percentage:
            return ended >= LEAST_ENDED and 100 * failed >= self.number * ended
        return failed >= self.number

    def __str__(self) -> str:
        return f"{self.number:g}{'%' if self.is_percentage else ''}{',finish' if self.finish else ''}"


class FailuresByKind(Struct, eq=False):
    """Counts failures by their kind, and keeps the first one of each."""

    _kinds: dict[str, FailureKind] = field(default_factory=dict)

    def add(self, failure: TaskFailed) -> None:
        """Count a failure."""
        kind = _kind_of(failure)
        if kind not in self._kinds and len(self._kinds) >= KINDS_KEPT:
            kind = OTHER_KINDS
        known = self._kinds.get(kind)
        count, example = (1, failure) if known is None else (known.count + 1, known.example)
        self._kinds[kind] = FailureKind(kind, count, example)

    def take(self) -> tuple[FailureKind, ...]:
        """Return the kinds, the most frequent one first, and count from zero again."""
        kinds, self._kinds = self._kinds, {}
        return tuple(sorted(kinds.values(), key=lambda kind: -kind.count))


def _kind_of(failure: TaskFailed) -> str:
    """The type of an exception; for an unrunnable task, the cause of its last loss."""
    cause = f" ({failure.deaths[-1].cause.value})" if failure.deaths else ""
    return failure.type_name + cause
