"""Cancels what a cell of a notebook has submitted to an executor, if the cell is interrupted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

from msgspec import Struct, field

from mwpy._roles.executor_future import Future
from mwpy._roles.executor_submission import Work

__all__ = ["ExecutorCells"]


class ExecutorCells(Struct, eq=False, weakref=True):
    """Knows which tasks were submitted while a cell ran.

    Args:
        works: the queue of the executor.
        sent: the tasks that are with the master.
        lock: held to submit a task.
    """

    works: deque[Work]
    sent: Mapping[int, Future[Any]]
    lock: AbstractContextManager[Any]
    submitted: int = 0
    """How many tasks were ever submitted. It is changed while the lock is held."""
    taken: int = 0
    """How many of them were taken from the queue."""
    wake: Callable[[], None] | None = None
    """Wakes the thread of the executor; None before its start."""
    _before: int = 0
    """How many tasks were submitted before the cell began."""
    _interrupted: deque[tuple[int, int]] = field(default_factory=deque)
    """The interrupted cells: how many tasks were submitted before each of them, and with it."""

    # ---- for the main thread ----

    def cell_begins(self) -> None:
        """Remember which tasks are of earlier cells."""
        with self.lock:
            self._before = self.submitted

    def cell_interrupted(self) -> None:
        """Let the thread of the executor cancel the tasks that were submitted since the cell began."""
        with self.lock:
            self._interrupted.append((self._before, self.submitted))
        if self.wake is not None:
            self.wake()

    # ---- for the thread of the executor ----

    def cancel(self) -> None:
        """Cancel the tasks of interrupted cells, and kill those that run."""
        while self._interrupted:
            first, last = self._interrupted.popleft()
            waiting = islice(self.works.copy(), max(0, first - self.taken), max(0, last - self.taken))
            sent = [future for future in self.sent.values() if first < future.place <= last]
            for future in [work[0] for work in waiting] + sent:
                future.cancel(kill=True)
