"""The events and actions of an overseer's core."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field, frozen

from mwpy._core.overseer.files import Need
from mwpy._values.jobs import Job, Outcome

__all__ = [
    "Ended",
    "FileRead",
    "FileUnread",
    "Listed",
    "NotListed",
    "NotRemoved",
    "NotSubmitted",
    "OverseerActions",
    "OverseerEvent",
    "Submit",
    "Submitted",
]


@frozen
class FileRead:
    """A resource file was read."""

    mark: str
    need: Need


@frozen
class FileUnread:
    """A resource file could not be read, or its content is wrong."""

    mark: str
    reason: str


@frozen
class Listed:
    """The batch system listed all its jobs."""

    jobs: Sequence[Job]


@frozen
class NotListed:
    """The batch system did not answer."""

    reason: str


@frozen
class Ended:
    """The answer to a question about a job that has left the list: how it ended; None if that is not known."""

    job_id: str
    outcome: Outcome | None


@frozen
class Submitted:
    """Jobs were put into the queue."""

    mark: str
    job_ids: Sequence[str]


@frozen
class NotSubmitted:
    """The batch system refused to submit, or its answer was lost."""

    mark: str
    count: int
    reason: str


@frozen
class NotRemoved:
    """The batch system refused to remove jobs, or its answer was lost."""

    job_ids: Sequence[str]
    reason: str


OverseerEvent = FileRead | FileUnread | Listed | NotListed | Ended | Submitted | NotSubmitted | NotRemoved


@frozen
class Submit:
    """Put this many jobs of a computation into the queue."""

    mark: str
    count: int
    avoided: tuple[str, ...] = ()
    """The machines on which they must not run."""


@define
class OverseerActions:
    """Everything that must be done now; the order of the fields is the order of execution."""

    say: list[str] = field(factory=list)
    ask: list[str] = field(factory=list)
    """Jobs that have ended: ask the batch system how. Answer each question with `Ended`, then call `decide` again."""
    remove: list[str] = field(factory=list)
    submit: list[Submit] = field(factory=list)
