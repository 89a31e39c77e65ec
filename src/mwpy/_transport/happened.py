"""What the links of masters and agents report. These classes need no ZeroMQ, which takes long to import."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from mwpy._values.ids import Buffer

__all__ = ["Broken", "Connected", "Frames", "Happened", "Malformed", "NotAccepted", "StrangerSeen", "Unreachable"]


class Connected(Struct, frozen=True):
    """The master accepted the connection: send a `Hello`."""


class Broken(Struct, frozen=True):
    """The connection has ended, or was never made. `fate` is `refused`, `unreachable` or `lost`."""

    fate: str
    reason: str


class Frames(Struct, frozen=True):
    """A peer's message. `peer` names its connection and is never used twice."""

    peer: bytes
    address: str
    frames: Sequence[Buffer]


class Malformed(Struct, frozen=True):
    """What a peer sent is no message, for this reason."""

    peer: bytes
    address: str
    reason: str


class Unreachable(Struct, frozen=True):
    """A peer's connection is gone."""

    peer: bytes
    silent_s: float = 0.0
    """For how long nothing was heard from it, if this is why the connection is gone; 0 if its process ended it."""


class StrangerSeen(Struct, frozen=True):
    """A connection was turned away, or ended without a message."""

    address: str
    reason: str


class NotAccepted(Struct, frozen=True):
    """A connection could not be accepted, and was closed."""

    address: str
    reason: str


Happened = Frames | Malformed | StrangerSeen | NotAccepted | Unreachable
"""What the `poll` of a master's link returns."""
