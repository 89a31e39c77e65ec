"""The connection between master and agents, its keys and addresses: the only place that uses ZeroMQ.

The master has a ROUTER socket, each agent a DEALER socket, and CURVE is always on. The design relies on these facts of
libzmq 4.3.5; they were measured, and `test_link_facts.py` tests them:

- A peer that dies leaves no message on a ROUTER. But the ROUTER's monitor reports DISCONNECTED with the descriptor of
  the connection, and a send to that peer soon raises EHOSTUNREACH (ROUTER_MANDATORY): usually the first or the second
  send after the ROUTER has looked for messages. libzmq reports DISCONNECTED before it passes on the last messages. So
  the peer of that descriptor is sent probes until one fails, and is reported as gone only when nothing is left to read.
- ZMTP heartbeats are sent and answered by libzmq's own thread, even while another thread holds the interpreter lock.
  To send or to expect one, libzmq searches a list of all timers. With 4,000 connections, this was nearly all that an
  idle master did. So only agents send heartbeats: they notice a master that is frozen or has vanished. The master asks
  the kernel when the last byte of each connection arrived (TCP_INFO), and ends a connection that is silent.
- Without a routing id, a ROUTER gives each connection a new name, so no peer is mistaken for another. With
  RECONNECT_IVL -1 a broken connection stays broken. So a reconnect is always a new connection, and nothing that was
  queued for the old connection is delivered on the new one.
- libzmq compares the announced length of each frame with MAXMSGSIZE before it makes room for the frame, also during the
  handshake, and stores the frame before CURVE looks at it. So this option limits what a stranger can make the master
  store, and it is small. "Pieces" below says how large messages travel.
- A client with a wrong key of its own sees HANDSHAKE_FAILED_AUTH. A client that expects another server's key sees
  HANDSHAKE_FAILED_NO_DETAIL. If nobody listens, it sees CLOSED.
- The server's monitor reports ACCEPTED and DISCONNECTED with the file descriptor of the connection, and each message
  has the descriptor too (SRCFD). So a connection that was accepted and ended without a message belonged to a stranger.
  The thread that reads the messages also answers the requests for admission (ZAP), so it has seen ACCEPTED before the
  first message.
- To wait for a socket, libzmq looks at its events before and after, with two system calls each. The descriptor of a
  socket (FD) becomes readable when something has happened to the socket since it was found empty. This is enough for a
  socket that is always read until it is empty: the monitor of the agent, and the socket of the requests for admission.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import select
import socket
import struct
import sys
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from math import inf
from typing import Any

import zmq
from msgspec import Struct
from zmq.utils import z85

from mwpy._transport.stream import (
    FRAMES_SLACK,
    MAX_BYTES,
    SHORTEST_INTERVAL_S,
    Reader,
    heartbeat_interval,
    milliseconds,
    pack,
)
from mwpy._values.bounds import Buffer
from mwpy._values.connections import Broken, Connected, Frames, Garbage, Happened, Stranger, TurnedAway, Vanished
from mwpy._values.errors import ProtocolError, UsageError

# The keys of a computation: one secret text, from which both CURVE key pairs are made.


class CurvePair(Struct, frozen=True):
    """A CURVE key pair, as Z85 text."""

    public: str
    secret: str


def new_key() -> str:
    """Return a new key of a computation."""
    return secrets.token_hex(32)


def server_keys(key: str) -> CurvePair:
    """Make the master's key pair."""
    return _derive("mwpy server", key)


def member_keys(key: str) -> CurvePair:
    """Make the key pair that all members share."""
    return _derive("mwpy member", key)


def _derive(purpose: str, key: str) -> CurvePair:
    secret = z85.encode(hashlib.sha256(f"{purpose}\0{key}".encode()).digest())
    return CurvePair(zmq.curve_public(secret).decode(), secret.decode())


