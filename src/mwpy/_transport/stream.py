"""Messages on a stream socket: the number of frames, their lengths, and the frames as they travel on the network.

The small frames of a message are copied into one piece, which begins with the lengths of all frames. The large frames
follow. They are not copied: each is sent from its own memory and received into new memory. Between two processes of one
host, a passage beside the stream carries the large frames in shared files, as long as it can.
"""

from __future__ import annotations

import select
import socket
import struct
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress

from mwpy._system import clock
from mwpy._transport.passage import Passage, is_folded, unfold
from mwpy._transport.shared import LARGE_BYTES
from mwpy._transport.waits import milliseconds
from mwpy._values.errors import ProtocolError
from mwpy._values.ids import Buffer

__all__ = ["Reader", "StreamEnd", "pack"]

READ_BYTES = 4 * LARGE_BYTES
"""The size of a stream's read buffer."""
MAX_BYTES = 1 << 36
"""The largest message, if the receiver sets no other limit."""
FRAMES_SLACK = 16
"""How many frames a message may have beyond the large ones: only large buffers have frames of their own."""
NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
"""A write to a peer that is gone is an error, also if the script has changed what SIGPIPE does."""
READS = 16
"""One `StreamEnd.receive` reads at most this often, so that a peer that sends much does not delay the others."""

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
        self._most_frames = max_bytes // LARGE_BYTES + FRAMES_SLACK
        """A list of the lengths of many more frames would cost the receiver much time and memory."""
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
            if size > self._max_bytes or place > size or count > self._most_frames:
                raise ProtocolError(f"a message of {count} frames in {size} bytes")
            small: Buffer
            if size < LARGE_BYTES:
                while self._end - self._start < _HEAD_BYTES + size:  # the head stays: it belongs to the message
                    yield None
                start = self._start + _HEAD_BYTES
                self._start = start + size
                small = bytes(self._buffer[start : start + size])
            else:
                self._start += _HEAD_BYTES
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


def pack(frames: Sequence[Buffer], passage: Passage | None = None) -> list[Buffer]:
    """Return the pieces to send for a message. All small frames are in the first piece.

    Args:
        passage: passes the large frames, as far as it can; None if there is none.
    """
    lengths = [*map(len, frames)]
    count = len(lengths)
    if max(lengths, default=0) < LARGE_BYTES:
        head = struct.pack(f"=QI{count}Q", 8 * count + sum(lengths), count, *lengths)
        return [b"".join((head, *frames))]
    if passage is not None:
        return pack(passage.fold(frames))
    small = [frame for frame in frames if len(frame) < LARGE_BYTES]
    head = struct.pack(f"=QI{count}Q", 8 * count + sum(map(len, small)), count, *lengths)
    return [b"".join((head, *small)), *(memoryview(frame) for frame in frames if len(frame) >= LARGE_BYTES)]


class StreamEnd:
    """One end of a stream with a passage. Nothing here blocks, except `send_rest`.

    Args:
        stream: the socket.
        passage: this end of the passage.
        max_bytes: the largest message that is accepted from the other side.
        passes_on: whether this process may pass large frames on. Otherwise they are private and writable.
    """

    def __init__(self, stream: socket.socket, passage: Passage, max_bytes: int, *, passes_on: bool) -> None:
        stream.setblocking(False)
        self._stream = stream
        self._passage = passage
        self._max_bytes = max_bytes
        self._passes_on = passes_on
        self._reader = Reader(stream, max_bytes)
        self._unsent: deque[Buffer] = deque()
        self.wants_write = False
        """Whether a message waits until the peer reads: call `flush` when the stream can be written."""
        self.eof = False
        """Whether the other end of the stream is closed, by the peer and by every process that the peer forked."""

    def fileno(self) -> int:
        """Return the descriptor of the stream, to wait for."""
        return self._stream.fileno()

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send as much of a message as can be sent at once; the rest waits for `flush`.

        Large frames are passed in shared files. The frames are not copied: do not change them any more. A message to a
        peer that is gone is dropped without an error, because its end is noticed anyway.
        """
        self._unsent += pack(frames, self._passage)
        self.flush()

    def flush(self) -> None:
        """Send what the peer is ready to take."""
        unsent = self._unsent
        try:
            while unsent:
                piece = unsent[0]
                sent = self._stream.send(piece, NO_SIGNAL)
                if sent < len(piece):
                    unsent[0] = memoryview(piece)[sent:]
                else:
                    del unsent[0]
        except BlockingIOError:
            pass
        except OSError:
            unsent.clear()
        self.wants_write = bool(unsent)

    def receive(self) -> list[list[Buffer]]:
        """Receive what the peer sent; sets `eof` after the last byte.

        One call reads a limited amount. If the stream can still be read, call again when it is this peer's turn.

        Returns:
            The messages that are complete by now, each as its frames.

        Raises:
            ProtocolError: the bytes are no messages, because some code in the peer wrote into the stream. End it.
        """
        messages: list[list[Buffer]] = []
        try:
            for _ in range(READS):
                found = self._reader.read()
                if found is None:
                    self.eof = True
                    break
                for frames in found:
                    if is_folded(frames):
                        frames = unfold(frames, self._passage, self._max_bytes, passes_on=self._passes_on)  # noqa: PLW2901
                    messages.append(frames)
                if self._reader.emptied:
                    break
        except BlockingIOError:
            pass
        except OSError:
            self.eof = True
        return messages

    def end(self) -> None:
        """End the stream for both sides, and for every process that has a copy of it. Then `receive` finds the end."""
        with suppress(OSError):  # it has ended
            self._stream.shutdown(socket.SHUT_RDWR)

    def send_rest(self, until: float) -> None:
        """Wait until all messages have left, but not longer than until a moment of the monotonic clock."""
        ready = select.poll()
        ready.register(self._stream, select.POLLOUT)
        while self._unsent and (left_s := until - clock.monotonic()) > 0:
            ready.poll(milliseconds(left_s))
            self.flush()

    def close(self) -> None:
        """Close this end."""
        self._stream.close()
        self._passage.close()
