"""Checks from outside what tasks get whose arguments refer to results of other tasks, and which of them run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from mwpy._values.errors import DependencyFailed
from mwpy._values.task import Result

__all__ = ["ReferenceChecker"]


class ReferenceChecker(Struct, eq=False):
    """Follows values from the tasks that gave them to those that refer to them."""

    numbers: Mapping[int, int]
    """The values of tasks; all others have their ids as values."""
    refers: dict[int, Sequence[int]] = field(default_factory=dict)
    """The tasks that refer to others, and these others."""
    values: dict[int, object] = field(default_factory=dict)
    """The values that the algorithm got."""
    num_seen: int = 0
    """How often a slave got a task with values."""
    causes: dict[int, int] = field(default_factory=dict)
    """For each task that failed because of another one: the id of that task."""
    _seen: dict[int, dict[int, object]] = field(default_factory=dict)
    """The values that each task got."""

    def saw(self, task: int, values: dict[int, object]) -> None:
        """A slave begins a task with these values. All attempts must get the same."""
        assert self._seen.setdefault(task, values) == values, f"task {task} gets {values}, not {self._seen[task]}"
        self.num_seen += 1

    def finished(self, result: Result[Any]) -> None:
        """The algorithm gets a result."""
        if result.ok:
            self.values[result.task_id] = result.value
        if isinstance(result.error, DependencyFailed):
            self.causes[result.task_id] = result.error.dependency

    def check_end(self, runs: Mapping[int, int]) -> None:
        """All tasks have ended.

        Args:
            runs: how often each task was started.
        """
        for task, numbers in self.refers.items():
            without = [number for number in numbers if number not in self.values]
            assert not (runs.get(task) and without), f"task {task} has run, but {without} have no values"
            assert task not in self.causes or without, f"task {task} has failed, but {numbers} have values"
            if task in self._seen:
                expected = {number: self.values[number] for number in numbers}
                assert self._seen.get(task) == expected, f"task {task} got {self._seen.get(task)}, not {expected}"
        for task, cause in self.causes.items():
            assert task in self.refers, f"task {task} refers to nothing"
            assert cause not in self.values, f"task {task} failed because of task {cause}, which has a value"
            assert cause not in self.causes, f"task {task} names task {cause}, which is not the first cause"
