"""An agent's end of its connection to the master."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zmq

from mwpy._transport.happened import Broken, Connected
from mwpy._transport.link.keys import CurvePair
from mwpy._transport.link.pieces import Arriving, is_announcement
from mwpy._transport.link.sockets import MOST_FRAMES, configure, events, has_more, receive, send, send_heartbeats
from mwpy._transport.waits import heartbeat_interval, milliseconds
from mwpy._values.errors import ProtocolError, UsageError
from mwpy._values.ids import Buffer

__all__ = ["AgentLink"]


MAX_BYTES = 1 << 36
"""The largest size of a message of the master."""

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
        self._arriving: Arriving | None = None
        """The large message that has not arrived as a whole."""
        self._poller = zmq.Poller()
        self._poller.register(self._dealer, zmq.POLLIN)
        self._poller.register(self._monitor_fd, zmq.POLLIN)
        try:
            self._dealer.connect(address)
        except zmq.ZMQError as error:
            self.close(0.0)
            raise UsageError(f"{address} is no address to connect to: write tcp://HOST:PORT") from error

    def watch(self, fd: int, writable: bool = False, readable: bool = True) -> None:
        """Let `poll` wait for a file descriptor too."""
        self._poller.register(fd, (zmq.POLLIN if readable else 0) | (zmq.POLLOUT if writable else 0))

    def unwatch(self, fd: int) -> None:
        """Stop waiting for a file descriptor."""
        self._poller.unregister(fd)

    def poll(self, timeout_s: float | None) -> tuple[list[Connected | Broken], list[list[Buffer]], list[int]]:
        """Wait for something to happen.

        Args:
            timeout_s: how long to wait at most; None for as long as it takes.

        Returns:
            The state of the connection, the messages that arrived, and the file descriptors that are ready.
        """
        ready: dict[Any, int] = dict(
            zmq.zmq_poll(self._poller.sockets, -1 if timeout_s is None else milliseconds(timeout_s))
        )
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
            whole: list[Buffer] | None = frames
            if self._arriving is not None:
                whole = self._arriving.add(frames)
                self._arriving = self._arriving if whole is None else None
            elif is_announcement(frames):
                self._arriving, whole = Arriving(frames, MAX_BYTES, MOST_FRAMES), None
            if whole is not None:
                return [whole]
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
