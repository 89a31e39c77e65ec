"""The standard output and error of slaves, which their agent passes on, and lines that reach a file whole.

A slave writes into pipes. The agent reads them, keeps the end of each, and writes everything to its own standard output
and error. It must not block there, because it has other slaves and a master. So it writes only as much as its stream
accepts at once. If the stream accepts less than the slaves write (a pager, a stopped terminal), the agent stops
reading. The slaves then wait, as they would without an agent. If the stream accepts nothing for `STUCK_S` seconds, the
agent reads again, drops the output that has no room, and writes a line that says how much it dropped. Files instead of
pipes would grow without bound, and printed text would not be visible at once.

On a terminal, the master may show its progress in the line where the cursor is (see `live_line.py`). So what is right
of the cursor is erased before each output.
"""

from __future__ import annotations

import os
import select
import stat
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from attrs import Factory, define

from mwpy._system.live_line import ERASE_RIGHT, undrawn

if TYPE_CHECKING:
    from pathlib import Path


FULL_BYTES = 1 << 20
"""When this much waits to be written, slaves are not read."""

MOST_BYTES = 2 * FULL_BYTES
"""More than this is not kept: further output is dropped."""

STUCK_S = 30.0
"""When the stream has accepted nothing for this time, slaves do not wait any longer."""

READ_BYTES = 65536
"""The size of one read: the capacity of a pipe in Linux."""

MOST_INCOMPLETE = READ_BYTES
"""The most bytes of a line that wait for its end."""

LAST_READS = 16
"""How often the pipe of a dead slave is read. Another process may hold the other end and never stop writing."""


class Outlet:
    """One of this process's own standard streams. Writing to it never blocks.

    Args:
        fd: its file descriptor; None if this process was started without it.
        name: its name for messages.
        now: the time on a monotonic clock, in seconds.
    """

    def __init__(self, fd: int | None, name: str, now: float) -> None:
        self._fd = fd
        self._name = name
        self._waiting: deque[memoryview] = deque()
        self.waiting = False
        """Whether something waits to be written: call `flush` when the stream can be written."""
        self._size = 0
        self._left_out = 0
        self._taken_at = now
        self._piece = select.PIPE_BUF
        if fd is not None and stat.S_ISREG(os.fstat(fd).st_mode):
            self._piece = FULL_BYTES
        is_terminal = fd is not None and os.isatty(fd) and os.environ.get("TERM") != "dumb"
        self._before = ERASE_RIGHT.encode() if is_terminal else b""

    def patience_until(self) -> float | None:
        """Until when slaves must wait because too much waits to be written; None if they need not wait."""
        return self._taken_at + STUCK_S if self._size >= FULL_BYTES else None

    def pass_on(self, data: bytes | bytearray, now: float) -> None:
        """Write as much as the stream accepts now. The rest waits for `flush`."""
        if self._fd is None or not data:
            return
        if not self._waiting:
            self._taken_at = now
        if self._size + len(data) > MOST_BYTES:
            self._left_out += len(data)
            return
        if self._left_out:
            line = f"\nmwpy: {self._left_out} bytes from slaves are missing in {self._name} here: nobody read it\n"
            self._append(line.encode())
            self._left_out = 0
        self._append(self._before + data)
        self.flush(now)

    def _append(self, data: bytes | bytearray) -> None:
        self._waiting.append(memoryview(data))
        self._size += len(data)

    def flush(self, now: float, patience_s: float = 0.0) -> None:
        """Write as much as the stream accepts. Wait at most `patience_s` seconds for each piece."""
        if self._fd is not None:
            self._write(self._fd, now, patience_s)
            self.waiting = bool(self._waiting)

    def _write(self, fd: int, now: float, patience_s: float) -> None:
        ready = select.poll()
        ready.register(fd, select.POLLOUT)
        while self._waiting and ready.poll(patience_s * 1000):
            piece = self._waiting[0][: self._piece]  # a pipe that is ready takes this much without blocking
            try:
                written = os.write(fd, piece)
            except BlockingIOError:
                return
            except OSError:  # nobody will ever read the stream; the last words are kept anyway
                self._waiting.clear()
                self._size, self._fd = 0, None
                return
            self._taken_at = now
            self._size -= written
            rest = self._waiting.popleft()[written:]
            if rest:
                self._waiting.appendleft(rest)


@define(eq=False, repr=False)
class Inlet:
    """The agent's end of the pipe that is a slave's standard output or error.

    Args:
        fd: the pipe, non-blocking.
        most: how many bytes of the end are kept.
        by_lines: whether only complete lines are passed on, as to a terminal where the progress is shown.
    """

    _fd: int
    _most: int
    by_lines: bool = False
    ended: bool = False
    """Whether the other end is closed, by the slave and by every process that it forked."""
    _incomplete: bytes = b""
    """The beginning of a line that is not passed on yet."""
    _tail: bytearray = Factory(bytearray)
    _cut: bool = False

    def fileno(self) -> int:
        """Return the file descriptor of the pipe, to wait for."""
        return self._fd

    def read(self) -> bytes:
        """Read the available bytes, at most the capacity of a pipe; empty if there are none to pass on."""
        data = self._read()
        if not self.by_lines:
            return data
        data = self._incomplete + data
        end = len(data) if self.ended or len(data) > MOST_INCOMPLETE else max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._incomplete = data[end:]
        return data[:end]

    def _read(self) -> bytes:
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return b""
        self.ended = not data
        self._tail += data
        if len(self._tail) > self._most:
            del self._tail[: -self._most]
            self._cut = True
        return data

    def read_rest(self) -> bytes:
        """Read what is left after the slave's exit."""
        read, self._incomplete = bytearray(self._incomplete), b""
        for _ in range(LAST_READS):
            data = self._read()
            if not data:
                break
            read += data
        return bytes(read)

    @property
    def end(self) -> str:
        """The end of everything that the slave wrote, as text."""
        tail = self._tail
        start = 0
        while self._cut and start < min(3, len(tail)) and tail[start] & 0xC0 == 0x80:  # within a character
            start += 1
        return tail[start:].decode(errors="replace")


# Lines for a file or a standard stream: what is lost when a disk is full, and where the lines of a full file go.


@define(eq=False, repr=False)
class WholeLines:
    """Writes lines so that a failure loses whole lines only. It runs in the thread that writes.

    Args:
        put: the function that writes some of the bytes, at least one, and returns how many.
        gap: the line that says that this many lines are missing before it, with its line feed.
        report: the function that reports the first of several failures.
    """

    _put: Callable[[memoryview], int]
    _gap: Callable[[int], str]
    _report: Callable[[Exception], None]
    _lost: int = 0
    """How many lines could not be written since the last one that could."""
    _end: bytes = b"\n"
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
