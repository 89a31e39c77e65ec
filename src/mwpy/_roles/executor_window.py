"""How many tasks of an executor are with its master.

A task that is with the master may be sent at any moment, and then it cannot be cancelled any more without a kill. So an
executor keeps most tasks itself, and hands over only what keeps the slaves busy until it gets the next results.
"""

from __future__ import annotations

from msgspec import Struct

__all__ = ["Window"]

AHEAD_S = 0.02
"""Seconds of work that each slave has in addition to the task that it runs. Two threads must wake up in this time."""

MOST_AHEAD = 1000
"""The largest number of tasks that each slave has in addition."""

LEARNING_RATE = 0.3
"""The weight of what ended last in the mean time of a task."""

OVERHEAD_S = 2e-6
"""Seconds that a task costs a slave in addition to its compute time."""


class Window(Struct, eq=False):
    """Decides how many tasks may be with the master."""

    _task_s: float | None = None
    """How long a task takes in a slave, in seconds; None if none has ended."""

    def size(self, slaves: int) -> int:
        """How many tasks may be with the master, if it has this number of slaves.

        Before the first task has ended, each slave gets one task in addition to the one that it runs.
        """
        ahead = 1 if self._task_s is None else max(1, min(MOST_AHEAD, int(AHEAD_S / self._task_s)))
        return slaves * (1 + ahead)

    def ended(self, count: int, seconds: float) -> None:
        """This many tasks have ended, which took some seconds together."""
        task_s = seconds / count + OVERHEAD_S
        self._task_s = task_s if self._task_s is None else self._task_s + LEARNING_RATE * (task_s - self._task_s)
