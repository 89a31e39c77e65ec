"""What can happen to the master's core, as its shell tells it."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from mwpy._messages import Message
from mwpy.task import Buffer

__all__ = ["Event", "Garbage", "Received", "Send", "Stranger", "Vanished"]


@frozen
class Received:
    """A well-formed message arrived. `peer` names its connection, never used twice."""

    peer: bytes
    address: str
    message: Message
    frames: Sequence[Buffer]


@frozen
class Garbage:
    """Something that is no message arrived from somebody who holds our keys."""

    peer: bytes
    address: str
    reason: str


@frozen
class Vanished:
    """A connection is gone."""

    peer: bytes
    reason: str


@frozen
class Stranger:
    """Somebody without our keys knocked."""

    address: str
    reason: str


Event = Received | Garbage | Vanished | Stranger


@frozen
class Send:
    """A message to be sent to a peer, with its payload frames."""

    peer: bytes
    message: Message
    frames: Sequence[Buffer] = ()