# Large messages travel in pieces, so that the sockets accept only small frames.
#
# libzmq stores a whole frame before it looks at it, also a frame of a peer that is not admitted yet. `ZMQ_MAXMSGSIZE`
# is the only limit, and it is one for all peers of a socket at all times. So it is small, and a message that is larger
# than a piece is sent as several messages. The first one announces it. The next ones have one frame each: pieces of
# what the message would be on a stream socket (`stream.py`), which the receiver reads as such.
#
# They are messages, and not frames of one message, because libzmq passes on a message only when it is complete, and its
# high-water marks count only complete messages.


PIECE_BYTES = 64 * 1024
"""The largest size of a piece. Large arrays travel half as fast in pieces of 16 KiB."""

FRAME_BYTES = PIECE_BYTES + 64
"""The largest size of a frame on the wire. CURVE adds 33 bytes to a piece."""

MARK = b"\1"
"""The announcement. Other messages begin with the version of the protocol, which is larger."""


def in_pieces(frames: Sequence[Buffer]) -> Iterator[Buffer]:
    """Return the messages that bring a large message, one frame each. They are views of its frames."""
    yield MARK
    for part in pack(frames):
        view = memoryview(part)
        for start in range(0, len(view), PIECE_BYTES):
            yield view[start : start + PIECE_BYTES]


class Arriving:
    """The messages of a peer: the large ones arrive in pieces. To the reader it is a stream of their bytes.

    Args:
        most_bytes: the largest size of a whole message.
    """

    def __init__(self, most_bytes: int = MAX_BYTES) -> None:
        self._most_bytes = most_bytes
        self._rest = memoryview(b"")
        """The part of the last piece that was not read."""
        self._reader: Reader | None = None
        """Reads the large message that has not arrived as a whole; None if there is none."""

    def recv_into(self, room: memoryview, size: int = 0, flags: int = 0) -> int:  # noqa: ARG002  # as that of a socket
        """Read what there is room for, and return how many bytes these are."""
        found, self._rest = self._rest[: len(room)], self._rest[len(room) :]
        room[: len(found)] = found
        return len(found)

    def add(self, frames: list[Buffer]) -> list[Buffer] | None:
        """Return the message that has arrived, or the large message that its last piece completes; None if pieces miss.

        Raises:
            ProtocolError: the pieces are no message, or a message that is too large; the sender's fault.
        """
        reader, self._reader = self._reader, None
        if reader is None:
            if frames != [MARK]:
                return frames
            self._reader = Reader(self, self._most_bytes)
            return None
        if len(frames) != 1:
            raise ProtocolError(f"{len(frames)} frames are no piece of a large message")
        self._rest = memoryview(frames[0])
        while self._rest:
            for message in reader.read() or ():
                return message
        self._reader = reader
        return None


# What both ends of the link do with ZeroMQ's sockets.


MOST_FRAMES = 1 << 20
"""The largest number of frames in a message, if the receiver sets no other limit."""

_EVENT = struct.Struct("=Hi")
"""The first frame of a monitor's message; see zmq_socket_monitor(3). pyzmq's own function imports asyncio."""

_POLLIN = int(zmq.POLLIN)
_POLLOUT = int(zmq.POLLOUT)
_NOBLOCK = int(zmq.NOBLOCK)
_NOBLOCK_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
"""These flags are plain numbers because they are used for each message, and operators of enumerations are slow."""

_FLAGS = {select.POLLIN: _POLLIN, select.POLLOUT: _POLLOUT, select.POLLIN | select.POLLOUT: _POLLIN | _POLLOUT}
"""What the flags of `select` are for ZeroMQ."""

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


# An agent's end of its connection to the master.


PIECES_A_POLL = 256
"""How many pieces of a large message one `poll` reads at most, so that slaves do not wait long."""

