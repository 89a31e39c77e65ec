"""What tasks leave behind in a simulated slave: it has run some, and each of them leaks memory."""

from __future__ import annotations

from msgspec import Struct

from mwpy._simulation.world import World

__all__ = ["Wear"]

PATIENCE_S = 0.1
"""Seconds in which an agent that is not frozen replaces a slave that has too much memory."""


class Wear(Struct, eq=False):
    """The wear of one slave. It checks from outside that the agent keeps the limits."""

    _world: World
    _number: int
    _max_tasks: int | None
    _max_memory: int | None
    busy_until: float = 0.0
    """When the slave ran a task last that was not cancelled."""
    _tasks: int = 0
    _memory: float = 0.0
    """The memory that the tasks have leaked: one unit a task on average."""
    _grown_at: float | None = None
    """When the slave reported that it has too much memory."""

    def start(self, frozen_until: float) -> None:
        """Check, when the slave starts a task, that it may. Its agent was frozen until some earlier moment."""
        self._tasks += 1
        assert self._max_tasks is None or self._tasks <= self._max_tasks, f"slave {self._number} runs too many tasks"
        if self._grown_at is not None:
            in_time = self._world.now < max(self._grown_at, frozen_until) + PATIENCE_S
            assert in_time, f"slave {self._number} runs a task although it has too much memory"

    def finish(self, *, wanted: bool) -> bool:
        """The slave has finished a task. Return whether it reports now that it has too much memory.

        Args:
            wanted: whether the task is not cancelled.
        """
        if wanted:
            self.busy_until = self._world.now
        self._memory += self._world.random.expovariate(1.0)
        if self._max_memory is None or self._memory <= self._max_memory or self._grown_at is not None:
            return False
        self._grown_at = self._world.now
        return True
