"""The connection between master and agents: the only place that knows ZeroMQ.

ROUTER at the master, DEALER at the agent, CURVE always on. What was measured on libzmq 4.3.5 and is relied upon:

- A peer that dies leaves no message on a ROUTER, but its socket monitor says DISCONNECTED, and a send to it soon raises
  EHOSTUNREACH (ROUTER_MANDATORY): mostly the first one or the second, once the ROUTER has looked for messages. So
  every DISCONNECTED sets off two rounds of probes, and a slow round goes on for ever. What the peer sent before may
  still be unread then; so that it is gone is told when nothing is left to read.
- ZMTP heartbeats are answered by libzmq's own thread, also while Python holds the interpreter lock; a frozen or
  vanished host becomes unreachable after the timeout.
- With no routing id set, a ROUTER names each connection afresh, so no peer can be mistaken for another. With
  RECONNECT_IVL -1 a broken connection stays broken, so a reconnect is always a new connection, and nothing
  queued for the old one is ever delivered on it.
- A client with a wrong key of its own sees HANDSHAKE_FAILED_AUTH; one that expects another server's key sees
  HANDSHAKE_FAILED_NO_DETAIL; with nobody there, CLOSED.
- The server's monitor says ACCEPTED and DISCONNECTED with the connection's file descriptor, and each message has it too
  (SRCFD): who was accepted and left without a message was a stranger. As the thread that reads the messages answers
  for each who knocks (ZAP), it has ACCEPTED before the first message.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

import zmq
from attrs import frozen
from msgspec import Struct
from zmq.utils import z85

from mwpy._values.errors import UsageError
from mwpy._values.ids import Buffer

__all__ = [
    "AgentLink",
    "Broken",
    "Connected",
    "CurvePair",
    "Frames",
    "MasterLink",
    "StrangerSeen",
    "Unreachable",
    "member_keys",
    "new_key",
    "server_keys",
]

LARGE_BYTES = 64 * 1024
"""Frames of this size are passed on as views of ZeroMQ's memory instead of being copied."""

MESSAGES_A_POLL = 256
"""So many messages are taken at a time, that decisions are not kept waiting by a flood."""

PROBES_A_TIMEOUT = 3

LONGEST_POLL_MS = 2**31 - 1
"""Three weeks: a poller that is told more fails."""

_AT_THE_DOOR = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_DISCONNECTED
"""What the master's monitor is to tell: who comes, who has a wrong key, who leaves."""

_EVENT = struct.Struct("=Hi")
"""The first frame of what a monitor tells; see zmq_socket_monitor(3). pyzmq's own reader of it imports asyncio."""

_WRONG_KEY = "a stranger: it has no key of ours; if it is an agent, give it a fresh resource file"
_NO_WORD = (
    "a stranger: it has the keys of another computation, or is no agent; if it is one, give it a fresh resource file"
)

_POLLIN = int(zmq.POLLIN)
_NOBLOCK = int(zmq.NOBLOCK)
_NOBLOCK_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
"""As numbers: operators of enumerations take a while, and these are used for each message."""
_send_frame: Callable[[zmq.Socket[bytes], Buffer, int, bool], object] = zmq.backend.Socket.send  # type: ignore[assignment]
"""Of the class that `zmq.Socket` adds to: what it adds is of no use here, and takes as long again."""

MAX_FRAME_SLACK = 32 << 20
"""Bytes that a frame may have beyond the largest payload: a group's other tasks and its header."""


@frozen
class CurvePair:
    """A CURVE key pair, Z85 text."""

    public: str
    secret: str


def new_key() -> str:
    """A fresh key of a computation: one secret text, from which both key pairs are made."""
    return secrets.token_hex(32)


def server_keys(key: str) -> CurvePair:
    """The master's key pair."""
    return _derive("mwpy server", key)


def member_keys(key: str) -> CurvePair:
    """The key pair that all members share."""
    return _derive("mwpy member", key)


def _derive(purpose: str, key: str) -> CurvePair:
    secret = z85.encode(hashlib.sha256(f"{purpose}\0{key}".encode()).digest())
    return CurvePair(zmq.curve_public(secret).decode(), secret.decode())


class Frames(Struct, frozen=True):
    """A message of a peer; `peer` names its connection, never used twice."""

    peer: bytes
    address: str
    frames: Sequence[Buffer]


