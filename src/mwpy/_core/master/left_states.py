"""The states that tasks left for their next attempts. `checkpoints.py` decides which of them count."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from mwpy._core.master.allocated import AllocatedTasks
from mwpy._core.master.spans import LeftState, Span
from mwpy._values.records import TaskCheckpointed

__all__ = ["LeftStates"]


class LeftStates(Struct, eq=False):
    """Keeps the newest state of each task, in the span of the task. Only the taskjar adds and removes states."""

    allocated: AllocatedTasks
    bytes: int = 0
    """How many bytes all states take."""

    def add(self, record: TaskCheckpointed, _: object) -> list[Span]:
        """A task left a state. It replaces an earlier one."""
        spans = self.allocated.set_apart(record.sid, [record.task])
        (span,) = spans
        before = span.left
        left = LeftState(record.frames, span.attempt, before.num_lost if before else 0)
        for each in self.allocated.several.get(span.first, {record.sid: span}).values():
            each.left = left
        span.algorithm.leaves_state = True
        self.bytes += left.size - (before.size if before else 0)
        return spans

    def check(self, spans: Iterable[Span]) -> None:
        """Recompute the sizes.

        Args:
            spans: all spans.
        """
        left = {span.first: (span.count, span.left) for span in spans if span.left is not None}
        assert self.bytes == sum(state.size for _, state in left.values()), "the states were miscounted"
        assert all(count == 1 for count, _ in left.values()), "several tasks have the same state"