_FATES: dict[int, Broken] = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: Broken("refused", "our key is not that of a member: get a fresh resource file"),
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: Broken(
        "refused",
        "the process that listens there has other keys, so it is another computation or no master at all; or it is our "
        "master, and it has room for no more agents (then it says so)",
    ),
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: Broken("refused", "the process that listens there is no master of mwpy"),
    zmq.EVENT_CLOSED: Broken("unreachable", "nobody listens there"),
    zmq.EVENT_DISCONNECTED: Broken("lost", "the connection broke"),
}


class AgentLink:
    """An agent's end: one connection to one address. A reconnect is a new link.

    Args:
        address: `tcp://HOST:PORT`.
        server_public: the master's public key.
        member: the key pair of members.
        timeout_s: after this silence of the network the master is gone.
        masters_timeout_s: after this silence the master takes the agent for gone, if this is another time.

    Raises:
        UsageError: the text is not an address.
    """

    def __init__(
        self,
        address: str,
        server_public: str,
        member: CurvePair,
        timeout_s: float,
        masters_timeout_s: float | None = None,
    ) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self._context = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        configure(self._dealer)
        send_heartbeats(self._dealer, heartbeat_interval(min(timeout_s, masters_timeout_s or timeout_s)), timeout_s)
        self._dealer.reconnect_ivl = -1
        self._dealer.curve_serverkey = server_public.encode()
        self._dealer.curve_publickey = member.public.encode()
        self._dealer.curve_secretkey = member.secret.encode()
        self._monitor = self._dealer.get_monitor_socket()
        self._monitor_fd = int(self._monitor.get(zmq.FD))
        self._monitor.get(zmq.EVENTS)  # from now on, its descriptor says when there is something to read
        self._messages = Arriving()
        try:
            self._dealer.connect(address)
        except zmq.ZMQError as error:
            self.close(0.0)
            raise UsageError(f"{address} is no address to connect to: write tcp://HOST:PORT") from error

    def poll(
        self, timeout_s: float | None, files: Mapping[int, int] = {}
    ) -> tuple[list[Connected | Broken], list[list[Buffer]], list[int]]:
        """Wait for something to happen.

        Args:
            timeout_s: how long to wait at most; None for as long as it takes.
            files: other file descriptors to wait for, each with `POLLIN`, `POLLOUT` or both of `select`.

        Returns:
            The state of the connection, the messages that arrived, and the file descriptors that are ready.
        """
        waits_for: list[tuple[Any, int]] = [(self._dealer, _POLLIN), (self._monitor_fd, _POLLIN)]
        waits_for += [(fd, _FLAGS[wanted]) for fd, wanted in files.items()]
        ready: dict[Any, int] = dict(zmq.zmq_poll(waits_for, -1 if timeout_s is None else milliseconds(timeout_s)))
        fates: list[Connected | Broken] = []
        received: list[list[Buffer]] = []
        if has_arrived := bool(ready.pop(self._dealer, 0)):
            try:
                received += self._receive()
            except ProtocolError as error:
                fates.append(Broken("lost", f"a message of the master cannot be read: {error}"))
        if ready.pop(self._monitor_fd, 0) and not has_arrived:  # all messages are read before the end is reported
            for event, _ in events(self._monitor):
                if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    fates.append(Connected())
                elif (fate := _FATES.get(event)) is not None:
                    fates.append(fate)
        return fates, received, list(ready)

    def _receive(self) -> list[list[Buffer]]:
        """Receive a message that has arrived; nothing if it is large, and not all of its pieces have arrived."""
        for _ in range(PIECES_A_POLL):
            frames, _ = receive(self._dealer)
            if (message := self._messages.add(frames)) is not None:
                return [message]
            if not has_more(self._dealer):
                break
        return []

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send to the master without waiting. Only an answer shows that the message arrived."""
        try:
            send(self._dealer, frames)
        except zmq.ZMQError:
            pass  # the monitor reports the end of the connection

    def close(self, linger_s: float) -> None:
        """Close. Messages that were sent have `linger_s` seconds to leave."""
        self._dealer.disable_monitor()
        self._dealer.close(int(linger_s * 1000))
        self._monitor.close(0)
        self._context.term()


# What the kernel knows of a connection, and how to end it. ZeroMQ has no functions for this.
#
# The descriptors are libzmq's. It may close one at any time, and the descriptor may then belong to another connection
# or file. So a caller keeps the other end of a connection, and compares it before it relies on the descriptor.


OtherEnd = tuple[str, int]
"""The host and port at the other end of a connection."""

_TCP_INFO = struct.Struct("=52xI")
"""The beginning of Linux' `struct tcp_info`, see tcp(7): `tcpi_last_data_recv`, in milliseconds, is at byte 52."""

