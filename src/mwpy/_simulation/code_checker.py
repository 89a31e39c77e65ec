"""Checks from outside that each task runs the code with which it was submitted."""

from __future__ import annotations

from msgspec import Struct, field

from mwpy._values.ids import SlaveId
from mwpy._values.records import AlgorithmDefined

__all__ = ["CodeChecker"]


class CodeChecker(Struct, eq=False):
    """Knows the code of each task, and the edits of the modules."""

    edits: int = 0
    """How often a module of the algorithm was edited."""
    _algorithms: dict[int, AlgorithmDefined] = field(default_factory=dict)
    """The definition with which each task was submitted."""
    _edits_before: dict[int, int] = field(default_factory=dict)
    """How often before each task was submitted."""

    def submitted(self, task: int, algorithm: AlgorithmDefined) -> None:
        """A task is submitted."""
        self._algorithms[task] = algorithm
        self._edits_before[task] = self.edits

    def edited(self) -> None:
        """A module was edited. No slave that has started may run a task that is submitted from now on."""
        self.edits += 1

    def has(self, task: int, sid: SlaveId | None, edits: int, algorithm: tuple[str, bytes]) -> None:
        """A slave is about to start a task.

        Args:
            edits: how often a module had been edited when the slave process started.
            algorithm: what the slave has for the task's algorithm: the reference and the pickle.
        """
        assert edits >= self._edits_before[task], f"{sid} runs task {task} with a module from before an edit"
        is_same = algorithm == (self._algorithms[task].definition.reference, self._algorithms[task].packed)
        assert is_same, f"task {task} runs another function than it was submitted with"
