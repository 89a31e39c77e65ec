"""The master's door: it admits members, and reports strangers.

A peer without the members' key is refused by the handshake. A peer that has this key, but expects another server's key,
ends the connection itself. Neither sends a message. So a stranger is a connection that ended before a message was read
from it.

A process that has no file descriptor left cannot accept a connection, and libzmq then tries again without a pause: it
uses a whole core. So when accepting fails, the door ends the oldest connections from which no message was read. A
member sends its first message within moments, so the oldest ones are strangers that say nothing. The door does the same
if there are more connections than there should be, so that the master's script can still open files.

If a message was read from all connections, the door closes some spare descriptors, accepts and closes the connections
that wait, and takes spare descriptors again. libzmq accepts at the same time, and may take some of them: then the door
ends these connections, too.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from contextlib import suppress
from itertools import islice

import zmq

from mwpy._transport.happened import NotAccepted, StrangerSeen
from mwpy._transport.link.kernel import OtherEnd, end, has_unread, peer_of, silence_of
from mwpy._transport.link.sockets import events

__all__ = ["NO_MESSAGE", "Door"]

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

SPARE = 4
"""How many descriptors are spare. libzmq may take some of them before the door uses the first."""

EVENTS_A_READ = 2500
"""How many events one `read` reads at most, because libzmq reports failures faster than they can be read. 2,000 can
wait in the monitor's pipe. `read` reads all of these, so the beginning of a connection is read before its messages."""

WRONG_KEY = "a stranger: it has no key of ours; if it is an agent, give it a fresh resource file"
NO_MESSAGE = (
    "a stranger: it has the keys of another computation, or is no agent; if it is one, give it a fresh resource file"
)


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
        self._open: dict[int, OtherEnd | None] = {}
        """Where each connection comes from, by descriptor."""
        self._unread: dict[int, OtherEnd | None] = {}
        """The same for the connections from which no message was read; the oldest is the first."""
        self._ending: set[int] = set()
        """The connections that the door ends, for a descriptor each. No message was read from them either."""
        self.ended: dict[int, str] = {}
        """Connections that ended, by descriptor: the reason to report if no message was read from the connection."""
        self._used_again: set[int] = set()
        """Descriptors whose earlier connection ended when perhaps not all of its messages were read."""
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

    def read(self) -> tuple[list[StrangerSeen | NotAccepted], list[int]]:
        """Read what the monitor reports. Return the strangers and the failures, and the connections that ended.

        The latter are in `ended`, too: when no message is left to read, call `report_ended`.
        """
        seen: list[StrangerSeen | NotAccepted] = []
        ended: list[int] = []
        failure = 0
        for event, value in islice(events(self._monitor), EVENTS_A_READ):
            if event == zmq.EVENT_ACCEPTED:
                if value in self.ended:  # the descriptor is used again
                    self._used_again.add(value)
                    seen += self._report(value)
                self._open[value] = self._unread[value] = peer_of(value)
            elif event == zmq.EVENT_ACCEPT_FAILED:
                failure = value if value in _FULL else failure
            elif event == zmq.EVENT_LISTENING:
                self._listening = socket.socket(fileno=os.dup(value))
                self._listening.setblocking(False)  # libzmq must not block if the door accepts first
            elif event == zmq.EVENT_DISCONNECTED:
                ended.append(value)
                self._open.pop(value, None)
                self._used_again.discard(value)
                self._ending.discard(value)
                self.ended[value], self._next_to_end = self._next_to_end, NO_MESSAGE
            else:
                self._next_to_end = WRONG_KEY  # the next event is the end of this connection
        if failure and not self._unread:
            seen += self._turn_away(os.strerror(failure))
        self._take_spare()
        missing = SPARE if failure else SPARE - len(self._spare)
        seen += self._make_room(max(missing, len(self._open) - self.limit))
        return seen, ended

    def _make_room(self, missing: int) -> list[NotAccepted]:
        """End the oldest connections without a message, so that as many descriptors as are missing become free."""
        turned_away: list[NotAccepted] = []
        if len(self._ending) >= missing:
            return turned_away
        for descriptor, peer in list(self._unread.items()):
            if len(self._ending) >= missing:
                break
            if peer is not None and peer_of(descriptor) == peer:  # else it has ended
                end(descriptor, peer)
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

    def message_read(self, descriptor: int) -> bool:
        """Record that a message was read from a connection, so its peer is not a stranger.

        Returns:
            Whether this connection certainly has the descriptor: it has not ended.
        """
        self._unread.pop(descriptor, None)
        return descriptor not in self.ended and descriptor not in self._used_again

    def end_silent(self, limit_s: float) -> dict[int, float]:
        """End the connections on which nothing has arrived for `limit_s` seconds.

        Bytes that ZeroMQ has not read yet save a connection. ZeroMQ stops reading from a peer that sends faster than
        the master reads; then the peer cannot send either.

        Returns:
            For how many seconds each connection has been silent, by descriptor.
        """
        silences: dict[int, float] = {}
        for descriptor, peer in self._open.items():
            silent_s = None if peer is None else silence_of(descriptor, peer)
            if peer is None or silent_s is None:
                continue
            silences[descriptor] = silent_s
            if silent_s >= limit_s and not has_unread(descriptor):
                end(descriptor, peer)
        return silences

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


def _address(peer: OtherEnd | None) -> str:
    return "unknown address" if peer is None else peer[0]