_UNREAD = struct.Struct("=i")


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.SocketType]:
    """A connection of libzmq, which keeps its descriptor."""
    connection = socket.SocketType(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)  # faster than `socket.socket`
    try:
        yield connection
    finally:
        connection.detach()


def peer_of(descriptor: int) -> OtherEnd | None:
    """Return where a connection comes from. None if it has ended; its descriptor may be closed by now."""
    try:
        with _borrowed(descriptor) as connection:
            host, port = connection.getpeername()
    except (OSError, ValueError):
        return None
    return host, port


def silence_of(descriptor: int, other_end: OtherEnd) -> float | None:
    """Return for how many seconds nothing has arrived on a connection. None if it has ended."""
    with suppress(OSError, ValueError, struct.error), _borrowed(descriptor) as connection:
        if connection.getpeername() == other_end:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
            return float(_TCP_INFO.unpack(info)[0] / 1000)
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


# The master's end of all connections: it admits members, reports strangers, and knows all connections of the ROUTER.
#
# A peer without the members' key is refused by the handshake. A peer that has this key, but expects another server's
# key, ends the connection itself. Neither sends a message. So a stranger is a connection that ended before a message
# was read from it.
#
# The monitor names a connection that ended by its descriptor. But ZeroMQ reports this before it has passed on the last
# messages of the connection, and by then the descriptor may belong to another connection. So a peer whose descriptor is
# named is only *doubtful*. It is sent probes until one of them fails.
#
# The master's script must still be able to open files. So if there are more connections than there should be, the link
# ends the oldest ones from which no message was read. A member sends its first message within moments, so the oldest
# ones are strangers that say nothing. If the script has used all file descriptors nevertheless, accepting fails, and
# libzmq tries again without a pause, until there are some.


_WATCHED = zmq.EVENT_ACCEPTED | zmq.EVENT_ACCEPT_FAILED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_DISCONNECTED
"""What the monitor reports: connections that begin or cannot begin, wrong keys, and connections that end."""

EVENTS_A_READ = 2500
"""How many events one `poll` reads at most, because libzmq reports failures faster than they can be read. 2,000 can
wait in the monitor's pipe. `poll` reads all of these, so the beginning of a connection is read before its messages."""

SILENT = 0.85
"""A connection on which nothing had arrived for this part of the timeout ended because of its silence. The end of a
process is noticed sooner: the last heartbeat is at most a quarter of the timeout ago, and the last look a third."""

WRONG_KEY = "a stranger: it has no key of ours; if it is an agent, give it a fresh resource file"
NO_MESSAGE = (
    "a stranger: it has the keys of another computation, or is no agent; if it is one, give it a fresh resource file"
)

MESSAGES_A_POLL = 256
"""How many messages one `poll` reads at most, so that a flood of messages does not delay decisions."""

MESSAGES_UNREAD = 4096
"""How many messages of one peer wait to be read at most: as pieces, 256 MiB. The next ones wait at the peer. So a peer
that sends faster than the master reads does not fill the memory."""

BACKLOG = 4096
"""How many connections wait to be accepted at most. The kernel drops the next ones, and a peer tries again only after
a second. libzmq would take 100."""

