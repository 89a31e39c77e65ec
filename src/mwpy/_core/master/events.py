"""What can happen to the master's core, as its shell tells it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from mwpy._values.ids import Buffer
from mwpy._values.messages import Message

__all__ = ["Event", "Garbage", "Received", "Send", "Stranger", "Vanished"]


class Received(Struct, frozen=True):
    """A well-formed message arrived. `peer` names its connection, never used twice."""

    peer: bytes
    address: str
    message: Message
    frames: Sequence[Buffer]


class Garbage(Struct, frozen=True):
    """Something that is no message arrived from somebody who holds our keys."""

    peer: bytes
    address: str
    reason: str


class Vanished(Struct, frozen=True):
    """A connection is gone."""

    peer: bytes
    reason: str


class Stranger(Struct, frozen=True):
    """Somebody without our keys knocked."""

    address: str
    reason: str


Event = Received | Garbage | Vanished | Stranger


class Send(Struct, frozen=True):
    """A message to be sent to a peer, with its payload frames."""

    peer: bytes
    message: Message
    frames: Sequence[Buffer] = ()
