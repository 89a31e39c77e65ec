"""What slaves write to standard output and error, on its way through their agent.

A slave writes into pipes, of which the agent reads whatever comes, keeps the end, and passes all on to its own standard
output and error. There it must not block: it has other slaves, and a master. So it writes only as much as is taken at
once. If that is less than what comes, as with a pager or a stopped terminal, it stops reading, and the slaves wait, as
they would without an agent. But not for ever: when nothing was taken for `STUCK_S` seconds it reads again, and what has
no room is left out, with a word in its place.
"""

from __future__ import annotations

import os
import select
import stat
from collections import deque

__all__ = ["Inlet", "Outlet"]

FULL_BYTES = 1 << 20
"""When so much waits to be taken, slaves are not read."""

MOST_BYTES = 2 * FULL_BYTES
"""What comes beyond, from slaves that ended or because nothing is taken, is left out."""

STUCK_S = 30.0
"""Seconds without anything being taken after which slaves wait no longer."""

READ_BYTES = 65536
"""What one read takes: the capacity of a pipe in Linux."""

LAST_READS = 16
"""Reads of what a dead slave left in a pipe, for somebody else may hold its other end and write without an end."""


class Outlet:
    """One of this process's own standard streams. Writing to it never blocks.

    Args:
        fd: its number; None if this process was started without.
        name: what to call it.
        now: the time on a monotonic clock, in seconds.
    """

    def __init__(self, fd: int | None, name: str, now: float) -> None:
        self._fd = fd
        self._name = name
        self._waiting: deque[memoryview] = deque()
        self._size = 0
        self._left_out = 0
        self._taken_at = now
        self._piece = select.PIPE_BUF
        if fd is not None and stat.S_ISREG(os.fstat(fd).st_mode):
            self._piece = FULL_BYTES

    @property
    def waiting(self) -> bool:
        """Whether something waits to be taken: call `flush` when the stream can be written."""
        return bool(self._waiting)

    def patience_until(self) -> float | None:
        """Until when slaves have to wait, as it is full; None if it is not."""
        return self._taken_at + STUCK_S if self._size >= FULL_BYTES else None

    def pass_on(self, data: bytes | bytearray, now: float) -> None:
        """Write, at once or when it is taken."""
        if self._fd is None or not data:
            return
        if not self._waiting:
            self._taken_at = now
        if self._size + len(data) > MOST_BYTES:
            self._left_out += len(data)
            return
        if self._left_out:
            told = f"\nmwpy: {self._left_out} bytes of slaves are left out of {self._name} here: nobody read it\n"
            self._append(told.encode())
            self._left_out = 0
        self._append(data)
        self.flush(now)

    def _append(self, data: bytes | bytearray) -> None:
        self._waiting.append(memoryview(data))
        self._size += len(data)

    def flush(self, now: float, patience_s: float = 0.0) -> None:
        """Write what is taken, waiting for each piece no longer than `patience_s` seconds."""
        if self._fd is None:
            return
        ready = select.poll()
        ready.register(self._fd, select.POLLOUT)
        while self._waiting and ready.poll(patience_s * 1000):
            piece = self._waiting[0][: self._piece]  # a pipe that is ready takes so much without blocking
            try:
                written = os.write(self._fd, piece)
            except BlockingIOError:
                return
            except OSError:  # nobody will ever read it; the last words are kept all the same
                self._waiting.clear()
                self._size, self._fd = 0, None
                return
            self._taken_at = now
            self._size -= written
            rest = self._waiting.popleft()[written:]
            if rest:
                self._waiting.appendleft(rest)


class Inlet:
    """The agent's end of the pipe that is a slave's standard output or error.

    Args:
        fd: the pipe, non-blocking.
        most: how much of the end of what was written is kept, in bytes.
    """

    def __init__(self, fd: int, most: int) -> None:
        self._fd = fd
        self._most = most
        self._tail = bytearray()
        self._cut = False
        self.ended = False
        """Whether the other end is closed, by the slave and whatever it forked."""

    def fileno(self) -> int:
        """The pipe, to wait for."""
        return self._fd

    def read(self) -> bytes:
        """What can be read at once, and no more than a pipe holds; empty if there is nothing."""
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
        """What is there once the slave is gone."""
        read = bytearray()
        for _ in range(LAST_READS):
            data = self.read()
            if not data:
                break
            read += data
        return bytes(read)

    @property
    def end(self) -> str:
        """The end of all that was written, as text."""
        tail = self._tail
        start = 0
        while self._cut and start < min(3, len(tail)) and tail[start] & 0xC0 == 0x80:  # in the middle of a character
            start += 1
        return tail[start:].decode(errors="replace")