class StrangerSeen(Struct, frozen=True):
    """Somebody came and went, or was turned away, without a message of ours."""

    address: str
    reason: str


class Unreachable(Struct, frozen=True):
    """A peer's connection is gone."""

    peer: bytes


def _configure(end: zmq.Socket[bytes], timeout_s: float) -> None:
    end.linger = 0
    end.sndhwm = end.rcvhwm = 0  # what is sent is bounded by who decides, not by losing it here
    end.heartbeat_ivl = max(100, int(timeout_s * 1000 / PROBES_A_TIMEOUT))
    end.heartbeat_timeout = max(200, int(timeout_s * 1000))
    end.ipv6 = False


def _milliseconds(seconds: float) -> int:
    """For a poller: rounded up, so that what is due is due when it returns, unless that is more than it can count."""
    return min(max(0, math.ceil(seconds * 1000)), LONGEST_POLL_MS)


def _events(monitor: zmq.Socket[bytes]) -> list[tuple[int, int]]:
    """What a socket monitor tells: the events, each with its value."""
    found: list[tuple[int, int]] = []
    while monitor.poll(0):
        event, value = _EVENT.unpack(monitor.recv_multipart()[0])
        found.append((event, value))
    return found


def _peer_address(descriptor: int) -> str:
    """Where a connection comes from, by its file descriptor, which may be closed by now."""
    try:
        with socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as connection:
            return str(connection.getpeername()[0])
    except OSError:
        return "somebody who left at once"


def _has_more(end: zmq.Socket[bytes]) -> bool:
    """Whether another message is here; asking is quicker than the error that tells it."""
    return bool(zmq.zmq_poll([(end, _POLLIN)], 0))


def _receive(end: zmq.Socket[bytes]) -> tuple[list[Buffer], zmq.Frame]:
    """The next message, which is here, and its last frame, which knows whence.

    As `recv_multipart`, but a frame is asked itself whether there are more, and large ones are not copied.
    """
    buffers: list[Buffer] = []
    receive = end.recv  # looking up an attribute of a socket or frame takes a while
    while True:
        frame = receive(_NOBLOCK, False)
        buffers.append(frame.buffer if len(frame) >= LARGE_BYTES else frame.bytes)
        if not frame.more:
            return buffers, frame


def _send(end: zmq.Socket[bytes], frames: Sequence[Buffer]) -> None:
    """Send a message without waiting; large frames are not copied. As `send_multipart`, but with plain numbers."""
    copy = max(map(len, frames)) < LARGE_BYTES
    for frame in frames[:-1]:
        _send_frame(end, frame, _NOBLOCK_MORE, copy)
    _send_frame(end, frames[-1], _NOBLOCK, copy)


