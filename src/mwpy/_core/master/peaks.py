"""How much memory a task is expected to use.

Agents report the most memory that they have measured while tasks with `memory_max` ran. An agent whose job is short of
memory kills the slave that is furthest beyond what its task is expected to use. The task is tried again, and may use
twice as much, up to its `memory_max`. So of several large tasks, the one that was killed before goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from msgspec.structs import replace

from mwpy._core.master.spans import Span
from mwpy._values.policy import Limits

__all__ = ["PEAKS_KEPT", "PEAKS_NEEDED", "Peaks", "more_memory", "with_expected"]

PEAKS_KEPT = 100
"""How many of the last peaks of an algorithm are kept."""

PEAKS_NEEDED = 10
"""From so many peaks on, they say what a task will use."""

USUAL = 0.95
"""The part of the tasks that use no more than is expected."""

SLACK = 1.2
"""A task may use this many times as much as is usual."""

GROWTH = 2
"""The next attempt may use this many times as much."""


class Peaks:
    """The last measured peaks of one algorithm, in bytes."""

    def __init__(self) -> None:
        self._last: deque[int] = deque(maxlen=PEAKS_KEPT)
        self.expected: int | None = None
        """How much a task will use; None if too few peaks were measured."""

    def add(self, peak: int) -> None:
        """Record a peak."""
        self._last.append(peak)
        if len(self._last) >= PEAKS_NEEDED:
            self.expected = int(SLACK * sorted(self._last)[int(USUAL * (len(self._last) - 1))])


def with_expected(limits: Limits, span: Span, peaks: Mapping[int, Peaks]) -> Limits:
    """The limits of tasks, with how much memory they are expected to use in their next attempt."""
    known = peaks.get(span.algorithm.number)
    usual = known.expected or 0 if known is not None else 0
    expected = max(usual, *(death.more_memory for death in span.deaths), 0)
    return replace(limits, expected=min(expected, span.policy.memory_max or 0) or None)


def more_memory(span: Span, allowed: int) -> int:
    """How many bytes the next attempt of a task may use, after one that might use `allowed` bytes; 0 for no more."""
    return min(GROWTH * allowed, span.policy.memory_max or 0)
