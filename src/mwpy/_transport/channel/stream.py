"""Messages on a stream socket: the number of frames, their lengths, and the frames as they travel on the network.

The small frames of a message are copied into one piece, which begins with the lengths of all frames. The large frames
follow. They are not copied: each is sent from its own memory and received into new memory.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Generator, Sequence

from mwpy._values.errors import ProtocolError
from mwpy._values.ids import Buffer

__all__ = ["Reader", "pack"]

LARGE_BYTES = 64 * 1024
"""Frames of this size and larger are received into their own memory, not through the read buffer."""
READ_BYTES = 4 * LARGE_BYTES
"""The size of a stream's read buffer."""
MAX_BYTES = 1 << 36
"""The largest message, if the receiver sets no other limit."""

_HEAD = struct.Struct("=QI")
"""Two numbers: the size of the lengths and small frames that follow, and the number of frames."""
_HEAD_BYTES = _HEAD.size
_read_head = _HEAD.unpack_from


class Reader:
    """Cuts a stream into messages. Small frames pass through a buffer; large ones are read into their own memory."""

    def __init__(self, stream: socket.socket, max_bytes: int = MAX_BYTES) -> None:
        self._stream = stream
        self._max_bytes = max_bytes
        """The largest message. Faulty code in a slave may write the lengths of a larger one."""
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._start = 0
        self._end = 0
        self._large = memoryview(b"")
        """The part of a large frame that was not received yet."""
        self._messages = self._cut()
        self.emptied = False
        """Whether the last `read` emptied the stream: it got fewer bytes than it had room for."""

    def read(self) -> list[list[Buffer]] | None:
        """Receive once. Return the messages that are complete by now, or None at the end of the stream.

        Raises:
            OSError: an error of the stream; also `BlockingIOError`.
            ProtocolError: the bytes are not a message.
        """
        if self._large:
            count = self._stream.recv_into(self._large, 0, socket.MSG_WAITALL)
            self.emptied = count < len(self._large)
            self._large = self._large[count:]
        else:
            if self._start == self._end:  # the usual case: the same memory again, which is in the processor's cache
                self._start = self._end = 0
            elif READ_BYTES - self._end < LARGE_BYTES:
                rest = bytes(self._buffer[self._start : self._end])
                self._buffer[: len(rest)] = rest
                self._start, self._end = 0, len(rest)
            count = self._stream.recv_into(self._buffer[self._end :])
            self._end += count
            self.emptied = self._end < READ_BYTES
        if not count:
            return None
        found: list[list[Buffer]] = []
        while (message := next(self._messages, None)) is not None:
            found.append(message)
            if self._start == self._end:
                break
        return found

    def _cut(self) -> Generator[list[Buffer] | None, None, None]:
        """Yield each message, and None whenever more bytes must be read first."""
        while True:
            while self._end - self._start < _HEAD_BYTES:
                yield None
            size, count = _read_head(self._buffer, self._start)
            place = 8 * count
            if size > self._max_bytes or place > size:
                raise ProtocolError(f"a message of {count} frames in {size} bytes")
            self._start += _HEAD_BYTES
            small: Buffer
            if size < LARGE_BYTES:
                while self._end - self._start < size:
                    yield None
                start = self._start
                self._start = start + size
                small = bytes(self._buffer[start : start + size])
            else:
                small = yield from self._take_large(size)
            frames: list[Buffer] = []
            lengths = struct.unpack_from(f"={count}Q", small)
            if sum(lengths) > self._max_bytes:
                raise ProtocolError(f"a message of {sum(lengths)} bytes")
            for length in lengths:
                if length < LARGE_BYTES:
                    frames.append(small[place : place + length])
                    place += length
                else:
                    frames.append((yield from self._take_large(length)))
            if place != size:
                raise ProtocolError(f"{count} frames that do not fill their message")
            yield frames

    def _take_large(self, size: int) -> Generator[None, None, Buffer]:
        try:
            large = memoryview(bytearray(size))
        except MemoryError:
            raise ProtocolError(f"there is no memory for a frame of {size} bytes") from None
        have = min(size, self._end - self._start)
        large[:have] = self._buffer[self._start : self._start + have]
        self._start += have
        self._large = large[have:]
        while self._large:
            yield None
        return large


def pack(frames: Sequence[Buffer]) -> list[memoryview]:
    """Return the pieces to send for a message. All small frames are in the first piece."""
    lengths = [*map(len, frames)]
    count = len(lengths)
    if max(lengths, default=0) < LARGE_BYTES:
        head = struct.pack(f"=QI{count}Q", 8 * count + sum(lengths), count, *lengths)
        return [memoryview(b"".join((head, *frames)))]
    small = [frame for frame in frames if len(frame) < LARGE_BYTES]
    head = struct.pack(f"=QI{count}Q", 8 * count + sum(map(len, small)), count, *lengths)
    return [memoryview(b"".join((head, *small))), *(memoryview(frame) for frame in frames if len(frame) >= LARGE_BYTES)]
