"""The master's door: it admits members, and reports strangers.

A peer without the members' key is refused by the handshake. A peer that has this key, but expects another server's key,
ends the connection itself. Neither sends a message. So a stranger is a connection that ended before a message was read
from it.

A process that has no file descriptor left cannot accept a connection, and libzmq then tries again without a pause: it
uses a whole core. So the door keeps spare descriptors. When accepting fails, the door closes them, accepts and closes
the connections that wait, and takes spare descriptors again. libzmq accepts at the same time, and may take some of
them: then the door ends the newest connections, but never one from which a message was read. It does the same if there
are more connections than there should be, so that the master's script can still open files.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice

import zmq
from msgspec import Struct

from mwpy._transport.link.sockets import events

__all__ = ["NO_MESSAGE", "Door", "NotAccepted", "StrangerSeen", "end", "peer_of", "silence_of"]

_WATCHED = (
    zmq.EVENT_LISTENING
    | zmq.EVENT_ACCEPTED
    | zmq.EVENT_ACCEPT_FAILED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_DISCONNECTED
)
"""What the monitor reports: the listening socket, connections that begin or cannot begin, wrong keys, and connections
that end."""

_FULL = (errno.EMFILE, errno.ENFILE)
"""The process, or the machine, has no file descriptor left."""

_TCP_INFO = struct.Struct("=52xI")
"""The beginning of Linux' `struct tcp_info`, see tcp(7): `tcpi_last_data_recv`, in milliseconds, is at byte 52."""

SPARE = 4
"""How many descriptors are spare. libzmq may take some of them before the door uses the first."""

EVENTS_A_READ = 2500
"""How many events one `read` reads at most, because libzmq reports failures faster than they can be read. 2,000 can
wait in the monitor's pipe. `read` reads all of these, so the beginning of a connection is read before its messages."""

WRONG_KEY = "a stranger: it has no key of ours; if it is an agent, give it a fresh resource file"
NO_MESSAGE = (
    "a stranger: it has the keys of another computation, or is no agent; if it is one, give it a fresh resource file"
)


class StrangerSeen(Struct, frozen=True):
    """A connection was turned away, or ended without a message."""

    address: str
    reason: str


class NotAccepted(Struct, frozen=True):
    """A connection could not be accepted, and was closed."""

    address: str
    reason: str


