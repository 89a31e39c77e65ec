"""The master's door: it admits members, and reports strangers.

A peer without the members' key is refused by the handshake. A peer that has this key, but expects another server's key,
ends the connection itself. Neither sends a message. So a stranger is a connection that ended before a message was read
from it.
"""

from __future__ import annotations

import socket

import zmq
from msgspec import Struct

from mwpy._transport.link.sockets import events

__all__ = ["NO_MESSAGE", "Door", "StrangerSeen"]

_WATCHED = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_DISCONNECTED
"""What the monitor reports: connections that begin, wrong keys, and connections that end."""

WRONG_KEY = "a stranger: it has no key of ours; if it is an agent, give it a fresh resource file"
NO_MESSAGE = (
    "a stranger: it has the keys of another computation, or is no agent; if it is one, give it a fresh resource file"
)


class StrangerSeen(Struct, frozen=True):
    """A connection was turned away, or ended without a message."""

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
        self.requests = context.socket(zmq.REP)
        """Requests for admission (ZAP, RFC 27): wait for it, then call `answer`."""
        self.requests.linger = 0
        self.requests.bind("inproc://zeromq.zap.01")
        self._unread: dict[int, str] = {}
        """The address of each connection from which no message was read, by descriptor."""
        self.ended: dict[int, str] = {}
        """Connections that ended, by descriptor: the reason to report if no message was read from the connection."""
        self._next_to_end = NO_MESSAGE
        """The reason to report for the next connection that ends, if no message was read from it."""

    def watch(self, router: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
        """Watch a ROUTER. Return the monitor: wait for it, then call `read`."""
        self._monitor = router.get_monitor_socket(_WATCHED)
        return self._monitor

    def answer(self) -> None:
        """Answer all requests: members are admitted, others are not."""
        while self.requests.poll(0):
            version, request, _, _, _, mechanism, *credentials = self.requests.recv_multipart()
            known = mechanism == b"CURVE" and credentials == [self._member]
            reply = (b"200", b"OK") if known else (b"400", b"not a member")
            self.requests.send_multipart([version, request, *reply, b"", b""])

    def read(self) -> tuple[list[StrangerSeen], bool]:
        """Read what the monitor reports. Return the strangers, and whether a connection ended.

        The other connections that ended are in `ended`: when no message is left to read, call `report_ended`.
        """
        strangers: list[StrangerSeen] = []
        any_ended = False
        for event, value in events(self._monitor):
            if event == zmq.EVENT_ACCEPTED:
                if value in self.ended:  # the descriptor is used again
                    strangers += self._report(value)
                self._unread[value] = _peer_address(value)
            elif event == zmq.EVENT_DISCONNECTED:
                any_ended = True
                self.ended[value], self._next_to_end = self._next_to_end, NO_MESSAGE
            else:
                self._next_to_end = WRONG_KEY  # the next event is the end of this connection
        return strangers, any_ended

    def message_read(self, descriptor: int) -> None:
        """Record that a message was read from a connection, so its peer is not a stranger."""
        self._unread.pop(descriptor, None)

    def report_ended(self) -> list[StrangerSeen]:
        """Report the strangers among the connections that ended."""
        return [stranger for descriptor in list(self.ended) for stranger in self._report(descriptor)]

    def _report(self, descriptor: int) -> list[StrangerSeen]:
        reason = self.ended.pop(descriptor)
        address = self._unread.pop(descriptor, None)
        return [] if address is None else [StrangerSeen(address, reason)]

    def close(self) -> None:
        """Close the door, after the ROUTER."""
        self.requests.close(0)
        self._monitor.close(0)


def _peer_address(descriptor: int) -> str:
    """Where a connection comes from. Its file descriptor may be closed by now."""
    try:
        with socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as connection:
            return str(connection.getpeername()[0])
    except OSError:
        return "unknown address"