HANDSHAKE_S = 10.0
"""Seconds after which a connection is ended whose peer is not admitted. An agent waits half as long for an answer."""

FAST_PROBE_S = 0.05
"""Seconds between two probes after a connection ended."""

FAST_PROBES = 20
"""How many probes follow so fast. Usually, the first or the second one fails."""

SLOW_PROBE_S = 1.0
"""Seconds between two later probes."""

LOOKS_A_TIMEOUT = 3
"""How many looks at all connections there are at least within one timeout."""

MOST_LOOKS_A_TIMEOUT = 30
"""How many there are at most, when connections have been silent for so long that they end soon."""

MAX_SLACK = 32 << 20
"""How many bytes a message may have beyond the largest payload: the other tasks of its group, and its header."""


class Connection(Struct, eq=False):
    """A connection of the ROUTER."""

    descriptor: int
    other_end: OtherEnd | None
    """Where it comes from; None if it had ended when this was asked."""
    is_sure: bool
    """Whether no earlier connection had this descriptor of which messages may be unread."""
    peer: bytes = b""
    """The name of its peer; empty if no message was read from it."""
    heard_at: float = inf
    """When the last byte had arrived at the last look."""
    is_turned_away: bool = False
    """Whether the master ends it to make room."""
    reason: str = ""
    """What to report if it has ended and no message was read from it; empty if it has not ended."""


class Peer(Struct, eq=False):
    """A peer from which a message was read."""

    connection: Connection
    """Its connection; or the next one with the same descriptor, if its own had ended before its first message."""
    address: str
    messages: Arriving
    """What it has sent."""
    probes: int = 0
    """How many probes it was sent since it is doubtful."""


