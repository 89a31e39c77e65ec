"""Messages on a stream socket: the very frames of the wire, behind their number and lengths.

Small frames of a message are copied into one piece, large ones are sent from and received into memory of their own.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Generator, Sequence

from mwpy.errors import ProtocolError
from mwpy.task import Buffer

__all__ = ["Reader", "drop", "pack"]

LARGE_BYTES = 64 * 1024
"""Frames from here on are received into memory of their own, not through the read buffer."""
READ_BYTES = 4 * LARGE_BYTES
"""Read buffer of a stream."""
MAX_FRAMES = 1 << 16
"""Frames of a message; a higher number is no message, but what some stray code wrote into the stream."""
MAX_FRAME_BYTES = 1 << 36

_COUNT = struct.Struct("=I")
_LENGTH = struct.Struct("=Q")


class Reader:
    """Cuts a stream into messages: small frames by way of a buffer, large ones straight into their own memory."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._start = 0
        self._end = 0
        self._large = memoryview(b"")
        """What is still to be filled of a large frame."""
        self._messages = self._cut()
        self.emptied = False
        """Whether the last `read` found less than it could have taken, so that the stream was empty."""

    def read(self) -> bool:
        """Receive once; False at the end of the stream. Then call `next` until it has no more.

        Raises:
            OSError: the stream's, `BlockingIOError` among them.
        """
        if self._large:
            count = self._stream.recv_into(self._large, 0, socket.MSG_WAITALL)
            self.emptied = count < len(self._large)
            self._large = self._large[count:]
        else:
            if len(self._buffer) - self._end < LARGE_BYTES:
                rest = bytes(self._buffer[self._start : self._end])
                self._buffer[: len(rest)] = rest
                self._start, self._end = 0, len(rest)
            room = self._buffer[self._end :]
            count = self._stream.recv_into(room)
            self.emptied = count < len(room)
            self._end += count
        return count > 0

    def next(self) -> list[Buffer] | None:
        """The next message of what was read; None if it is not complete.

        Raises:
            ProtocolError: what was read is no message.
        """
        return next(self._messages, None)

    def _cut(self) -> Generator[list[Buffer] | None, None, None]:
        """Yield each message, and None whenever there must be read first."""
        while True:
            (count,) = _COUNT.unpack((yield from self._take(_COUNT.size)))
            if count > MAX_FRAMES:
                raise ProtocolError(f"a message of {count} frames")
            frames: list[Buffer] = []
            for _ in range(count):
                (length,) = _LENGTH.unpack((yield from self._take(_LENGTH.size)))
                if length > MAX_FRAME_BYTES:
                    raise ProtocolError(f"a frame of {length} bytes")
                take = self._take if length < LARGE_BYTES else self._take_large
                frames.append((yield from take(length)))
            yield frames

    def _take(self, size: int) -> Generator[None, None, Buffer]:
        while self._end - self._start < size:
            yield None
        start, self._start = self._start, self._start + size
        return bytes(self._buffer[start : self._start])

    def _take_large(self, size: int) -> Generator[None, None, Buffer]:
        large = memoryview(bytearray(size))
        have = min(size, self._end - self._start)
        large[:have] = self._buffer[self._start : self._start + have]
        self._start += have
        self._large = large[have:]
        while self._large:
            yield None
        return large


def pack(frames: Sequence[Buffer]) -> list[memoryview]:
    """A message as what is sent: all of it but large frames in one piece."""
    pieces: list[memoryview] = []
    small: list[Buffer] = [_COUNT.pack(len(frames))]
    for frame in frames:
        small.append(_LENGTH.pack(len(frame)))
        if len(frame) < LARGE_BYTES:
            small.append(frame)
        else:
            pieces += memoryview(b"".join(small)), memoryview(frame)
            small = []
    if small:
        pieces.append(memoryview(b"".join(small)))
    return [piece for piece in pieces if piece]


def drop(unsent: deque[memoryview], count: int) -> None:
    """Forget the first `count` bytes."""
    while count:
        first = unsent.popleft()
        if len(first) > count:
            unsent.appendleft(first[count:])
            return
        count -= len(first)
