"""The messages about shared objects. `messages.py` describes messages in general."""

from __future__ import annotations

from msgspec import Struct

from mwpy._values.bounds import Name, Number

__all__ = [
    "PART_BYTES",
    "Share",
    "ShareForgotten",
    "ShareGiven",
    "ShareGone",
    "SharePart",
    "ShareWanted",
]

PART_BYTES = 2 << 20
"""The size of each part of a shared object, in bytes; the last part may be smaller. Other messages wait at most for the
few parts that are on their way, and heartbeats are sent between the parts."""


class Share(Struct, frozen=True):
    """How messages name a shared object."""

    digest: str
    """The digest of its content."""
    size: int
    """The size of its content, in bytes; not zero."""
    location: str = ""
    """Where processes of the same host find the content; empty if they cannot."""


class ShareWanted(Struct, frozen=True):
    """Agent to master: send the part of a shared object that begins at this byte."""

    digest: Name
    start: Number


class SharePart(Struct, frozen=True):
    """The answer to `ShareWanted`: a part of a shared object. The part is the payload frame."""

    digest: str
    start: int


class ShareGone(Struct, frozen=True):
    """Master to agent: the master sends no part of a shared object, because no task needs it any more."""

    digest: str


class ShareGiven(Struct, frozen=True):
    """Agent to slave: a shared object can be used from now on."""

    share: Share
    """Its location is that of the agent's content."""
    reason: str = ""
    """Why its content is not here, so that tasks that need it fail; empty if it is here."""


class ShareForgotten(Struct, frozen=True):
    """Agent to slave: no task uses a shared object, unless it is given again."""

    digest: str
