"""What happens to the connections between a master and its agents: the links report it, and the cores handle it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from mwpy._values.bounds import Buffer


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


class Garbage(Struct, frozen=True):
    """A peer that has the keys sent something that is not a message."""

    peer: bytes
    address: str
    reason: str


class Vanished(Struct, frozen=True):
    """The connection of a peer is gone."""

    peer: bytes
    silent_s: float = 0.0
    """For how long nothing was heard from it, if this is why it is gone; 0 if its process ended the connection."""


class Stranger(Struct, frozen=True):
    """A process without the right keys tried to connect."""

    address: str
    reason: str


class TurnedAway(Struct, frozen=True):
    """A connection could not be accepted, for a reason that concerns this process."""

    address: str
    reason: str


Happened = Frames | Garbage | Vanished | Stranger | TurnedAway
"""What the `poll` of a master's link returns."""
