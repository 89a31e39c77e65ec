"""What the kernel knows of a connection, and how to end it. ZeroMQ has no functions for this.

The descriptors are libzmq's. It may close one at any time, and the descriptor may then belong to another connection or
file. So a caller keeps the other end of a connection, and compares it before it relies on the descriptor.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["KNOWS_SILENCE", "OtherEnd", "end", "has_unread", "peer_of", "silence_of"]

OtherEnd = tuple[str, int]
"""The host and port at the other end of a connection."""

KNOWS_SILENCE = sys.platform == "linux"
"""Whether the kernel says for how long nothing has arrived on a connection."""

_TCP_INFO = struct.Struct("=52xI")
"""The beginning of Linux' `struct tcp_info`, see tcp(7): `tcpi_last_data_recv`, in milliseconds, is at byte 52."""

_UNREAD = struct.Struct("=i")


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.SocketType]:
    """A connection of libzmq, which keeps its descriptor."""
    connection = _connection(descriptor)
    try:
        yield connection
    finally:
        connection.detach()


def _connection(descriptor: int) -> socket.SocketType:
    """A connection of libzmq: the caller must detach it. This is the base class of `socket.socket`, which is slower."""
    return socket.SocketType(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)


def peer_of(descriptor: int) -> OtherEnd | None:
    """Return where a connection comes from. None if it has ended; its descriptor may be closed by now."""
    try:
        with _borrowed(descriptor) as connection:
            host, port = connection.getpeername()
    except (OSError, ValueError):
        return None
    return host, port


def silence_of(descriptor: int, other_end: OtherEnd) -> float | None:
    """Return for how many seconds nothing has arrived on a connection. None if it has ended, or without Linux.

    The master asks this of thousands of connections at once, so it enters no context, which takes as long as the rest.
    """
    try:
        connection = _connection(descriptor)
        try:
            if connection.getpeername() != other_end:
                return None
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
            return float(_TCP_INFO.unpack(info)[0] / 1000)
        finally:
            connection.detach()
    except (AttributeError, OSError, ValueError, struct.error):
        return None


def has_unread(descriptor: int) -> bool:
    """Whether bytes have arrived on a connection that ZeroMQ has not read."""
    try:
        unread = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(_UNREAD.size))
    except OSError:
        return False
    return bool(_UNREAD.unpack(unread)[0])


def end(descriptor: int, other_end: OtherEnd) -> None:
    """End a connection, unless it has ended: libzmq then closes it, and its monitor reports this."""
    with suppress(OSError), _borrowed(descriptor) as connection:
        if connection.getpeername() == other_end:
            connection.shutdown(socket.SHUT_RDWR)
