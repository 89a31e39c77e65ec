"""Pauses before the next attempt of a task.

A task pauses if its policy has `after` and its attempt was lost by its own fault: what was wrong, such as a server that
is overloaded, may be right later. The pause doubles with each such loss. A delayed task needs no slave, and does not
count as pending. Tasks that are delayed for another reason have no end here (see `awaited.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import inf

from msgspec import Struct, field

from mwpy._core.master.handback import HandBack
from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterState
from mwpy._values import records
from mwpy._values.ids import SlaveId
from mwpy._values.records import Charge, TaskRange

__all__ = ["Delays"]

OUTDATED_ALLOWED = 1000
"""How many pauses of tasks that are not delayed any more may be kept, beside as many as there are delayed tasks."""


class Delays(Struct, eq=False):
    """Returns tasks, and ends their pauses."""

    state: MasterState
    handback: HandBack
    _new: list[Span] = field(default_factory=list)
    """Tasks whose pause begins in this iteration."""
    _ends: list[tuple[float, int, int]] = field(default_factory=list)
    """A heap of the ends of pauses: when, on the core's clock, and the id and the last attempt of the task. Those of
    tasks that were cancelled or given up are outdated."""

    def give_back(
        self,
        sid: SlaveId,
        tasks: Sequence[TaskRange],
        reason: str,
        charges: tuple[Charge, ...] = (),
        pause_s: float = 0,
    ) -> Sequence[Span]:
        """Return tasks that a slave held. They are pending again after a pause, in seconds.

        Returns:
            The returned tasks.
        """
        spans = self.state.record(records.TasksReturned(sid, tasks, reason, charges, pause_s))
        if pause_s:
            self._new += spans
        return spans

    def decide(self, now: float) -> None:
        """Begin the pauses of tasks that were returned in this iteration, and end the pauses that are over."""
        if self._new:
            self._begin(now)
        due: list[TaskRange] = []
        while (end_at := self.deadline) is not None and end_at <= now:
            due.append(self.state.jar.delayed.tasks[heappop(self._ends)[1]].whole)
        if due:
            self._end(due)

    def _begin(self, now: float) -> None:
        for span in self._new:
            heappush(self._ends, (now + span.pause_s, span.first, span.attempt))
        self._new.clear()
        if len(self._ends) > 2 * len(self.state.jar.delayed.tasks) + OUTDATED_ALLOWED:
            self._ends = [end for end in self._ends if self._is_valid(end)]
            heapify(self._ends)

    def _end(self, due: Sequence[TaskRange]) -> None:
        spans = self.state.record(records.TasksDue(due))
        for sid in dict.fromkeys(span.policy.sid for span in spans):
            if sid is not None and sid not in self.state.members.slaves:
                self.handback.release_addressed(sid, "is gone")

    @property
    def deadline(self) -> float | None:
        """When the next pause ends, on the core's clock; None if no task is delayed."""
        while self._ends and not self._is_valid(self._ends[0]):
            heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def end_of(self, task: int) -> float | None:
        """When the pause of a delayed task ends, on the core's clock; None if it has not begun."""
        return next((end[0] for end in self._ends if end[1] == task and self._is_valid(end)), None)

    def _is_valid(self, end: tuple[float, int, int]) -> bool:
        _, number, attempt = end
        span = self.state.jar.delayed.tasks.get(number)
        return span is not None and span.attempt == attempt

    def check(self) -> None:
        """Assert that the pause of each delayed task has exactly one end."""
        ends = [(number, attempt) for end in self._ends if self._is_valid(end) for _, number, attempt in [end]]
        delayed = self.state.jar.delayed.tasks
        ends += [(span.first, span.attempt) for span in self._new if delayed.get(span.first) is span]
        expected = [(number, span.attempt) for number, span in delayed.items() if span.pause_s < inf]
        assert sorted(ends) == sorted(expected), "the pause of a task does not end, or ends twice"
