"""What an overseer knows about a resource file, and the events that reach its core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from mwpy._values.jobs import Job, Outcome
from mwpy._values.phrases import is_stale


class Need(Struct, frozen=True):
    """The content of a resource file, as far as an overseer needs it."""

    generation: str
    finished: bool
    written: float
    """The timestamp in the file. It is only compared with the previous timestamp."""
    age_s: float
    """The age of the file: its timestamp, from the master's clock, compared with the clock of this machine."""
    interval_s: float
    """Seconds until the master writes the file again."""
    slaves_needed: int
    connected: Mapping[str, int]
    """The connected jobs, and how many slaves of each are at work."""
    excluded: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The hosts to which the master sends no work, as they name themselves, and their last jobs."""
    shortest_task_s: float = 0.0
    """How many seconds each waiting task needs at least; 0 if this is not known of all of them."""


class FileView(Struct, eq=False):
    """A resource file as it was last read."""

    need: Need | None = None
    readable: bool = False
    """Whether the last attempt to read the file succeeded."""
    _changed_at: float | None = None
    """When a changed timestamp was last seen; None before the first change."""

    def take(self, need: Need, now: float) -> bool:
        """Record the content of the file. Return whether another master has written it."""
        last, self.need, self.readable = self.need, need, True
        if last is not None and need.written != last.written:
            self._changed_at = now
        return last is not None and need.generation != last.generation

    def fail(self) -> None:
        """Record that the file could not be read."""
        self.readable = False

    @property
    def slaves_needed(self) -> int:
        """How many slaves were missing when the file was written, besides the connected jobs."""
        return self.need.slaves_needed if self.need is not None else 0

    @property
    def connected(self) -> Mapping[str, int]:
        """The connected jobs, and how many slaves of each are at work."""
        return self.need.connected if self.need is not None else {}

    @property
    def excluded(self) -> Mapping[str, Sequence[str]]:
        """The hosts to which the master sends no work, and their last jobs."""
        return self.need.excluded if self.need is not None else {}

    @property
    def shortest_task_s(self) -> float:
        """How many seconds each waiting task needs at least; 0 if this is not known of all of them."""
        return self.need.shortest_task_s if self.need is not None else 0.0

    @property
    def finished(self) -> bool:
        """Whether the file says that the computation is finished."""
        return self.need is not None and self.need.finished

    def is_current(self, now: float) -> bool:
        """Whether decisions can use the file: it is readable, not finished, and its master still writes it."""
        return self.readable and not self.finished and not self.is_stale(now)

    def is_stale(self, now: float) -> bool:
        """Whether the master has missed updates. After a change was seen, differences of clocks do not matter."""
        if self.need is None:
            return True
        age_s = self.need.age_s if self._changed_at is None else now - self._changed_at
        return is_stale(age_s, self.need.interval_s)

    def valid_since(self, now: float) -> float:
        """Since when the content has been valid, if the file is read for the first time."""
        if self.need is None or self._changed_at is not None:
            return now
        return now - max(0.0, self.need.age_s)


# The events and actions of an overseer's core.


class FileRead(Struct, frozen=True):
    """A resource file was read."""

    mark: str
    need: Need


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
