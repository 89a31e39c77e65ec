"""One line of the terminal or notebook that is overwritten in place, and that other output does not break.

After each drawing, the cursor is at the start of the line. So whatever comes next overwrites it:

- Text that this process writes to its standard streams passes through `_Screen`, which removes the line before. It
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from attrs import Factory, define

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


@define(eq=False, repr=False)
class _Screen:
    """The terminal of this process."""

    lock: threading.RLock = Factory(threading.RLock)
    """Held while something is written."""
    lines: list[LiveLine] = Factory(list)
    """The lines that have not ended. Only the last is drawn."""
    routed: list[tuple[TextIO, Callable[[str], int], Callable[[str], int]]] = Factory(list)
    """The streams on the terminal while a line is shown: each with its method `write`, and what has replaced it."""
    drawn: LiveLine | None = None
    """The line that can be seen now."""
    partial: bool = False
    """Whether the last line of other output is not complete."""

    def begin(self, line: LiveLine) -> None:
        if not self.lines:
            streams = {id(each): each for each in (line.stream, sys.stdout, sys.stderr) if each is not None}
            for stream in streams.values():
                if is_terminal(stream):
                    self._route(stream)
            self.partial = False
        self.lines.append(line)

    def _route(self, stream: TextIO) -> None:
        """Let everything that is written to a stream remove the line before. It is drawn again later."""
        put = stream.write

        def write(text: str) -> int:
            with self.lock:
                self.remove()
                written = put(text)
                if text:
                    self.partial = not text.endswith("\n")
                    if not self.partial:  # agents write here, too: the parts of a line must not come one by one
                        stream.flush()
                return written

        stream.write = write  # type: ignore[method-assign]
        self.routed.append((stream, put, write))

    def end_routes(self) -> None:
        """Give the streams their own methods again, unless somebody else has replaced them since."""
        for stream, _, write in self.routed:
            if stream.__dict__.get("write") is write:
                del stream.__dict__["write"]
        self.routed.clear()

    def leave_to_parent(self) -> None:
        """Forget everything: this process was forked just now, and the terminal belongs to its parent."""
        self.lock, self.drawn = threading.RLock(), None
        self.end_routes()
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
            self.end_routes()


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
            self._write = next((put for _, put, write in _SCREEN.routed if write is stream.write), stream.write)

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
            for stream, _, _ in _SCREEN.routed if _SCREEN.partial else ():
                with suppress(OSError, ValueError):  # nobody will see it
                    stream.flush()
            if text:
                self.put(f"{_NEW_LINE if _SCREEN.partial else _START}{self._cut(text)}{ERASE_RIGHT}\n")
                _SCREEN.partial = False
            _SCREEN.end(self)

    def _cut(self, text: str) -> str:
        return text[: width_of(self.stream) - 1]

    def put(self, text: str) -> None:
        """Write to the terminal itself."""
        with suppress(OSError, ValueError):  # nobody will see it
            self._write(text)
            self.stream.flush()


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


def shell_of_ipython(in_notebook: bool = False) -> Any:
    """Return the shell of IPython that this process belongs to; None if there is none. It does not import IPython.

    Args:
        in_notebook: whether only the shell of a notebook counts.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell if not in_notebook or hasattr(shell, "kernel") else None
