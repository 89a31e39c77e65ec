"""The tasks that were answered from the run database: how many, and their ids for `mwpy explain`.

Such a task is never in the taskjar. Its id is kept as a part of a range, because most of these tasks follow each other.
Tasks that were in the taskjar when an agent brought their results are only counted.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

from msgspec import Struct, field

__all__ = ["RANGES_MAX", "ReusedIds"]

RANGES_MAX = 100_000
"""How many ranges are kept at most. Each takes 16 bytes. The ids of later tasks are not known."""


class ReusedIds(Struct, eq=False):
    """The counts, and ranges of ids in ascending order."""

    count: int = 0
    failed: int = 0
    """How many of the tasks failed."""
    _firsts: array[int] = field(default_factory=lambda: array("q"))
    _ends: array[int] = field(default_factory=lambda: array("q"))

    def add(self, first: int, count: int, failed: int) -> None:
        """Add ids that are higher than all others, and how many of these tasks failed."""
        self.count += count
        self.failed += failed
        if self._ends and self._ends[-1] == first:
            self._ends[-1] += count
        elif len(self._ends) < RANGES_MAX:
            self._firsts.append(first)
            self._ends.append(first + count)

    def has(self, number: int) -> bool:
        """Whether an id is among them."""
        place = bisect_right(self._firsts, number) - 1
        return place >= 0 and number < self._ends[place]
