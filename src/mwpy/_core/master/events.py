"""The events of the master's core, and the message that it sends."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from mwpy._values.ids import Buffer
from mwpy._values.messages import Message
from mwpy._values.records import ResultsHandedOver

__all__ = [
    "Confirmed",
    "Event",
    "Garbage",
    "Received",
    "Returned",
    "Send",
    "Stored",
    "Stranger",
    "TurnedAway",
    "Vanished",
]


class Received(Struct, frozen=True):
    """A well-formed message arrived. `peer` names its connection; no name is used twice."""

    peer: bytes
    address: str
    message: Message
    frames: Sequence[Buffer]


class Garbage(Struct, frozen=True):
    """A peer that has the keys sent something that is not a message."""

    peer: bytes
    address: str
    reason: str


class Vanished(Struct, frozen=True):
    """The connection of a peer is gone."""

    peer: bytes
    silent_s: float
    """For how long nothing was heard from it, if this is why it is gone; 0 if its process ended the connection."""


class Returned(Struct, frozen=True):
    """An agent goes on with its session on another connection, from this address."""

    peer: bytes
    address: str


class Stranger(Struct, frozen=True):
    """A process without the right keys tried to connect."""

    address: str
    reason: str


class TurnedAway(Struct, frozen=True):
    """A connection could not be accepted, for a reason that concerns this process."""

    address: str
    reason: str


class Stored(Struct, frozen=True):
    """Results that an agent has brought from a former generation are in the run database."""

    record: ResultsHandedOver
    row: int
    """The name of their row."""


class Confirmed(Struct, frozen=True):
    """An agent has said that it has handled messages of the master."""

    peer: bytes
    payload_bytes: int
    """The size of their payloads."""


Event = Received | Garbage | Vanished | Returned | Stranger | TurnedAway | Stored | Confirmed


class Send(Struct, frozen=True):
    """A message to be sent to a peer, with its payload frames."""

    peer: bytes
    message: Message
    frames: Sequence[Buffer] = ()
    after_commit: bool = False
    """Whether it is sent only when the records of the same actions are in the run database, if there is one."""