class MasterLink:
    """The master's end. Used by one thread; only `wake` may be called from others.

    Args:
        host: the interface to bind, or `*` for all.
        port: the port to bind, or 0 for any.
        key: the computation's key.
        timeout_s: silence of the network after which a peer is gone.
        max_payload: bytes of the largest payload frame that is let through.
        probe: the frames of a message that does nothing.

    Raises:
        UsageError: it cannot be bound.
    """

    def __init__(
        self, host: str, port: int, key: str, timeout_s: float, max_payload: int, probe: Sequence[Buffer]
    ) -> None:
        keys = server_keys(key)
        self._member = z85.decode(member_keys(key).public)
        self._context = zmq.Context()
        self._doorkeeper = self._context.socket(zmq.REP)  # ZAP, RFC 27: asked about each who knocks
        self._doorkeeper.linger = 0
        self._doorkeeper.bind("inproc://zeromq.zap.01")
        self._router = self._context.socket(zmq.ROUTER)
        _configure(self._router, timeout_s)
        self._router.maxmsgsize = max_payload + MAX_FRAME_SLACK
        self._router.router_mandatory = True
        self._router.zap_domain = b"mwpy"
        self._router.curve_server = True
        self._router.curve_publickey = keys.public.encode()
        self._router.curve_secretkey = keys.secret.encode()
        self._monitor = self._router.get_monitor_socket(_AT_THE_DOOR)
        self._probe = list(probe)
        self._probe_interval_s = timeout_s / PROBES_A_TIMEOUT
        self._probe_at = 0.0
        self._probe_rounds = 0
        self._addresses: dict[bytes, str] = {}
        """Of each peer that was heard."""
        self._gone: dict[bytes, None] = {}
        """Peers to which a send failed."""
        self._unheard: dict[int, str] = {}
        """Address of each connection, by its descriptor, from which no message was read."""
        self._ended: dict[int, str] = {}
        """Connections that are no more, by descriptor, each with what it was if it never said a word."""
        self._next_to_end = _NO_WORD
        """What the next connection that ends was in that case."""
        self._bell_out, self._bell_in = os.pipe()
        os.set_blocking(self._bell_out, False)
        os.set_blocking(self._bell_in, False)
        self.asleep = False
        """Whether it waits in `poll`, or is about to: who has something for it must call `wake`."""
        self._poller = zmq.Poller()
        for thing in (self._router, self._doorkeeper, self._monitor, self._bell_out):
            self._poller.register(thing, zmq.POLLIN)
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

    def wake(self) -> None:
        """End the waiting in `poll`; from any thread."""
        self.asleep = False
        try:
            os.write(self._bell_in, b"!")
        except BlockingIOError:
            pass  # it rings already

    def poll(self, timeout_s: float, now: float) -> list[Frames | StrangerSeen | Unreachable]:
        """Wait for something to happen, and tell what.

        Args:
            timeout_s: how long to wait at the most.
            now: seconds on a monotonic clock.
        """
        if self._gone or self._ended:
            timeout_s = 0.0
        elif self._probe_rounds:
            timeout_s = min(timeout_s, 0.05)
        ready = dict(zmq.zmq_poll(self._poller.sockets, _milliseconds(min(timeout_s, self._probe_at - now))))
        self.asleep = False
        happened: list[Frames | StrangerSeen | Unreachable] = []
        if self._bell_out in ready:
            os.read(self._bell_out, 4096)
        if self._doorkeeper in ready:
            self._open_door()
        if self._monitor in ready:
            self._watch_door(happened)
        if self._router in ready:
            self._receive(happened)
        if self._probe_rounds or now >= self._probe_at:
            self._probe_rounds = max(0, self._probe_rounds - 1)
            self._probe_at = now + self._probe_interval_s
            for peer in list(self._addresses):
                self.send(peer, self._probe)
        if (self._gone or self._ended) and not _has_more(self._router):
            self._tell_who_left(happened)
        return happened

    def _receive(self, happened: list[Frames | StrangerSeen | Unreachable]) -> None:
        router, addresses = self._router, self._addresses
        for _ in range(MESSAGES_A_POLL):
            (name, *frames), last = _receive(router)
            peer = bytes(name)
            address = addresses.get(peer)
            if address is None:
                address = addresses[peer] = str(last.get("Peer-Address"))
                self._unheard.pop(int(last.get(zmq.SRCFD)), None)
            happened.append(Frames(peer, address, frames))
            if not _has_more(router):
                return

    def _open_door(self) -> None:
        while self._doorkeeper.poll(0):
            version, request, _, _, _, mechanism, *credentials = self._doorkeeper.recv_multipart()
            known = mechanism == b"CURVE" and credentials == [self._member]
            answer = (b"200", b"OK") if known else (b"400", b"not a member")
            self._doorkeeper.send_multipart([version, request, *answer, b"", b""])

    def _watch_door(self, happened: list[Frames | StrangerSeen | Unreachable]) -> None:
        for event, value in _events(self._monitor):
            if event == zmq.EVENT_ACCEPTED:
                if value in self._ended:
                    self._tell_stranger(value, happened)
                self._unheard[value] = _peer_address(value)
            elif event == zmq.EVENT_DISCONNECTED:
                self._probe_rounds = 2
                self._ended[value], self._next_to_end = self._next_to_end, _NO_WORD
            else:
                self._next_to_end = _WRONG_KEY  # its end is the next that is told

    def _tell_who_left(self, happened: list[Frames | StrangerSeen | Unreachable]) -> None:
        for peer in self._gone:
            del self._addresses[peer]
            happened.append(Unreachable(peer))
        self._gone.clear()
        for descriptor in list(self._ended):
            self._tell_stranger(descriptor, happened)

    def _tell_stranger(self, descriptor: int, happened: list[Frames | StrangerSeen | Unreachable]) -> None:
        reason = self._ended.pop(descriptor)
        address = self._unheard.pop(descriptor, None)
        if address is not None:
            happened.append(StrangerSeen(address, reason))

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> None:
        """Send to a peer without waiting. If it is gone, `poll` tells so, after all that it had sent."""
        if peer in self._gone:
            return
        try:
            _send(self._router, [peer, *frames])
        except zmq.ZMQError:
            if peer in self._addresses:
                self._gone[peer] = None

    def forget(self, peer: bytes) -> None:
        """Probe a peer no more."""
        self._addresses.pop(peer, None)
        self._gone.pop(peer, None)

    def close(self, linger_s: float) -> None:
        """Close, giving what was sent so long to leave."""
        self._router.disable_monitor()
        self._router.close(int(linger_s * 1000))
        self._doorkeeper.close(0)
        self._monitor.close(0)
        self._context.term()
        os.close(self._bell_in)
        os.close(self._bell_out)


