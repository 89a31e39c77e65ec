"""Shows how far a map or a computation is, without filling the screen or a log file.

The thread that waits for results draws, at most ten times a second. While an algorithm waits for a future of
`mw.executor()`, this is the thread of the executor. Nothing is done per task: what is shown are counts
that exist anyway. `live_line.py` keeps other output from breaking the line.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from math import inf
from operator import index
from typing import Any, Literal, TextIO

from attrs import Factory, define
from msgspec import Struct

from mwpy._system import clock
from mwpy._system.live_line import LiveLine, is_terminal, shell_of_ipython, width_of
from mwpy._values.errors import UsageError
from mwpy._values.phrases import counted, duration, squeezed
from mwpy._values.requires import within
from mwpy._values.task import in_one_line

# The text about progress: done, total, failed, slaves, rate and time left.


FIRST_MARK_S = 2.0
"""For this time, the rate is that of the whole time."""

LEFT_OUT = "reused", "rate", "bar", "slaves", "name", "failed", "left"
"""Which parts of a line are left out where there is no room, in this order. The name is only shortened once more."""

NAME_WIDTH, LEAST_NAME = 20, 8
"""To how many characters a name is shortened before the first part is left out, and then."""

BAR = 10
"""The length of the bar of a line, in characters."""


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
        of_total = f" of {figures.total}" if figures.total else ""
        return self._line(f"{figures.done}{of_total} items in {duration(round(self.seconds))}", figures)

    def bar(self, figures: Figures, width: int) -> str:
        """Return a line of at most `width` characters, with a bar if the total is known.

        No number is cut: what is least important is left out where there is no room for it.
        """
        done, total = figures.done, figures.total
        if not total:
            return self._line(f"{done} items in {duration(round(self.seconds))}", figures, width)
        filled, percent = "#" * (BAR * done // total), f"{100 * done // total:3}%"
        with_bar = f"{percent}|{filled:<{BAR}}| {done} of {total}"
        return self._line(with_bar, figures, width, without_bar=f"{percent}, {done} of {total}")

    def _line(self, how_far: str, figures: Figures, width: int | None = None, without_bar: str = "") -> str:
        rate = self._rate(figures)
        per_second = "" if not rate else f"{rate:.3g}/s" if rate < 1000 else f"{rate:.0f}/s"
        left_s = (figures.total - figures.done) / rate if rate and figures.total else 0.0
        parts = {
            "failed": f"{figures.failed} failed" if figures.failed else "",
            "reused": f"{figures.reused} from the run database" if figures.reused else "",
            "slaves": counted(figures.slaves, "slave"),
            "rate": per_second,
            "left": f"about {duration(round(left_s))} left" if left_s > 0 else "",
        }
        name, places = self.name, [*LEFT_OUT]
        while True:
            line = ", ".join([f"mwpy: {name}: {how_far}", *filter(None, parts.values())])
            if width is None or len(line) <= width:
                return line
            if len(name) > NAME_WIDTH:
                name = squeezed(name, NAME_WIDTH)
            elif not places:
                return line[:width]
            elif (place := places.pop(0)) == "name":
                name = squeezed(name, LEAST_NAME)
            elif place == "bar":
                how_far = without_bar or how_far
            else:
                parts[place] = ""

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


Report = Callable[[int, int | None], object]
"""Receives how many items have ended and how many there are; None if the second number is unknown."""

ShowProgress = bool | Literal["text"] | Report | None
"""What users say about progress."""

BETWEEN_REPORTS_S = 0.1
"""Shortest time between two reports, except the last."""

FIRST_LINE_S = 10.0
"""Where lines cannot be overwritten, as in a log file or a pipe, the first one is written after this time."""

SHORT_S = 2.0
"""There, a map or an executor that ends within this time writes nothing: a script may have thousands of them."""

GROWTH = 2.0
"""Then each pause is this many times as long as the one before."""

NOTEBOOK_WIDTH = 100
"""The width of the line in a notebook, in characters."""


Display = Callable[[Figures, bool], None]
"""Shows figures. The second argument says whether they are the last ones."""


@define(eq=False, repr=False)
class Progress:
    """Shows the progress of one map, or of a computation.

    Args:
        display: shows the figures.
    """

    display: Display
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
            self.display(self._figures(), False)

    def end(self) -> None:
        """Show the last figures. A second call does nothing."""
        if self._figures is not None:
            figures, self._figures = self._figures(), None
            self.display(figures, True)


@define(eq=False, repr=False)
class OpenProgress:
    """The progress that a thread shows while it waits, oldest first. Several maps may be open.

    Args:
        shared: what the thread of the master algorithm shows, in the thread of an executor, which shows its shared
            part, too.
    """

    shared: OpenProgress | None = None
    _all: list[Progress] = Factory(list)
    _lock: threading.RLock = Factory(threading.RLock)
    """Held to show something."""

    def __bool__(self) -> bool:
        return bool(self._all) or (self.shared is not None and any(each.is_shared for each in self.shared._all))

    def begin(self, progress: Progress, figures: Callable[[], Figures]) -> None:
        """From now on, show it."""
        progress.begin(figures)
        self._all.append(progress)

    def update(self, for_other: bool = False) -> None:
        """Show everything that was not shown a moment ago.

        Args:
            for_other: whether the thread of an executor does this for the thread of the algorithm. It shows what is
                shared, unless another thread shows something now. The thread of the algorithm raises what fails.
        """
        if not self._lock.acquire(blocking=not for_other):
            return
        try:
            for progress in self._all[:]:
                if progress.is_shared or not for_other:
                    progress.update()
        except (OSError, ValueError):
            if not for_other:
                raise
        finally:
            self._lock.release()
        if self.shared is not None:
            self.shared.update(for_other=True)

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


# Ways to show figures.


def to_function(report: Report) -> Display:
    """Report the figures to a function of the user whenever they have changed."""
    reported = 0

    def show(figures: Figures, _is_last: bool) -> None:
        nonlocal reported
        if figures.done != reported:
            reported = figures.done
            report(figures.done, figures.total)

    return show


def on_terminal(meter: Meter, stream: TextIO) -> Display:
    """Draw a line that is overwritten. Nothing is drawn if the first figures are the last ones."""
    line: LiveLine | None = None

    def show(figures: Figures, is_last: bool) -> None:
        nonlocal line
        if line is None:
            if is_last:
                return
            line = LiveLine(stream)
        (line.end if is_last else line.draw)(meter.bar(figures, width_of(stream) - 1))

    return show


def in_log(meter: Meter, stream: TextIO, short_s: float = 0.0) -> Display:
    """Write lines at growing intervals, because they stay, and the last one if something has ended since.

    Args:
        short_s: whatever ends within this time, in seconds, writes nothing.
    """
    pause_s, written = FIRST_LINE_S, 0

    def show(figures: Figures, is_last: bool) -> None:
        nonlocal pause_s, written
        seconds = meter.seconds
        if figures.done != written and seconds >= short_s if is_last else seconds >= pause_s:
            pause_s, written = seconds * GROWTH, figures.done
            with suppress(OSError, ValueError):  # nobody reads the pipe any more
                print(meter.text(figures), file=stream, flush=True)

    return show


def in_notebook(meter: Meter) -> Display:
    """Draw a bar in the output of the cell that runs: as text where HTML cannot be shown."""
    handle: Any = None

    def show(figures: Figures, _is_last: bool) -> None:
        nonlocal handle
        from html import escape  # only here, because it loads a large table

        text, total = meter.text(figures), figures.total
        value = f' value="{figures.done}" max="{total}"' if total else ""
        html = f'<progress{value} style="width: 20em; vertical-align: middle"></progress> <code>{escape(text)}</code>'
        shown = {"text/plain": meter.bar(figures, NOTEBOOK_WIDTH), "text/html": html}
        if handle is None:
            handle = sys.modules["IPython"].display.display(shown, raw=True, display_id=True)
        else:
            handle.update(shown, raw=True)

    return show


def careful(display: Display) -> Display:
    """Show figures until this fails once: what shows them in the thread of an executor concerns none of its tasks."""
    has_failed = False

    def show(figures: Figures, is_last: bool) -> None:
        nonlocal has_failed
        if has_failed:
            return
        try:
            display(figures, is_last)
        except BaseException as error:  # SystemExit would end the thread in silence
            has_failed = True
            text = in_one_line(type(error).__name__, str(error))
            print(f"mwpy: the progress is not shown any more, because showing it raised {text}", file=sys.stderr)

    return show


def nothing(_figures: Figures, _is_last: bool) -> None:
    """Show nothing: standard error is closed."""


def display_of(name: str, as_text: bool = False, is_whole: bool = False) -> Display:
    """Return what shows progress to the user.

    Args:
        name: the name of what progresses.
        as_text: whether there are lines of text at growing intervals, wherever standard error goes.
        is_whole: whether this is the whole computation. There is one, so its last line is written in any case.
    """
    stream = sys.stderr
    if stream is None or getattr(stream, "closed", False):
        return nothing
    if not as_text and shell_of_ipython(in_notebook=True) is not None:
        return in_notebook(Meter(name))
    if not as_text and is_terminal(stream):
        return on_terminal(Meter(name), stream)
    return in_log(Meter(name), stream, 0.0 if as_text or is_whole else SHORT_S)


def total_of(total: int | None, iterables: tuple[Any, ...] = ()) -> int | None:
    """Return how many items there are, as the user says or as the iterables know; None if this is unknown.

    Raises:
        UsageError: it is no number of items; the caller's fault.
    """
    count: int | None = within(0, inf, index, "the number of items, or None")("total", total)
    if count is None and iterables and all(hasattr(each, "__len__") for each in iterables):
        return min(map(len, iterables))
    return count


def progress_of(progress: ShowProgress, name: str, is_whole: bool = False) -> Progress | None:
    """Return what shows progress; None if nothing does.

    Args:
        progress: what the user says.
        name: the name of what progresses.
        is_whole: as for `display_of`.

    Raises:
        UsageError: an argument has a wrong type; the caller's fault.
    """
    if progress is None or progress is False:
        return None
    is_known = progress is True or (isinstance(progress, str) and progress == "text")
    if not is_known and not callable(progress):
        raise UsageError(
            f'progress={progress!r}: give True for a line on standard error, "text" for lines of a log, or a function '
            f"(done, total)"
        )
    return Progress(
        to_function(progress) if callable(progress) else display_of(name, progress == "text", is_whole=is_whole)
    )
