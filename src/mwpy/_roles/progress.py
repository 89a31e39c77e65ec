"""Shows how far a map or a computation is, without filling the screen or a log file.

The thread that waits for results draws, at most ten times a second. While an algorithm waits for a future of
`mw.executor()`, this is the thread of the executor. Nothing is done per task: what is shown are counts
that exist anyway. tqdm formats the line if it is installed; `live_line.py` keeps other output from breaking it.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Callable
from functools import cache
from operator import index
from typing import Any, Literal, Protocol, SupportsIndex, TextIO

from msgspec import Struct, field

from mwpy._system import clock
from mwpy._system.live_line import Cell, LiveLine, is_notebook, is_terminal, width_of
from mwpy._values.errors import UsageError
from mwpy._values.phrases import counted
from mwpy._values.task import in_one_line

# The text about progress: done, total, failed, slaves, rate and time left.


WITH_TOTAL = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix} [{elapsed}<{remaining}, {rate_fmt}]"
WITHOUT_TOTAL = "{desc}: {n_fmt}{postfix} [{elapsed}, {rate_fmt}]"
"""What tqdm shows. Failures and slaves come before the times, which a narrow terminal cuts."""

FIRST_MARK_S = 2.0
"""For this time, the rate is that of the whole time."""


class Figures(Struct, frozen=True):
    """What is shown about progress."""

    done: int
    """How many items have ended, also those that failed."""
    total: int | None
    """How many items there are; None if that is unknown."""
    failed: int
    slaves: int
    reused: int = 0
    """How many of those that have ended were answered from the run database."""
    rate: float | None = None
    """How many items end in a second, if this is known; else the meter measures it."""


class Meter:
    """Describes figures as they change. The rate is that of the last half to three quarters of the time, because slaves
    come and go; the time before the first slave does not count."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._began = clock.monotonic()
        self._first_slave: float | None = None
        """When there was a slave for the first time."""
        self._since: tuple[float, int] = (0.0, 0)
        """From when the rate is measured, and how many items had ended then."""
        self._next: tuple[float, int] = (0.0, 0)
        """From when it will be measured next."""
        self._next_at = 0.0

    @property
    def seconds(self) -> float:
        """The seconds since the beginning."""
        return clock.monotonic() - self._began

    def text(self, figures: Figures) -> str:
        """Return a line without a bar."""
        done, total, failed = figures.done, figures.total, figures.failed
        rate = self._rate(figures)
        parts = [f"mwpy: {self.name}: {done}{f' of {total}' if total else ''} items in {self.seconds:.0f} s"]
        if failed:
            parts.append(f"{failed} failed")
        if figures.reused:
            parts.append(f"{figures.reused} from the run database")
        parts.append(counted(figures.slaves, "slave"))
        if rate:
            parts.append(f"{rate:.3g}/s" if rate < 1000 else f"{rate:.0f}/s")
            if total and done < total:
                parts.append(f"about {(total - done) / rate:.0f} s left")
        return ", ".join(parts)

    def bar(self, figures: Figures, width: int, encoding: str | None) -> str:
        """Return a line with a bar, if tqdm is installed, and at most `width` characters."""
        tqdm = _tqdm()
        if tqdm is None:
            return self.text(figures)[:width]
        failed = f"{figures.failed} failed, " if figures.failed else ""
        reused = f"{figures.reused} from the run database, " if figures.reused else ""
        return str(
            tqdm.format_meter(
                figures.done,
                figures.total,
                self.seconds,
                ncols=width,
                prefix=f"mwpy: {self.name}",
                ascii=not (encoding or "").lower().startswith("utf"),
                unit="",
                bar_format=WITH_TOTAL if figures.total else WITHOUT_TOTAL,
                rate=self._rate(figures),
                postfix=f"{failed}{reused}{counted(figures.slaves, 'slave')}",
            )
        )

    def _rate(self, figures: Figures) -> float | None:
        """How many items end in a second; None if this is unknown."""
        if figures.rate is not None:
            return figures.rate
        now, done = clock.monotonic(), figures.done - figures.reused
        if self._first_slave is None:
            if not (figures.slaves or done):
                return None
            self._first_slave = self._began if done else now
            self._since = self._next = self._first_slave, 0
            self._next_at = self._first_slave + FIRST_MARK_S
        if now >= self._next_at:
            self._since, self._next = self._next, (now, done)
            self._next_at = now + (now - self._first_slave)
        start, before = self._since
        return (done - before) / (now - start) if done > before and now > start else None


