"""Checks that only tasks which are over a limit are lost because of it."""

from __future__ import annotations

from msgspec import Struct, field

from mwpy._values import messages
from mwpy._values.causes import Cause

__all__ = ["OverrunChecker"]


class OverrunChecker(Struct, eq=False):
    """Knows which slaves are over a limit. A slave is named by the connection of its agent, and its number."""

    _killed: dict[tuple[bytes, int], int] = field(default_factory=dict)
    """Slaves that were killed when they ran a task that was over a limit, and this task."""
    _too_large: dict[tuple[bytes, int, int], None] = field(default_factory=dict)
    """Slaves that alone used more memory than their jobs have, and the tasks that they ran."""

    def killed(self, peer: bytes, slave: int, task: int) -> None:
        """A slave is killed while it runs a task that is over a limit."""
        self._killed[peer, slave] = task

    def too_large(self, peer: bytes, slave: int, task: int) -> None:
        """A slave alone uses more memory than its job has. If the agent is evicted now, its task is charged."""
        self._too_large[peer, slave, task] = None

    def died(self, peer: bytes, message: messages.SlaveDied, *, leaves: bool) -> None:
        """The master hears of the death of a slave; `leaves`: whether its agent has announced that it leaves."""
        task = message.running
        if not task or message.cause not in (Cause.TIME_LIMIT, Cause.OUT_OF_MEMORY):
            return
        over = self._killed.get((peer, message.slave))
        too_large = leaves and (peer, message.slave, task) in self._too_large
        is_known = over == task or (too_large and message.cause is Cause.OUT_OF_MEMORY)
        assert is_known, f"task {task} is said to be over its limit, not task {over}"
