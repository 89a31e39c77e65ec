"""The master's end of all connections."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import zmq

from mwpy._transport.happened import Frames, Happened, Malformed, Unreachable
from mwpy._transport.link.connections import Connections
from mwpy._transport.link.door import Door
from mwpy._transport.link.kernel import KNOWS_SILENCE
from mwpy._transport.link.keys import member_keys, raw, server_keys
from mwpy._transport.link.pieces import PIECE_BYTES, Arriving, is_announcement
from mwpy._transport.link.sockets import configure, has_more, receive, send, send_heartbeats
from mwpy._transport.stream import FRAMES_SLACK
from mwpy._transport.waits import heartbeat_interval, milliseconds
from mwpy._values.errors import ProtocolError, UsageError
from mwpy._values.ids import Buffer

__all__ = ["MasterLink"]

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


class MasterLink:
    """The master's end of all connections. One thread uses it. Other threads may only call `wake`.

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
        self._door = Door(self._context, raw(member_keys(key).public))
        self._router = self._context.socket(zmq.ROUTER)
        configure(self._router)
        if not KNOWS_SILENCE:
            send_heartbeats(self._router, heartbeat_interval(timeout_s), timeout_s)
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
        self._monitor = self._door.watch(self._router)
        self._probe = list(probe)
        self._probe_at = 0.0
        self._fast_probes = 0
        self._timeout_s = timeout_s
        self._silent_s = timeout_s + heartbeat_interval(timeout_s)
        """The silence after which a connection is ended: the last heartbeat left before the peer became silent."""
        self._look_at = 0.0
        self._addresses: dict[bytes, str] = {}
        """The address of each peer from which a message was read."""
        self._connections = Connections(timeout_s)
        self._gone: dict[bytes, None] = {}
        """Peers to which a send failed."""
        self._arriving: dict[bytes, Arriving] = {}
        """The large message of each peer that has not arrived as a whole."""
        self._bell_out, self._bell_in = socket.socketpair()  # as in `NoNetwork`
        self._bell_out.setblocking(False)
        self._bell_in.setblocking(False)
        self._rung = self._bell_out.fileno()
        self.asleep = False
        """Whether it waits in `poll`, or is about to. Another thread that has something for it must call `wake`."""
        self.ready: Sequence[int] = ()
        """The descriptors of `watch` that were ready at the end of the last `poll`."""
        self._watched: dict[int, None] = {}
        self._poller = zmq.Poller()
        for readable in (self._router, self._door.requests, self._monitor, self._rung):
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
        self._door.limit = connections

    def watch(self, fd: int, writable: bool = False) -> None:
        """Let `poll` wait for another file descriptor, too."""
        self._watched[fd] = None
        self._poller.register(fd, zmq.POLLIN | (zmq.POLLOUT if writable else 0))

    def unwatch(self, fd: int) -> None:
        """Stop waiting for a file descriptor."""
        del self._watched[fd]
        self._poller.unregister(fd)

    def wake(self) -> None:
        """End the wait in `poll`. Any thread may call this."""
        self.asleep = False
        try:
            self._bell_in.send(b"!")
        except OSError:
            pass  # it is full, so `poll` will not wait; or this is closed, and nothing waits

    def poll(self, timeout_s: float, now: float) -> list[Happened]:
        """Wait for something to happen, and return what happened.

        Args:
            timeout_s: how long to wait at most.
            now: seconds on a monotonic clock.
        """
        door = self._door
        if self._gone or door.ended:
            timeout_s = 0.0
        elif self._connections.doubtful:
            timeout_s = min(timeout_s, self._probe_at - now)
        ready = dict(zmq.zmq_poll(self._poller.sockets, milliseconds(min(timeout_s, self._look_at - now))))
        self.asleep = False
        happened: list[Happened] = []
        self.ready = [fd for fd in self._watched if fd in ready]
        if self._rung in ready:
            self._bell_out.recv(4096)
        if self._monitor in ready or door.requests in ready:
            seen, ended = door.read()
            happened += seen
            for descriptor in ended:
                self._connections.note_ended(descriptor)
            if ended:
                self._probe_soon(now)
        if door.requests in ready:
            door.answer()  # after `read`, which asks for the address of a peer: one that is refused goes at once
        if self._router in ready:
            self._receive(happened, now)
        if now >= self._look_at:
            self._look(now)
        if self._connections.doubtful and now >= self._probe_at:
            self._probe_doubtful(now)
        if (self._gone or door.ended) and not has_more(self._router):
            happened += self._report_gone(now)
            happened += door.report_ended()
        return happened

    def _receive(self, happened: list[Happened], now: float) -> None:
        router, addresses = self._router, self._addresses
        for _ in range(MESSAGES_A_POLL):
            (name, *frames), last = receive(router, self._most_frames)
            peer = bytes(name)
            address = addresses.get(peer)
            if address is None:
                address = addresses[peer] = str(last.get("Peer-Address"))
                descriptor = int(last.get(zmq.SRCFD))
                if self._connections.begin(peer, descriptor, self._door.message_read(descriptor)):
                    self._probe_soon(now)
            if peer in self._arriving or is_announcement(frames):
                happened += self._piece(peer, address, frames)
            else:
                happened.append(Frames(peer, address, frames))
            if not has_more(router):
                return

    def _piece(self, peer: bytes, address: str, frames: Sequence[Buffer]) -> list[Frames | Malformed]:
        """A piece of a large message has arrived, or its announcement: return the message if it is complete."""
        arriving = self._arriving.pop(peer, None)
        try:
            if arriving is None:
                self._arriving[peer] = Arriving(frames, self._most_bytes, self._most_frames)
            elif (message := arriving.add(frames)) is None:
                self._arriving[peer] = arriving
            else:
                return [Frames(peer, address, message)]
        except ProtocolError as error:
            return [Malformed(peer, address, str(error))]
        return []

    def _look(self, now: float) -> None:
        """Look at all connections: end those that were silent for too long, and probe peers that may be gone."""
        silences = self._door.end_silent(self._silent_s)
        self._connections.note_silences(silences, now)
        left_s = min((self._silent_s - silent_s for silent_s in silences.values()), default=self._timeout_s)
        soonest_s, latest_s = self._timeout_s / MOST_LOOKS_A_TIMEOUT, self._timeout_s / LOOKS_A_TIMEOUT
        self._look_at = now + min(max(soonest_s, left_s), latest_s)

    def _probe_soon(self, now: float) -> None:
        self._probe_at, self._fast_probes = now, FAST_PROBES

    def _probe_doubtful(self, now: float) -> None:
        """Send a probe to each peer that may be gone."""
        self._probe_at = now + (FAST_PROBE_S if self._fast_probes else SLOW_PROBE_S)
        self._fast_probes = max(0, self._fast_probes - 1)
        for peer in list(self._connections.doubtful):
            self.send(peer, self._probe)

    def _report_gone(self, now: float) -> list[Unreachable]:
        gone = [Unreachable(peer, self._connections.silence_before_end(peer, now)) for peer in self._gone]
        for peer in list(self._gone):
            self.forget(peer)
        return gone

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> None:
        """Send to a peer without waiting. If it is gone, `poll` reports that, after all messages that it had sent."""
        if peer in self._gone:
            return
        try:
            send(self._router, frames, [peer])
        except zmq.ZMQError:
            if peer in self._addresses:
                self._gone[peer] = None

    def forget(self, peer: bytes) -> None:
        """Stop probing a peer."""
        self._addresses.pop(peer, None)
        self._connections.forget(peer)
        self._arriving.pop(peer, None)
        self._gone.pop(peer, None)

    def disconnect(self, peer: bytes) -> None:
        """End the connection of a peer; `poll` then reports that it is gone."""
        self._connections.end(peer)

    def close(self, linger_s: float) -> None:
        """Close. Messages that were sent have `linger_s` seconds to leave."""
        self._router.disable_monitor()
        self._router.close(int(linger_s * 1000))
        self._door.close()
        self._context.term()
        self._bell_in.close()
        self._bell_out.close()