@cache
def _tqdm() -> Any:
    """The class of tqdm; None if tqdm is not installed."""
    try:
        from tqdm.std import tqdm
    except ImportError:
        return None
    return tqdm


Report = Callable[[int, int | None], object]
"""Receives how many items have ended and how many there are; None if the second number is unknown."""

ShowProgress = bool | Literal["text"] | Report | None
"""What users say about progress."""

BETWEEN_REPORTS_S = 0.1
"""Shortest time between two reports, except the last."""

FIRST_LINE_S = 10.0
"""Where lines cannot be overwritten, as in a log file, the first one is written after this time."""

GROWTH = 2.0
"""Then each pause is this many times as long as the one before."""

NOTEBOOK_WIDTH = 100
"""The width of the line in a notebook, in characters."""


class Display(Protocol):
    """Shows figures, and knows which are the last ones."""

    def show(self, figures: Figures, is_last: bool) -> None: ...


class Progress(Struct, eq=False):
    """Shows the progress of one map, or of a computation.

    Args:
        display: shows the figures.
        total: how many items there are, or None.
    """

    display: Display
    total: int | None
    is_shared: bool = False
    """Whether the threads of executors show it, too, because the algorithm may wait for a future."""
    _figures: Callable[[], Figures] | None = None
    """What is shown; None until `begin`, and after the end."""
    _due: float = 0.0

    def begin(self, figures: Callable[[], Figures]) -> None:
        """From now on, there is something to show."""
        self._figures, self._due = figures, clock.monotonic()

    def update(self) -> None:
        """Show the figures, unless this was done a moment ago."""
        if self._figures is not None and (now := clock.monotonic()) >= self._due:
            self._due = now + BETWEEN_REPORTS_S
            self.display.show(self._figures(), is_last=False)

    def end(self) -> None:
        """Show the last figures. A second call does nothing."""
        if self._figures is not None:
            figures, self._figures = self._figures(), None
            self.display.show(figures, is_last=True)


