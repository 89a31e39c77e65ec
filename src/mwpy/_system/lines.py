"""Lines for a file or a standard stream: what is lost when a disk is full, and where the lines of a full file go."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from mwpy._system.live_line import undrawn

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["RotatedFile", "WholeLines", "put_on_stream"]


class WholeLines:
    """Writes lines so that a failure loses whole lines only. It runs in the thread that writes.

    Args:
        put: the function that writes some of the bytes, at least one, and returns how many.
        gap: the line that says that this many lines are missing before it, with its line feed.
        report: the function that reports the first of several failures.
    """

    def __init__(
        self, put: Callable[[memoryview], int], gap: Callable[[int], str], report: Callable[[Exception], None]
    ) -> None:
        self._put = put
        self._gap = gap
        self._report = report
        self._lost = 0
        """How many lines could not be written since the last one that could."""
        self._end = b"\n"
        """The last byte that was written. If it is no line feed, the last line was cut."""

    def write(self, text: str) -> None:
        """Write lines. After a failure, the next line that can be written says how many lines are missing before it."""
        if self._lost:
            before = "" if self._end == b"\n" else "\n"
            if self._attempt(before + self._gap(self._lost)):
                self._lost += text.count("\n")
                return
        self._lost = self._attempt(text)

    def _attempt(self, text: str) -> int:
        """Write lines, and return how many could not be written completely."""
        data = memoryview(text.encode(errors="backslashreplace"))
        try:
            while data:
                count = self._put(data)
                self._end = bytes(data[count - 1 : count])
                data = data[count:]
        except (OSError, ValueError) as error:
            if not self._lost:
                self._report(error)
        return bytes(data).count(b"\n")


def put_on_stream(stream: TextIO | None, original: TextIO | None, data: memoryview) -> int:
    """Write to a standard stream, or to what replaces it, as in a notebook. Return how many bytes were written.

    The stream's own `write` would hold its lock while it waits, and the interpreter could then not end.
    """
    if stream is None:
        raise ValueError("the stream is closed")
    if stream is original:
        with undrawn():
            return os.write(stream.fileno(), data)
    stream.write(str(data, "utf-8"))
    stream.flush()
    return len(data)


class RotatedFile:
    """A file that is renamed when it is full. Only the first open is in the thread that makes this object.

    Args:
        path: the file.
        max_bytes: the size at which it is rotated.
        kept: how many old files are kept; FILE.1 is the newest.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path, max_bytes: int, kept: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._kept = kept
        self._fd: int | None = None
        self._size = 0
        self._open()

    def put(self, data: memoryview) -> int:
        """Write some of the bytes, and return how many."""
        if self._size and self._size + len(data) > self._max_bytes:
            self._rotate()
        if self._fd is None:
            self._open()
        count = os.write(self._fd or 0, data)
        self._size += count
        return count

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._fd).st_size

    def _rotate(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        for number in range(self._kept, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            newer = self._path.with_name(f"{self._path.name}.{number - 1}") if number > 1 else self._path
            if newer.exists():
                os.replace(newer, older)
