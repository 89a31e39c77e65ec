"""The connections of the peers from which a message was read: when each was last heard, and which may have ended.

The monitor names a connection that ended by its descriptor. But ZeroMQ reports this before it has passed on the last
messages of the connection, and by then the descriptor may belong to another connection. So a peer whose descriptor is
named is only *doubtful*. It is sent probes until one of them fails.
"""

from __future__ import annotations

from mwpy._transport.link.kernel import OtherEnd, end, peer_of

__all__ = ["Connections"]

SILENT = 0.85
"""A connection on which nothing had arrived for this part of the timeout ended because of its silence. The end of a
process is noticed sooner: the last heartbeat is at most a quarter of the timeout ago, and the last look a third."""


class Connections:
    """The connections of the peers from which a message was read, by the name of the peer.

    Args:
        timeout_s: after this silence a peer is gone.
    """

    def __init__(self, timeout_s: float) -> None:
        self._silent_s = timeout_s * SILENT
        self._ends: dict[bytes, tuple[int, OtherEnd | None]] = {}
        """The descriptor of each connection, and its other end."""
        self._peers: dict[int, bytes] = {}
        """The peer of each descriptor."""
        self._heard: dict[bytes, float] = {}
        """When the last byte of each peer arrived, as far as the last look at the connections saw."""
        self.doubtful: dict[bytes, None] = {}
        """Peers that may be gone: only a failing send shows it."""

    def begin(self, peer: bytes, descriptor: int, is_sure: bool) -> bool:
        """Add the connection of a peer, after its first message.

        Args:
            peer: its name.
            descriptor: the descriptor that it had when the message arrived.
            is_sure: whether the descriptor still belongs to this connection.

        Returns:
            Whether this peer, or an earlier one with the same descriptor, is doubtful.
        """
        other_end = peer_of(descriptor)
        earlier = self._peers.get(descriptor)
        if earlier is not None:
            self.doubtful[earlier] = None
        self._peers[descriptor] = peer
        self._ends[peer] = descriptor, other_end
        if other_end is None or not is_sure:
            self.doubtful[peer] = None
        return earlier is not None or peer in self.doubtful

    def note_ended(self, descriptor: int) -> None:
        """Record that the connection with this descriptor has ended, as the monitor says."""
        if (peer := self._peers.get(descriptor)) is not None:
            self.doubtful[peer] = None

    def note_silences(self, silences: dict[int, float], now: float) -> None:
        """Record for how many seconds each connection that has not ended was silent, by descriptor."""
        for peer, (descriptor, _) in self._ends.items():
            silent_s = silences.get(descriptor)
            if silent_s is None:
                self.doubtful[peer] = None
            else:
                self._heard[peer] = now - silent_s

    def silence_before_end(self, peer: bytes, now: float) -> float:
        """Return for how long nothing was heard from a peer that is gone; 0.0 if this is not why it is gone."""
        silent_s = now - self._heard.get(peer, now)
        return silent_s if silent_s >= self._silent_s else 0.0

    def end(self, peer: bytes) -> None:
        """End the connection of a peer, unless it has ended."""
        descriptor, other_end = self._ends.get(peer, (-1, None))
        if other_end is not None:
            end(descriptor, other_end)

    def forget(self, peer: bytes) -> None:
        """Remove a peer."""
        descriptor, _ = self._ends.pop(peer, (-1, None))
        if self._peers.get(descriptor) == peer:
            del self._peers[descriptor]
        self._heard.pop(peer, None)
        self.doubtful.pop(peer, None)
