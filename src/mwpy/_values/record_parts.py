"""What records consist of: how they name tasks, what was submitted, and what a task is charged with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from mwpy._values.causes import Cause
from mwpy._values.ids import SlaveId, TaskId
from mwpy._values.policy import TaskPolicy

__all__ = ["Charge", "ReusedTasks", "SubmittedTasks", "TaskRange"]


class TaskRange(Struct, frozen=True):
    """How a record names tasks: `count` consecutive ids from `first` on, in one attempt, of one algorithm."""

    first: int
    count: int
    attempt: int
    """The number of times that these tasks were sent to a slave, this time included."""
    algorithm: int
    """The number of the algorithm's definition."""
    name: str
    """The name of the algorithm."""
    expected_s: float | None = None
    """How long each task takes, by its policy; None if its policy does not say this."""
    once: bool = False
    """Whether the policy forbids a second execution."""

    def __str__(self) -> str:
        last = f" to {self.first + self.count - 1}" if self.count > 1 else ""
        return f"task{'s' if last else ''} {self.first}{last} ({self.name})"


class SubmittedTasks(Struct, frozen=True):
    """Tasks as they were submitted: consecutive ids, one algorithm, one policy, and the arguments of each task."""

    first: TaskId
    count: int
    algorithm: int
    """The number of the algorithm's definition."""
    policy: TaskPolicy
    payloads: Sequence[bytes]
    """The encoded arguments of each task; if they are packed, one entry with all of them."""
    buffers: Sequence[Any]
    """The large buffers of each task's arguments; empty if no task has any."""
    refers: Sequence[int] = ()
    """If it is one task: the ids of the tasks to whose results its arguments refer, each once."""
    packed: int = 0
    """If they are a portion of a map: how their arguments are packed, see `packed.py`; else 0."""
    keys: bytes = b""
    """The key of each task, one after the other; empty if there is no run database."""


class ReusedTasks(Struct, frozen=True):
    """Tasks that ended at their submission, because the run database has their results."""

    first: int
    count: int
    algorithm: int
    """The number of the algorithm's definition."""
    name: str
    """The name of the algorithm."""
    keys: bytes
    """The key of each task, one after the other."""
    rows: Sequence[int]
    """For each task: the name of the row of the run database with its result."""
    places: Sequence[int]
    """For each task: the place of its result in the row."""
    failed: Sequence[int] = ()
    """Which of the tasks failed: their places here, in ascending order."""


class Charge(Struct, frozen=True):
    """The loss of an attempt: an entry for the history of the task. If a slave ended, its `SlaveEnded` has its last
    words."""

    sid: SlaveId
    cause: Cause
    reason: str
    more_memory: int = 0
    """As in `Death`."""

    @property
    def is_charged(self) -> bool:
        """Whether the task is charged with the loss, so that it counts for `attempts_max`."""
        return self.cause.is_charged and not self.more_memory
