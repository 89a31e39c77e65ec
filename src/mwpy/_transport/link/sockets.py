"""What both ends of the link do with ZeroMQ's sockets."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

import zmq

from mwpy._transport.link.pieces import FRAME_BYTES, PIECE_BYTES, in_pieces
from mwpy._transport.waits import SHORTEST_INTERVAL_S, milliseconds
from mwpy._values.ids import Buffer

__all__ = [
    "configure",
    "events",
    "has_more",
    "library_versions",
    "receive",
    "send",
    "send_heartbeats",
]

MOST_FRAMES = 1 << 20
"""The largest number of frames in a message, if the receiver sets no other limit."""

_EVENT = struct.Struct("=Hi")
"""The first frame of a monitor's message; see zmq_socket_monitor(3). pyzmq's own function imports asyncio."""

_POLLIN = int(zmq.POLLIN)
_NOBLOCK = int(zmq.NOBLOCK)
_NOBLOCK_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
"""These flags are plain numbers because they are used for each message, and operators of enumerations are slow."""

_send_frame: Callable[[zmq.Socket[bytes], Buffer, int, bool], object] = zmq.backend.Socket.send  # type: ignore[assignment]
"""The method of the base class of `zmq.Socket`. The subclass does more than is needed, and takes twice as long."""


def configure(end: zmq.Socket[bytes]) -> None:
    """Set the options that both ends have."""
    end.linger = 0
    end.maxmsgsize = FRAME_BYTES
    end.sndhwm = end.rcvhwm = 0  # the core limits what is sent; here nothing is dropped
    end.ipv6 = False


def send_heartbeats(end: zmq.Socket[bytes], interval_s: float, timeout_s: float) -> None:
    """Let ZeroMQ send heartbeats, and end the connection if nothing answers one of them for the timeout."""
    end.heartbeat_ivl = milliseconds(interval_s)
    end.heartbeat_timeout = milliseconds(max(2 * SHORTEST_INTERVAL_S, timeout_s))


def events(monitor: zmq.Socket[bytes]) -> Iterator[tuple[int, int]]:
    """Read the events of a socket monitor, each with its value."""
    while monitor.poll(0):
        event, value = _EVENT.unpack(monitor.recv_multipart()[0])
        yield event, value


def has_more(end: zmq.Socket[bytes]) -> bool:
    """Whether another message has arrived. This check is faster than the error that `receive` would raise."""
    return bool(zmq.zmq_poll([(end, _POLLIN)], 0))


def receive(end: zmq.Socket[bytes], most: int = MOST_FRAMES) -> tuple[list[Buffer], zmq.Frame]:
    """Receive a message that has arrived. Return its frames, and the last frame itself, which knows the sender.

    This is `recv_multipart`, with two differences: each frame says whether another one follows, and frames after the
    first `most` are dropped.
    """
    buffers: list[Buffer] = []
    receive_frame = end.recv  # looking up an attribute of a socket or frame is slow
    while True:
        frame = receive_frame(_NOBLOCK, False)
        if len(buffers) < most:
            buffers.append(frame.bytes)
        if not frame.more:
            return buffers, frame


def send(end: zmq.Socket[bytes], frames: Sequence[Buffer], peer: Sequence[bytes] = ()) -> None:
    """Send a message without waiting, in pieces if it is large. The frames of a large message are not copied.

    Args:
        peer: the name of the receiver, if the socket has several.
    """
    if sum(map(len, frames)) <= PIECE_BYTES:
        _send_message(end, [*peer, *frames], copy=True)
    else:
        for piece in in_pieces(frames):
            _send_message(end, [*peer, piece], copy=len(piece) < PIECE_BYTES)


def _send_message(end: zmq.Socket[bytes], frames: Sequence[Buffer], *, copy: bool) -> None:
    for frame in frames[:-1]:
        _send_frame(end, frame, _NOBLOCK_MORE, True)
    _send_frame(end, frames[-1], _NOBLOCK, copy)


def library_versions() -> dict[str, str]:
    """Return the versions of libzmq and of pyzmq."""
    return {"libzmq": zmq.zmq_version(), "pyzmq": zmq.pyzmq_version()}