class MasterLink:
    """The master's end of all connections. One thread uses it.

    Args:
        host: the interface to bind, or `*` for all.
        port: the port to bind, or 0 for any.
        key: the computation's key.
        timeout_s: after this silence of the network a peer is gone.
        max_payload: bytes of the largest payload frame that is accepted.
        probe: the frames of a message that does nothing.

    Raises:
        UsageError: it cannot be bound.
    """

    def __init__(
        self, host: str, port: int, key: str, timeout_s: float, max_payload: int, probe: Sequence[Buffer]
    ) -> None:
        keys = server_keys(key)
        self._context = zmq.Context()
        self._member = z85.decode(member_keys(key).public)
        self._requests = self._context.socket(zmq.REP)
        """The requests for admission (ZAP, RFC 27). This socket must exist before the ROUTER is bound."""
        self._requests.linger = 0
        self._requests.bind("inproc://zeromq.zap.01")
        self._requests_fd = int(self._requests.get(zmq.FD))
        self._router = self._context.socket(zmq.ROUTER)
        configure(self._router)
        self._router.rcvhwm = MESSAGES_UNREAD
        self._most_bytes = max_payload + MAX_SLACK
        self._most_frames = max_payload // PIECE_BYTES + FRAMES_SLACK
        self._router.backlog = BACKLOG
        self._router.handshake_ivl = milliseconds(HANDSHAKE_S)
        self._router.router_mandatory = True
        self._router.zap_domain = b"mwpy"
        self._router.curve_server = True
        self._router.curve_publickey = keys.public.encode()
        self._router.curve_secretkey = keys.secret.encode()
        self._monitor = self._router.get_monitor_socket(_WATCHED)
        self._probe = list(probe)
        self._probe_at = 0.0
        self._timeout_s = timeout_s
        self._silent_s = timeout_s + heartbeat_interval(timeout_s)
        """The silence after which a connection is ended: the last heartbeat left before the peer became silent."""
        self._look_at = 0.0
        self._limit = sys.maxsize
        """How many connections there should be at most."""
        self._open: dict[int, Connection] = {}
        """The connections that have not ended, by descriptor; the oldest is the first."""
        self._ended: dict[int, Connection] = {}
        """Those that have ended, and are not reported."""
        self._peers: dict[bytes, Peer] = {}
        """The peers that are not forgotten."""
        self._doubtful: dict[bytes, Peer] = {}
        """Those that may be gone, which only a failing send shows."""
        self._gone: dict[bytes, None] = {}
        """Peers to which a send failed."""
        self._is_full = False
        """Whether it was said that connections cannot be accepted, and none was accepted since."""
        self._next_reason = NO_MESSAGE
        """The reason of the next connection that ends."""
        self._poller = zmq.Poller()
        for readable in (self._router, self._requests_fd, self._monitor):
            self._poller.register(readable, zmq.POLLIN)
        self.port = self._bind(host, port)

    def _bind(self, host: str, port: int) -> int:
        try:
            self._router.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            self.close(0)
            raise UsageError(
                f"cannot listen on {host}, port {port or 'any'}: {error.strerror}; give another --mw-master-port "
                f"(or none, for any free one), or another --mw-master-host"
            ) from error
        endpoint = bytes(self._router.get(zmq.LAST_ENDPOINT))
        return int(endpoint.rstrip(b"\0").rpartition(b":")[2])

    def limit(self, connections: int) -> None:
        """Turn connections away beyond a number."""
        self._limit = connections

    def watch(self, fd: int) -> None:
        """Let `poll` wait for another file descriptor, too. The caller checks whether it is ready."""
        self._poller.register(fd, zmq.POLLIN)

    def poll(self, timeout_s: float, now: float) -> list[Happened]:
        """Wait for something to happen, and return what happened.

        Args:
            timeout_s: how long to wait at most.
            now: seconds on a monotonic clock.
        """
        if self._gone or self._ended:
            timeout_s = 0.0
        elif self._doubtful:
            timeout_s = min(timeout_s, self._probe_at - now)
        ready = dict(zmq.zmq_poll(self._poller.sockets, milliseconds(min(timeout_s, self._look_at - now))))
        happened: list[Happened] = []
        if self._monitor in ready or self._requests_fd in ready:
            self._read_events(happened)
        if self._requests_fd in ready:
            self._admit()  # after the events, which show the address of a peer: one that is refused goes at once
        if self._router in ready:
            self._receive(happened)
        if now >= self._look_at:
            self._look(now)
        if self._doubtful and (now >= self._probe_at or not all(each.probes for each in self._doubtful.values())):
            self._probe_doubtful(now)
        if (self._gone or self._ended) and not has_more(self._router):
            for peer in [*self._gone]:
                happened.append(Vanished(peer, self._silence_before_end(peer, now)))
                self.forget(peer)
            for descriptor in [*self._ended]:
                self._report_ended(descriptor, happened)
        return happened

    # ---- what happens ----------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Answer all requests: members are admitted, others are not."""
        while self._requests.poll(0):
            version, request, _, _, _, mechanism, *credentials = self._requests.recv_multipart()
            known = mechanism == b"CURVE" and credentials == [self._member]
            reply = (b"200", b"OK") if known else (b"400", b"not a member")
            self._requests.send_multipart([version, request, *reply, b"", b""])

    def _read_events(self, happened: list[Happened]) -> None:
        """Read what the monitor reports."""
        failure = 0
        for event, value in islice(events(self._monitor), EVENTS_A_READ):
            if event == zmq.EVENT_ACCEPTED:
                is_sure = value not in self._ended
                self._report_ended(value, happened)
                self._open[value] = Connection(value, peer_of(value), is_sure)
                self._is_full = False
            elif event == zmq.EVENT_ACCEPT_FAILED:
                if value in (errno.EMFILE, errno.ENFILE):  # else it has nothing to do with the others
                    failure = value
            elif event == zmq.EVENT_DISCONNECTED:
                if (connection := self._open.pop(value, None)) is not None:
                    connection.reason = self._next_reason
                    self._ended[value] = connection
                    self._doubt(connection)
                self._next_reason = NO_MESSAGE
            else:
                self._next_reason = WRONG_KEY  # the next event is the end of this connection
        if failure and not self._is_full:  # libzmq tries again without a pause
            self._is_full = True
            happened.append(TurnedAway(_address(None), os.strerror(failure)))
        self._make_room(max(len(self._open) - self._limit, int(failure != 0)), happened)

    def _make_room(self, missing: int, happened: list[Happened]) -> None:
        """End the oldest connections without a message, so that as many descriptors as are missing become free."""
        unread = [each for each in self._open.values() if not each.peer] if missing > 0 else []
        for connection in unread[:missing]:
            if connection.is_turned_away or (other_end := connection.other_end) is None:
                continue
            if peer_of(connection.descriptor) == other_end:  # else it has ended
                end(connection.descriptor, other_end)
                connection.is_turned_away = True
                happened.append(TurnedAway(_address(other_end), os.strerror(errno.EMFILE)))

    def _report_ended(self, descriptor: int, happened: list[Happened]) -> None:
        """If the last connection with a descriptor was that of a stranger, and has ended, report it."""
        connection = self._ended.pop(descriptor, None)
        if connection is not None and not connection.peer and not connection.is_turned_away:
            happened.append(Stranger(_address(connection.other_end), connection.reason))

    def _receive(self, happened: list[Happened]) -> None:
        router, peers = self._router, self._peers
        for _ in range(MESSAGES_A_POLL):
            (name, *frames), last = receive(router, self._most_frames)
            name = bytes(name)
            peer = peers.get(name) or self._begin(name, last)
            try:
                if (message := peer.messages.add(frames)) is not None:
                    happened.append(Frames(name, peer.address, message))
            except ProtocolError as error:
                happened.append(Garbage(name, peer.address, str(error)))
            if not has_more(router):
                return

    def _begin(self, name: bytes, frame: zmq.Frame) -> Peer:
        """The first message of a peer was read, with this frame. So the peer is not a stranger."""
        descriptor = int(frame.get(zmq.SRCFD))
        connection = self._open.get(descriptor) or self._ended.get(descriptor) or Connection(descriptor, None, False)
        connection.peer = name
        peer = self._peers[name] = Peer(connection, str(frame.get("Peer-Address")), Arriving(self._most_bytes))
        if connection.reason or not connection.is_sure or connection.other_end is None:
            self._doubt(connection)
        return peer

    # ---- peers that may be gone ------------------------------------------------------------------------------

    def _doubt(self, connection: Connection) -> None:
        if connection.peer in self._peers:
            self._doubtful[connection.peer] = self._peers[connection.peer]

    def _look(self, now: float) -> None:
        """Look at all connections: end those that were silent for too long, and doubt those that have ended.

        Bytes that ZeroMQ has not read yet save a connection. ZeroMQ stops reading from a peer that sends faster than
        the master reads; then the peer cannot send either.
        """
        longest_s = 0.0
        for descriptor, connection in self._open.items():
            other_end = connection.other_end
            silent_s = None if other_end is None else silence_of(descriptor, other_end)
            if other_end is None or silent_s is None:
                self._doubt(connection)
                continue
            connection.heard_at = now - silent_s
            longest_s = max(longest_s, silent_s)
            if silent_s >= self._silent_s and not has_unread(descriptor):
                end(descriptor, other_end)
        soonest_s, latest_s = self._timeout_s / MOST_LOOKS_A_TIMEOUT, self._timeout_s / LOOKS_A_TIMEOUT
        self._look_at = now + min(max(soonest_s, self._silent_s - longest_s), latest_s)

    def _probe_doubtful(self, now: float) -> None:
        """Send a probe to each peer that may be gone."""
        fewest = min(peer.probes for peer in self._doubtful.values())
        self._probe_at = now + (FAST_PROBE_S if fewest < FAST_PROBES else SLOW_PROBE_S)
        for name, peer in self._doubtful.items():
            peer.probes += 1
            self.send(name, self._probe)

    def _silence_before_end(self, peer: bytes, now: float) -> float:
        """Return for how long nothing was heard from a peer that is gone; 0.0 if this is not why it is gone."""
        silent_s = now - self._peers[peer].connection.heard_at
        return silent_s if silent_s >= self._timeout_s * SILENT else 0.0

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> None:
        """Send to a peer without waiting. If it is gone, `poll` reports that, after all messages that it had sent."""
        if peer in self._gone:
            return
        try:
            send(self._router, frames, [peer])
        except zmq.ZMQError:
            if peer in self._peers:
                self._gone[peer] = None

    def forget(self, peer: bytes) -> None:
        """Stop probing a peer."""
        for table in (self._peers, self._doubtful, self._gone):
            table.pop(peer, None)

    def disconnect(self, peer: bytes) -> None:
        """End the connection of a peer, unless it has ended; `poll` then reports that it is gone."""
        known = self._peers.get(peer)
        if known is not None and known.connection.other_end is not None:
            end(known.connection.descriptor, known.connection.other_end)

    def close(self, linger_s: float) -> None:
        """Close. Messages that were sent have `linger_s` seconds to leave."""
        self._router.disable_monitor()
        self._router.close(int(linger_s * 1000))
        self._requests.close(0)
        self._monitor.close(0)
        self._context.term()


