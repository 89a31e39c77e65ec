"""The settings of an overseer, and the events and actions of its core."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from mwpy._values.jobs import Job, Outcome, ResourceFile


class OverseerSettings(Struct, frozen=True):
    """The options that the core needs; `cli/oversee.py` describes them."""

    max_jobs: int = 1000
    max_per_minute: int = 200
    patience_s: float = 60.0
    interval_s: float = 10.0
    job_limit_s: float | None = None
    """After how many seconds a batch system ends each job; None if this is not known."""


# The events and actions of an overseer's core.


class FileRead(Struct, frozen=True):
    """A resource file was read."""

    mark: str
    content: ResourceFile
    age_s: float
    """The age of the file: its timestamp, from the master's clock, compared with the clock of this machine."""


class FileUnread(Struct, frozen=True):
    """A resource file could not be read, or its content is wrong."""

    mark: str
    reason: str


class Listed(Struct, frozen=True):
    """The batch system listed all its jobs."""

    jobs: Sequence[Job]
    free_places: int | None = None
    """How many more jobs it can take now; None if it has a queue."""


class NotListed(Struct, frozen=True):
    """The batch system did not answer."""

    reason: str


class Ended(Struct, frozen=True):
    """The answer to a question about a job that has left the list: how it ended; None if that is not known."""

    job_id: str
    outcome: Outcome | None


class Submitted(Struct, frozen=True):
    """Jobs were put into the queue."""

    mark: str
    job_ids: Sequence[str]


class NotSubmitted(Struct, frozen=True):
    """The batch system refused to submit, or its answer was lost."""

    mark: str
    count: int
    reason: str


class NotRemoved(Struct, frozen=True):
    """The batch system refused to remove jobs, or its answer was lost."""

    job_ids: Sequence[str]
    reason: str


OverseerEvent = FileRead | FileUnread | Listed | NotListed | Ended | Submitted | NotSubmitted | NotRemoved


class Submit(Struct, frozen=True):
    """Put this many jobs of a computation into the queue."""

    mark: str
    count: int
    avoided: tuple[str, ...] = ()
    """The machines on which they must not run."""


class OverseerActions(Struct):
    """Everything that must be done now; the order of the fields is the order of execution."""

    say: list[str] = field(default_factory=list)
    ask: list[str] = field(default_factory=list)
    """Jobs that have ended: ask the batch system how. Answer each question with `Ended`, then call `decide` again."""
    remove: list[str] = field(default_factory=list)
    submit: list[Submit] = field(default_factory=list)