class OpenProgress(Struct, eq=False):
    """The progress that a thread shows while it waits, oldest first. Several maps may be open.

    Args:
        shared: what the thread of the master algorithm shows, in the thread of an executor, which shows its shared
            part, too.
    """

    shared: OpenProgress | None = None
    _all: list[Progress] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    """Held to show something."""

    def __bool__(self) -> bool:
        return bool(self._all) or (self.shared is not None and any(each.is_shared for each in self.shared._all))

    def begin(self, progress: Progress, figures: Callable[[], Figures]) -> None:
        """From now on, show it."""
        progress.begin(figures)
        self._all.append(progress)

    def update(self) -> None:
        """Show everything that was not shown a moment ago."""
        with self._lock:
            for progress in self._all:
                progress.update()
        if self.shared is not None:
            self.shared._update_shared()

    def _update_shared(self) -> None:
        """Show what the threads of executors show, too, unless another thread shows something now."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            for progress in self._all[:]:
                if progress.is_shared:
                    progress.update()
        except (OSError, ValueError):  # the thread of the algorithm raises it again when it shows something
            pass
        finally:
            self._lock.release()

    def end(self, progress: Progress) -> None:
        """Show it for the last time. A second call does nothing."""
        with self._lock:
            if progress in self._all:
                self._all.remove(progress)
            progress.end()

    def end_all(self) -> None:
        """Show everything for the last time, the newest first."""
        while self._all:
            self._all.pop().end()


class ToFunction(Struct, eq=False):
    """Reports to a function of the user."""

    report: Report
    _reported: int = 0

    def show(self, figures: Figures, is_last: bool) -> None:  # noqa: ARG002  # the last figures are as others
        """Report the figures if they have changed."""
        if figures.done != self._reported:
            self._reported = figures.done
            self.report(figures.done, figures.total)


class TerminalLine(Struct, eq=False):
    """A line that is overwritten."""

    meter: Meter
    stream: TextIO
    _line: LiveLine | None = None

    def show(self, figures: Figures, is_last: bool) -> None:
        """Draw the line. Nothing is drawn if the first figures are the last ones."""
        if self._line is None:
            if is_last:
                return
            self._line = LiveLine(self.stream)
        draw = self._line.end if is_last else self._line.draw
        draw(self.meter.bar(figures, width_of(self.stream) - 1, self.stream.encoding))


class LogLines(Struct, eq=False):
    """Lines that come at growing intervals, because they stay."""

    meter: Meter
    stream: TextIO
    _pause_s: float = FIRST_LINE_S
    _written: int | None = 0
    """How many items had ended at the last line."""

    def show(self, figures: Figures, is_last: bool) -> None:
        """Write a line if it is time, and the last one if something has ended since the one before."""
        seconds = self.meter.seconds
        if figures.done != self._written if is_last else seconds >= self._pause_s:
            self._pause_s, self._written = seconds * GROWTH, figures.done
            print(self.meter.text(figures), file=self.stream, flush=True)


class NotebookBar(Struct, eq=False):
    """A bar in the output of the cell that runs."""

    meter: Meter
    _cell: Cell = field(default_factory=Cell)

    def show(self, figures: Figures, is_last: bool) -> None:  # noqa: ARG002  # the last figures are as others
        """Draw the bar."""
        from html import escape  # only here, because it loads a large table

        text, total = self.meter.text(figures), figures.total
        value = f' value="{figures.done}" max="{total}"' if total else ""
        html = f'<progress{value} style="width: 20em; vertical-align: middle"></progress> <code>{escape(text)}</code>'
        self._cell.show(self.meter.bar(figures, NOTEBOOK_WIDTH, "utf-8"), html)


class Careful(Struct, eq=False):
    """Shows figures until this fails once: what shows them in the thread of an executor concerns none of its tasks."""

    display: Display
    _has_failed: bool = False

    def show(self, figures: Figures, is_last: bool) -> None:
        """Show the figures."""
        if self._has_failed:
            return
        try:
            self.display.show(figures, is_last)
        except BaseException as error:  # SystemExit would end the thread in silence
            self._has_failed = True
            text = in_one_line(type(error).__name__, str(error))
            print(f"mwpy: the progress is not shown any more, because showing it raised {text}", file=sys.stderr)


class _Nothing(Struct, frozen=True):
    """Shows nothing: standard error is a pipe, or closed."""

    def show(self, figures: Figures, is_last: bool) -> None: ...


def display_of(name: str, as_text: bool = False) -> Display:
    """Return what shows progress to the user.

    Args:
        name: the name of what progresses.
        as_text: whether there are lines of text at growing intervals, wherever standard error goes.
    """
    stream = sys.stderr
    if stream is None:
        return _Nothing()
    if as_text:
        return LogLines(Meter(name), stream)
    if is_notebook():
        return NotebookBar(Meter(name))
    if is_terminal(stream):
        return TerminalLine(Meter(name), stream)
    return LogLines(Meter(name), stream) if _is_file(stream) else _Nothing()


def _is_file(stream: TextIO) -> bool:
    """Whether lines of a stream are kept: it is a regular file, or a terminal that cannot overwrite lines."""
    try:
        return stream.isatty() or stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):  # it is closed, or is no file
        return False


def progress_of(
    progress: ShowProgress, total: int | None, iterables: tuple[Any, ...] = (), name: str = ""
) -> Progress | None:
    """Return what shows the progress of a map; None if nothing does.

    Raises:
        UsageError: an argument has a wrong type; the caller's fault.
    """
    if total is not None and not _is_count(total):
        raise UsageError(f"total={total!r}: give the number of items, or None")
    if progress is None or progress is False:
        return None
    is_known = progress is True or (isinstance(progress, str) and progress == "text")
    if not is_known and not callable(progress):
        raise UsageError(
            f'progress={progress!r}: give True for a line on standard error, "text" for lines of a log, or a function '
            f"(done, total)"
        )
    if total is None and iterables and all(hasattr(each, "__len__") for each in iterables):
        total = min(map(len, iterables))
    display = ToFunction(progress) if callable(progress) else display_of(name, as_text=progress == "text")
    return Progress(display, total)


def _is_count(value: object) -> bool:
    return isinstance(value, SupportsIndex) and index(value) >= 0