class Door:
    """Answers requests for admission, and watches the connections of a ROUTER.

    Args:
        context: the ZeroMQ context of the ROUTER. Make the door before the ROUTER is bound.
        member: the public key of members, as bytes.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], member: bytes) -> None:
        self._member = member
        self._requests = context.socket(zmq.REP)
        self._requests.linger = 0
        self._requests.bind("inproc://zeromq.zap.01")
        self.requests = int(self._requests.get(zmq.FD))
        """The descriptor of the requests for admission (ZAP, RFC 27): wait for it, then call `answer`."""
        self.limit = sys.maxsize
        """How many connections there should be at most."""
        self._open: set[int] = set()
        """The connections, by descriptor."""
        self._unread: dict[int, tuple[str, int] | None] = {}
        """Where each connection comes from from which no message was read, by descriptor; the newest is the last."""
        self._ending: set[int] = set()
        """The connections that the door ends, for a descriptor each. No message was read from them either."""
        self.ended: dict[int, str] = {}
        """Connections that ended, by descriptor: the reason to report if no message was read from the connection."""
        self._next_to_end = NO_MESSAGE
        """The reason to report for the next connection that ends, if no message was read from it."""
        self._listening: socket.socket | None = None
        """The socket on which the ROUTER listens, under another descriptor."""
        self._spare: list[int] = []
        self._take_spare()

    def watch(self, router: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
        """Watch a ROUTER. Return the monitor: wait for it, then call `read`."""
        self._monitor = router.get_monitor_socket(_WATCHED)
        return self._monitor

    def answer(self) -> None:
        """Answer all requests: members are admitted, others are not."""
        while self._requests.poll(0):
            version, request, _, _, _, mechanism, *credentials = self._requests.recv_multipart()
            known = mechanism == b"CURVE" and credentials == [self._member]
            reply = (b"200", b"OK") if known else (b"400", b"not a member")
            self._requests.send_multipart([version, request, *reply, b"", b""])

    def read(self) -> tuple[list[StrangerSeen | NotAccepted], bool]:
        """Read what the monitor reports. Return the strangers and the failures, and whether a connection ended.

        The other connections that ended are in `ended`: when no message is left to read, call `report_ended`.
        """
        seen: list[StrangerSeen | NotAccepted] = []
        any_ended = False
        failure = 0
        for event, value in islice(events(self._monitor), EVENTS_A_READ):
            if event == zmq.EVENT_ACCEPTED:
                if value in self.ended:  # the descriptor is used again
                    seen += self._report(value)
                self._open.add(value)
                self._unread[value] = peer_of(value)
            elif event == zmq.EVENT_ACCEPT_FAILED:
                failure = value if value in _FULL else failure
            elif event == zmq.EVENT_LISTENING:
                self._listening = socket.socket(fileno=os.dup(value))
                self._listening.setblocking(False)  # libzmq must not block if the door accepts first
            elif event == zmq.EVENT_DISCONNECTED:
                any_ended = True
                self._open.discard(value)
                self._ending.discard(value)
                self.ended[value], self._next_to_end = self._next_to_end, NO_MESSAGE
            else:
                self._next_to_end = WRONG_KEY  # the next event is the end of this connection
        if failure:
            seen += self._turn_away(os.strerror(failure))
        self._take_spare()
        seen += self._make_room(max(SPARE - len(self._spare), len(self._open) - self.limit))
        return seen, any_ended

    def _make_room(self, missing: int) -> list[NotAccepted]:
        """End the newest connections, so that as many descriptors as are missing become free."""
        turned_away: list[NotAccepted] = []
        if len(self._ending) >= missing:
            return turned_away
        for descriptor, peer in reversed(list(self._unread.items())):
            if len(self._ending) >= missing:
                break
            if peer is not None and peer_of(descriptor) == peer:  # else it has ended
                end(descriptor)
                del self._unread[descriptor]
                self._ending.add(descriptor)
                turned_away.append(NotAccepted(_address(peer), os.strerror(errno.EMFILE)))
        return turned_away

    def _turn_away(self, reason: str) -> list[NotAccepted]:
        """Close the connections that wait to be accepted."""
        turned_away: list[NotAccepted] = []
        while self._spare:
            os.close(self._spare.pop())
        with suppress(OSError):  # none waits, or libzmq has accepted one meanwhile
            while self._listening is not None:
                connection, address = self._listening.accept()
                connection.close()
                turned_away.append(NotAccepted(_address(address), reason))
        return turned_away

    def _take_spare(self) -> None:
        with suppress(OSError):
            while len(self._spare) < SPARE:
                self._spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def message_read(self, descriptor: int) -> None:
        """Record that a message was read from a connection, so its peer is not a stranger."""
        self._unread.pop(descriptor, None)

    def report_ended(self) -> list[StrangerSeen]:
        """Report the strangers among the connections that ended."""
        return [stranger for descriptor in list(self.ended) for stranger in self._report(descriptor)]

    def _report(self, descriptor: int) -> list[StrangerSeen]:
        reason = self.ended.pop(descriptor)
        if descriptor not in self._unread:
            return []
        return [StrangerSeen(_address(self._unread.pop(descriptor)), reason)]

    def close(self) -> None:
        """Close the door, after the ROUTER."""
        self._requests.close(0)
        self._monitor.close(0)
        if self._listening is not None:
            self._listening.close()
        while self._spare:
            os.close(self._spare.pop())


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """A connection of libzmq, which keeps its descriptor."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=descriptor)
    try:
        yield connection
    finally:
        connection.detach()


def peer_of(descriptor: int) -> tuple[str, int] | None:
    """Where a connection comes from: host and port. None if it has ended; its descriptor may be closed by now."""
    try:
        with _borrowed(descriptor) as connection:
            host, port = connection.getpeername()
    except (OSError, ValueError):
        return None
    return host, port


def silence_of(descriptor: int) -> float | None:
    """For how many seconds nothing has arrived on a connection. None if it has ended, or if this is not Linux."""
    try:
        with _borrowed(descriptor) as connection:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
            return float(_TCP_INFO.unpack(info)[0] / 1000)
    except (AttributeError, OSError, ValueError, struct.error):
        return None


def end(descriptor: int) -> None:
    """End a connection: libzmq then closes it. ZeroMQ has no function for this."""
    with suppress(OSError), _borrowed(descriptor) as connection:
        connection.shutdown(socket.SHUT_RDWR)


def _address(peer: tuple[str, int] | None) -> str:
    return "unknown address" if peer is None else peer[0]
