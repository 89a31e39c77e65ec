"""Delayed tasks, which pause before their next attempt. `delays.py` decides when their pauses are over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from mwpy._core.master.spans import Span
from mwpy._values.errors import InternalError
from mwpy._values.ids import SlaveId
from mwpy._values.records import TaskRange
from mwpy._values.task import TaskState

__all__ = ["DelayedTasks"]


class DelayedTasks(Struct, eq=False):
    """All delayed tasks. Only the taskjar adds and removes them."""

    tasks: dict[int, Span] = field(default_factory=dict)
    """The tasks, by id. Each has a span of its own, because its pause may end at any time."""
    addressed: dict[SlaveId, dict[int, None]] = field(default_factory=dict)
    """The ids of those that are addressed to a slave. No entry is empty."""

    def add(self, spans: Iterable[Span], pause_s: float) -> list[Span]:
        """Add tasks with the same pause, in seconds. Return a span for each task."""
        singles = [single for span in spans for single in span.singles()]
        for single in singles:
            single.pause_s = pause_s
            self.tasks[single.first] = single
            if single.policy.sid is not None:
                self.addressed.setdefault(single.policy.sid, {})[single.first] = None
        return singles

    def remove(self, tasks: Sequence[TaskRange]) -> list[Span]:
        """Remove tasks."""
        spans: list[Span] = []
        for number in (each.first + place for each in tasks for place in range(each.count)):
            span = self.tasks.pop(number, None)
            if span is None:
                raise InternalError(f"task {number} is not delayed")
            span.pause_s = 0.0
            if (sid := span.policy.sid) is not None:
                del self.addressed[sid][number]
                if not self.addressed[sid]:
                    del self.addressed[sid]
            spans.append(span)
        return spans

    def check(self) -> None:
        """Compare the tasks with their states and addresses."""
        addressed: dict[SlaveId, set[int]] = {}
        for number, span in self.tasks.items():
            assert (span.first, span.count) == (number, 1), f"{span}: it is delayed as task {number}"
            assert span.state is TaskState.DELAYED, f"{span}: it is delayed, but {span.state.name}"
            assert span.sid is None, f"{span}: it is delayed, but allocated to {span.sid}"
            assert span.pause_s > 0, f"{span}: it is delayed without a pause"
            if span.policy.sid is not None:
                addressed.setdefault(span.policy.sid, set()).add(number)
        assert addressed == {sid: {*numbers} for sid, numbers in self.addressed.items()}, "an address was lost"