class Connected(Struct, frozen=True):
    """The master's door is open: say hello."""


class Broken(Struct, frozen=True):
    """There is no connection, or no more; `fate` is `refused`, `unreachable` or `lost`."""

    fate: str
    reason: str


_FATES: dict[int, Broken] = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: Broken("refused", "our key is not that of a member: get a fresh resource file"),
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: Broken(
        "refused", "whoever listens there has other keys, so it is another computation or no master at all"
    ),
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: Broken("refused", "whoever listens there is no master of mwpy"),
    zmq.EVENT_CLOSED: Broken("unreachable", "nobody listens there"),
    zmq.EVENT_DISCONNECTED: Broken("lost", "the connection broke"),
}


def library_versions() -> dict[str, str]:
    """Of libzmq and its binding."""
    return {"libzmq": zmq.zmq_version(), "pyzmq": zmq.pyzmq_version()}


class AgentLink:
    """An agent's end: one connection to one address. A reconnect is a new link.

    Args:
        address: `tcp://HOST:PORT`.
        server_public: the master's public key.
        member: the key pair of members.
        timeout_s: silence of the network after which the master is gone.

    Raises:
        UsageError: it is no address.
    """

    def __init__(self, address: str, server_public: str, member: CurvePair, timeout_s: float) -> None:
        self.address = address
        self._context = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        _configure(self._dealer, timeout_s)
        self._dealer.reconnect_ivl = -1
        self._dealer.curve_serverkey = server_public.encode()
        self._dealer.curve_publickey = member.public.encode()
        self._dealer.curve_secretkey = member.secret.encode()
        self._monitor = self._dealer.get_monitor_socket()
        self._poller = zmq.Poller()
        self._poller.register(self._dealer, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        try:
            self._dealer.connect(address)
        except zmq.ZMQError as error:
            self.close(0.0)
            raise UsageError(f"{address} is no address to connect to: write tcp://HOST:PORT") from error

    def watch(self, fd: int, writable: bool = False, readable: bool = True) -> None:
        """Let `poll` wait for a file descriptor too."""
        self._poller.register(fd, (zmq.POLLIN if readable else 0) | (zmq.POLLOUT if writable else 0))

    def unwatch(self, fd: int) -> None:
        """Wait for a file descriptor no more."""
        self._poller.unregister(fd)

    def poll(self, timeout_s: float | None) -> tuple[list[Connected | Broken], list[list[Buffer]], list[int]]:
        """Wait for something to happen.

        Returns:
            What became of the connection, the messages that arrived, and the file descriptors that are ready.
        """
        ready: dict[Any, int] = dict(
            zmq.zmq_poll(self._poller.sockets, -1 if timeout_s is None else _milliseconds(timeout_s))
        )
        fates: list[Connected | Broken] = []
        received: list[list[Buffer]] = []
        if ready.pop(self._dealer, 0):
            received.append(_receive(self._dealer)[0])
        if ready.pop(self._monitor, 0) and not received:  # what was sent before the end is heard before it
            for event, _ in _events(self._monitor):
                if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    fates.append(Connected())
                elif (fate := _FATES.get(event)) is not None:
                    fates.append(fate)
        return fates, received, list(ready)

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send to the master without waiting. Whether it arrives, only an answer tells."""
        try:
            _send(self._dealer, frames)
        except zmq.ZMQError:
            pass  # the monitor tells what became of the connection

    def close(self, linger_s: float) -> None:
        """Close, giving what was sent so long to leave."""
        self._dealer.disable_monitor()
        self._dealer.close(int(linger_s * 1000))
        self._monitor.close(0)
        self._context.term()
