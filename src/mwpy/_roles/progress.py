"""Shows how far a map is, without filling the screen or a log file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import index
from typing import Any, SupportsIndex, TextIO

from attrs import define, field

from mwpy._system import clock
from mwpy._values.errors import UsageError

__all__ = ["Progress", "Report", "progress_of"]

Report = Callable[[int, int | None], object]
"""Receives how many items have ended and how many there are; None if the second number is unknown."""

BETWEEN_REPORTS_S = 0.1
"""Shortest time between two reports, except the last."""

FIRST_LINE_S = 10.0
"""Where lines cannot be overwritten, as in a log file, the first one is written after this time."""

GROWTH = 2.0
"""Then each pause is this many times as long as the one before."""


@define(eq=False)
class Progress:
    """Reports the progress of one map.

    Args:
        report: receives the numbers.
        total: how many items there are, or None.
        ended: called after the last report.
    """

    report: Report
    total: int | None
    ended: Callable[[], object] | None = None
    _reported: int = 0
    _due: float = field(factory=clock.monotonic)

    def update(self, done: int) -> None:
        """Report how many items have ended, unless the previous report was a moment ago."""
        if done != self._reported and (now := clock.monotonic()) >= self._due:
            self._reported, self._due = done, now + BETWEEN_REPORTS_S
            self.report(done, self.total)

    def end(self, done: int) -> None:
        """Report how many items have ended. The map is closed."""
        if done != self._reported:
            self.report(done, self.total)
        if self.ended is not None:
            self.ended()


@define(eq=False)
class Line:
    """A line about progress: overwritten on a terminal, elsewhere written at growing intervals."""

    name: str
    """The name of the task algorithm."""
    stream: TextIO
    _began: float = field(factory=clock.monotonic)
    _pause_s: float = FIRST_LINE_S
    _unwritten: str = ""
    """The newest text, if it was not written."""

    def write(self, done: int, total: int | None) -> None:
        """Show how many items have ended."""
        seconds = clock.monotonic() - self._began
        text = self.text(done, total, seconds)
        if self.stream.isatty():
            self.stream.write(f"\r{text}\x1b[K")
            self.stream.flush()
        elif seconds >= self._pause_s:
            self._pause_s, self._unwritten = seconds * GROWTH, ""
            print(text, file=self.stream, flush=True)
        else:
            self._unwritten = text

    def end(self) -> None:
        """Write the last line, or end it."""
        if self._unwritten or self.stream.isatty():
            print(self._unwritten, file=self.stream, flush=True)

    def text(self, done: int, total: int | None, seconds: float) -> str:
        """Return the line after some seconds."""
        so_far = f"mwpy: {self.name}: {done}{f' of {total}' if total else ''} items in {seconds:.0f} s"
        if not total or not done or done >= total:
            return so_far
        return f"{so_far}, about {seconds / done * (total - done):.0f} s left"


def progress_of(
    progress: bool | Report | None, total: int | None, iterables: tuple[Any, ...], name: str
) -> Progress | None:
    """Return what reports the progress of a map; None if nothing does.

    Raises:
        UsageError: an argument has a wrong type; the caller's fault.
    """
    if total is not None and not _is_count(total):
        raise UsageError(f"total={total!r}: give the number of items, or None")
    if not progress:
        return None
    if progress is not True and not callable(progress):
        raise UsageError(f"progress={progress!r}: give True for a line on standard error, or a function (done, total)")
    if total is None and all(hasattr(each, "__len__") for each in iterables):
        total = min(map(len, iterables))
    if progress is not True:
        return Progress(progress, total)
    line = Line(name, sys.stderr)
    return Progress(line.write, total, line.end)


def _is_count(value: object) -> bool:
    return isinstance(value, SupportsIndex) and index(value) >= 0
