"""One line of the terminal or notebook that is overwritten in place, and that other output does not break.

After each drawing, the cursor is at the start of the line. So whatever comes next overwrites it:

- Text that this process writes to its standard streams passes through `_Routed`, which removes the line before. It
  replaces the method `write` of the stream, not the stream, so handlers of `logging` that keep the stream are included.
- The master's own messages (`put_on_stream`) remove the line before.
- Agents on this terminal remove what is right of the cursor before they write (`streams.Outlet`).

The next drawing puts the line below all that. While the last line of this process's own output is not complete, nothing
is drawn.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from msgspec import Struct, field

ERASE_RIGHT = "\x1b[K"
"""Lets a terminal erase everything from the cursor to the end of the line."""

USUAL_WIDTH = 80
"""The width of a terminal that does not know its own, in characters."""


def is_terminal(stream: TextIO) -> bool:
    """Whether lines of a stream can be overwritten."""
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # it is closed
        return False


def width_of(stream: TextIO) -> int:
    """The width of a terminal, in characters."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or USUAL_WIDTH
    except (OSError, ValueError):
        return USUAL_WIDTH


class _Routed:
    """Replaces the method `write` of a stream on the terminal while a line is shown."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.put = stream.write
        """What the method was before."""
        stream.write = self.write  # type: ignore[method-assign]

    def write(self, text: str) -> int:
        """Remove the line, then write. The line comes back when it is drawn the next time."""
        with _SCREEN.lock:
            _SCREEN.remove()
            written = self.put(text)
            if text:
                _SCREEN.partial = not text.endswith("\n")
                if not _SCREEN.partial:  # agents write here, too: the parts of a line must not come one by one
                    self._stream.flush()
            return written

    def flush(self) -> None:
        """Write what the stream has kept of an incomplete line."""
        with suppress(OSError, ValueError):  # nobody will see it
            self._stream.flush()

    def end(self) -> None:
        """Give the stream its own method again, unless somebody else has replaced it since."""
        if self._stream.__dict__.get("write") == self.write:
            del self._stream.__dict__["write"]


class _Screen(Struct, eq=False):
    """The terminal of this process."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held while something is written."""
    lines: list[LiveLine] = field(default_factory=list)
    """The lines that have not ended. Only the last is drawn."""
    routed: list[_Routed] = field(default_factory=list)
    drawn: LiveLine | None = None
    """The line that can be seen now."""
    partial: bool = False
    """Whether the last line of other output is not complete."""

    def begin(self, line: LiveLine) -> None:
        if not self.lines:
            streams = {id(each): each for each in (line.stream, sys.stdout, sys.stderr) if each is not None}
            self.routed = [_Routed(each) for each in streams.values() if is_terminal(each)]
            self.partial = False
        self.lines.append(line)

    def leave_to_parent(self) -> None:
        """Forget everything: this process was forked just now, and the terminal belongs to its parent."""
        self.lock, self.drawn = threading.RLock(), None
        for routed in self.routed:
            routed.end()
        self.routed.clear()
        self.lines.clear()

    def remove(self) -> None:
        if self.drawn is not None:
            line, self.drawn = self.drawn, None
            line.put(f"\r{ERASE_RIGHT}")

    def end(self, line: LiveLine) -> None:
        self.drawn = None
        if line in self.lines:
            self.lines.remove(line)
        if not self.lines:
            for routed in self.routed:
                routed.end()
            self.routed.clear()


_SCREEN = _Screen()
"""It is of this module, because a process has one terminal."""

os.register_at_fork(after_in_child=_SCREEN.leave_to_parent)


class LiveLine:
    """A line on a terminal. If several have begun, the newest is shown.

    Args:
        stream: a terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        with _SCREEN.lock:
            _SCREEN.begin(self)
        routed = next((each.put for each in _SCREEN.routed if each.write == stream.write), stream.write)
        self._write = routed

    def draw(self, text: str) -> None:
        """Show a text, cut to the width of the terminal, in place of the one before."""
        with _SCREEN.lock:
            if self in _SCREEN.lines[-1:] and not _SCREEN.partial:
                _SCREEN.drawn = self
                self.put(f"\r{self._cut(text)}{ERASE_RIGHT}\r")

    def end(self, text: str) -> None:
        """Show a last text and leave it there, if it is not empty. Other output follows below it."""
        with _SCREEN.lock:
            _SCREEN.remove()
            for routed in _SCREEN.routed if _SCREEN.partial else ():
                routed.flush()
            if text:
                self.put(f"{_NEW_LINE if _SCREEN.partial else _START}{self._cut(text)}{ERASE_RIGHT}\n")
                _SCREEN.partial = False
            _SCREEN.end(self)

    def _cut(self, text: str) -> str:
        return text[: width_of(self.stream) - 1]

    def put(self, text: str) -> None:
        """Write to the terminal itself."""
        try:
            self._write(text)
            self.stream.flush()
        except (OSError, ValueError):  # nobody will see it
            return


_START, _NEW_LINE = "\r", "\n"


@contextmanager
def undrawn() -> Iterator[None]:
    """Remove the line, if one is shown, and do not draw it within the block: for output that passes by the streams."""
    if not _SCREEN.lines:
        yield
        return
    with _SCREEN.lock:
        _SCREEN.remove()
        yield


# The notebook, or the other shell of IPython, that this process belongs to, if there is one.


def is_notebook() -> bool:
    """Whether the code runs in the kernel of a notebook. It does not import IPython."""
    return hasattr(_shell(), "kernel")


def is_ipython() -> bool:
    """Whether the code runs in a notebook or in another shell of IPython. It does not import IPython."""
    return _shell() is not None


def _shell() -> Any:
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


class _Shown(Struct, frozen=True):
    """Something that a cell shows."""

    text: str
    html: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html


class Cell(Struct, eq=False):
    """A place in the output of the cell that runs, whose content can be replaced."""

    _handle: Any = None

    def show(self, text: str, html: str) -> None:
        """Show something in place of what was there: as text where HTML cannot be shown."""
        shown = _Shown(text, html)
        if self._handle is None:
            self._handle = sys.modules["IPython"].display.display(shown, display_id=True)
        else:
            self._handle.update(shown)
