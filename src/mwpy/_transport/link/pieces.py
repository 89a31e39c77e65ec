"""Large messages travel in pieces, so that the sockets accept only small frames.

libzmq stores a whole frame before it looks at it, also a frame of a peer that is not admitted yet. `ZMQ_MAXMSGSIZE` is
the only limit, and it is one for all peers of a socket at all times. So it is small, and a message that is larger than
a piece is sent as several messages. The first one announces it. The next ones have one frame each: first the sizes of
the frames of the message, then the frames themselves, in their order. A piece is a part of one frame.

They are messages, and not frames of one message, because libzmq passes on a message only when it is complete, and its
high-water marks count only complete messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from mwpy._values.errors import ProtocolError
from mwpy._values.ids import Buffer

__all__ = ["FRAME_BYTES", "PIECE_BYTES", "Arriving", "in_pieces", "is_announcement"]

PIECE_BYTES = 64 * 1024
"""The largest size of a piece. Large arrays travel half as fast in pieces of 16 KiB."""

FRAME_BYTES = PIECE_BYTES + 64
"""The largest size of a frame on the wire. CURVE adds 33 bytes to a piece."""

MARK = b"\1"
"""The first byte of an announcement. Other messages begin with the version of the protocol, which is larger."""

_ANNOUNCED = struct.Struct("<cQ")
_SIZE = struct.Struct("<Q")


def in_pieces(frames: Sequence[Buffer]) -> Iterator[Buffer]:
    """Return the messages that bring a large message, one frame each. They are views of its frames."""
    yield _ANNOUNCED.pack(MARK, len(frames))
    for frame in (struct.pack(f"<{len(frames)}Q", *map(len, frames)), *frames):
        view = memoryview(frame)
        for start in range(0, len(view), PIECE_BYTES):
            yield view[start : start + PIECE_BYTES]


def is_announcement(frames: Sequence[Buffer]) -> bool:
    """Whether a message announces a larger one: the next messages of its sender are pieces of that one."""
    return bool(frames) and frames[0][:1] == MARK


class Arriving:
    """A message that arrives in pieces.

    Args:
        announcement: the message that announced it.
        most_bytes: the largest size of the whole message.
        most_frames: the largest number of its frames.

    Raises:
        ProtocolError: the announcement is malformed, or the message would be too large; the sender's fault.
    """

    def __init__(self, announcement: Sequence[Buffer], most_bytes: int, most_frames: int) -> None:
        if len(announcement) != 1 or len(announcement[0]) != _ANNOUNCED.size:
            raise ProtocolError("a malformed announcement of a large message")
        _, count = _ANNOUNCED.unpack(announcement[0])
        if not 0 < count <= most_frames:
            raise ProtocolError(f"a large message of {count} frames; at most {most_frames} are accepted")
        self._most_bytes = most_bytes
        self._is_listed = False
        """Whether the sizes of the frames have arrived."""
        self._missing = [bytearray(count * _SIZE.size)]
        """The frames that are not complete. The last one arrives."""
        self._filled = 0
        """How many bytes of this frame have arrived."""
        self._frames: list[Buffer] = []

    def add(self, piece: Sequence[Buffer]) -> list[Buffer] | None:
        """Add the next piece.

        Returns:
            The message; None if it is not complete.

        Raises:
            ProtocolError: the message is no piece; the sender's fault.
        """
        frame, begin = self._missing[-1], self._filled
        self._filled += len(piece[0])
        if len(piece) != 1 or self._filled > len(frame):
            raise ProtocolError(f"{len(piece)} frames of {len(piece[0])} bytes are no piece of a large message")
        frame[begin : self._filled] = piece[0]
        while self._missing and self._filled == len(self._missing[-1]):
            self._filled = 0
            self._complete(self._missing.pop())
        return None if self._missing else self._frames

    def _complete(self, frame: bytearray) -> None:
        if self._is_listed:
            self._frames.append(memoryview(frame) if len(frame) >= PIECE_BYTES else bytes(frame))
            return
        sizes = [size for (size,) in _SIZE.iter_unpack(frame)]
        if sum(sizes) > self._most_bytes:
            raise ProtocolError(f"a message of {sum(sizes)} bytes in pieces; at most {self._most_bytes} are accepted")
        self._is_listed = True
        self._missing = [bytearray(size) for size in reversed(sizes)]