def _address(other_end: OtherEnd | None) -> str:
    return "unknown address" if other_end is None else other_end[0]


# The addresses of this host that a remote slave can try, best first.


EVERYWHERE = ("*", "0.0.0.0")
"""A master that binds this address listens at all addresses. Slaves cannot connect to this address."""

SIOCGIFADDR = 0x8915
"""Linux: the IPv4 address of a network interface; see netdevice(7)."""

_BRIDGES = ("docker", "virbr", "veth", "br-", "cni", "podman")
"""Interfaces with these names lead to containers and virtual machines of this host, rarely to another host."""


def candidates(port: int, host: str | None = None) -> tuple[str, ...]:
    """Return all endpoints worth trying, as `tcp://HOST:PORT`, best first; only that of `host` if it is given."""
    hosts = [host] if host else candidate_hosts()
    return tuple(f"tcp://{each}:{port}" for each in hosts)


def ipv4_of(host: str) -> str | None:
    """Return the IPv4 address of a host; None if the name is unknown here. An address is returned as it is."""
    try:
        return socket.gethostbyname(host) if host else None
    except (OSError, UnicodeError):
        return None


def candidate_hosts() -> list[str]:
    """Return the addresses of the default route, other interfaces and bridges, then the host's name, then loopback."""
    addresses = _interface_addresses()
    plain = [address for name, address in addresses if not name.startswith(_BRIDGES)]
    bridged = [address for name, address in addresses if name.startswith(_BRIDGES)]
    found = [address for address in (_default_route(), *plain, *bridged) if address]
    outside = [address for address in found if not address.startswith("127.")]
    return list(dict.fromkeys([*outside, *_own_name(outside), "127.0.0.1"]))


def _default_route() -> str | None:
    """Return the address that connections to other networks come from. A UDP connect sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1, RFC 5737
            address: str = probe.getsockname()[0]
        except OSError:
            return None
    return address


def _interface_addresses() -> list[tuple[str, str]]:
    addresses: list[tuple[str, str]] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
            except OSError:  # the interface has no address, or this is not Linux
                continue
            addresses.append((name, socket.inet_ntoa(answer[20:24])))
    return addresses


def _own_name(addresses: list[str]) -> list[str]:
    """Return the full name of this host, if it resolves to an address that is not in the list yet."""
    name = socket.getfqdn()
    try:
        resolved = socket.gethostbyname(name)
    except OSError:
        return []
    return [name] if resolved not in addresses and not resolved.startswith("127.") else []
