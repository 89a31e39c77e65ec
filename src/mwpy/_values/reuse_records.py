"""Records about tasks that end because of a former generation: it has answered them, or they must not run again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from mwpy._values.ids import SlaveId
from mwpy._values.messages import Results
from mwpy._values.record_parts import ReusedTasks, TaskRange

__all__ = ["ResultsHandedOver", "ResultsReused", "TasksAnswered", "TasksAwaited", "TasksForbidden"]


class ResultsReused(Struct, frozen=True, tag=True):
    """The master algorithm submitted tasks, and they ended at once: former generations have stored their results."""

    tasks: Sequence[ReusedTasks]


class ResultsHandedOver(Struct, frozen=True, tag=True):
    """An agent brought results of tasks that a former generation had sent to its slaves. They are stored as those of
    that generation."""

    agent: str
    host: str
    """The machine of the agent."""
    generation: int
    """The number of that generation."""
    sid: SlaveId
    """The id that the slave had there."""
    results: Results
    """The results, with the ids that the tasks had there. Those that do not count are left out."""
    frames: Sequence[Any]


class TasksAnswered(Struct, frozen=True, tag=True):
    """Tasks that had not ended got their results from a former generation, because an agent has brought these."""

    sid: SlaveId | None
    """The slave that held the tasks; None if none did."""
    tasks: Sequence[TaskRange]
    results: Results
    """The results of these tasks, in their order."""
    frames: Sequence[Any]


class TasksAwaited(Struct, frozen=True, tag=True):
    """Pending tasks wait for agents that have outlived the former master, and may bring their results."""

    tasks: Sequence[TaskRange]


class TasksForbidden(Struct, frozen=True, tag=True):
    """The master algorithm submitted tasks, and they ended at once as unrunnable: in a former generation their attempts
    were used up, or it sent them to a slave, and their policy forbids a second execution."""

    tasks: TaskRange
    keys: bytes
    """The key of each task, one after the other."""
    reason: str
