"""The messages about shared objects. `messages.py` describes messages in general.

A result that stays at its agent (`keep=True`) is a shared object, too: this agent has its content, and the other agents
get it from there through the master.
"""

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
    "share_of_result",
    "task_of",
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
    task: int = 0
    """The id of the task whose result it is; 0 if it is an object that the algorithm has shared."""


_OF_RESULT = "result "


def share_of_result(task: int, attempt: int, size: int) -> Share:
    """Name a result that stays at its agent. It is known by its task and attempt: no other result has its name."""
    return Share(f"{_OF_RESULT}{task} {attempt}", size, task=task)


def task_of(digest: str) -> int:
    """Return the id of the task whose result has this name; 0 if it is no result."""
    words = digest.removeprefix(_OF_RESULT).split(" ") if digest.startswith(_OF_RESULT) else []
    return int(words[0]) if len(words) == 2 and words[0].isdecimal() else 0


class ShareWanted(Struct, frozen=True):
    """Agent to master: send the part of a shared object that begins at this byte.

    Master to agent: send it of a result that stays at this agent."""

    digest: Name
    start: Number


class SharePart(Struct, frozen=True):
    """The answer to `ShareWanted`: a part of a shared object. The part is the payload frame."""

    digest: str
    start: int


class ShareGone(Struct, frozen=True):
    """Master to agent: the master sends no part of a shared object, because no task needs it any more, or because it is
    lost. If it is a result that stays at this agent, it is released.

    Agent to master: this agent does not have this result."""

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
