"""Decides about tasks whose arguments refer to the results of other tasks, and which results are kept for them.

The algorithm says to which results it will refer before it submits a task that does so, and when it has fetched them.
Such a task is blocked at its submission. As soon as all values are here, it is pending. As soon as one of the other
tasks has ended without a value, it fails: it would never run. Then tasks that refer to its own result fail, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from msgspec import Struct

from mwpy._core.holding import TaskIds
from mwpy._core.master.commands import GiveResult, HoldResults, ReleaseResults
from mwpy._core.master.handback import HandBack
from mwpy._core.master.state import MasterState
from mwpy._values import records
from mwpy._values.ids import TaskId
from mwpy._values.phrases import amount
from mwpy._values.records import TaskRange

__all__ = ["References"]

LARGE_BYTES = 1 << 30
"""When all results that are kept take more bytes, a notice says so. The manual names this number."""

_ADVICE = (
    "the results that are kept for mwpy.result take more than {} of the master's memory: write large results to files "
    "and return their names, or fetch results to which no other task will refer"
)


class References(Struct, eq=False):
    """Keeps results, and ends the waiting of blocked tasks."""

    state: MasterState
    handback: HandBack

    def hold(self, command: HoldResults) -> None:
        """Keep the results of those tasks that have not ended, and answer which these are."""
        unended = self._unended(command.numbers)
        if unended:
            self.state.record(records.ResultsHeld(unended))
        self.state.actions.cancelled.append((command, [TaskId(number) for number in unended]))

    def _unended(self, numbers: Sequence[int]) -> list[int]:
        """Which of these tasks are in the jar. The newest tasks are looked at first, because they are meant mostly."""
        jar = self.state.jar
        known = jar.blocked.tasks, jar.delayed.tasks
        found = dict.fromkeys(number for number in numbers if any(number in tasks for tasks in known))
        ids = TaskIds((number, 1) for number in numbers)
        pending = *jar.pending.queues.values(), *jar.pending.suspects.values(), *jar.pending.addressed.values()
        queues = *pending, *(held.spans for held in jar.held.values())
        for span in chain.from_iterable(map(reversed, queues)):
            if len(found) == len(numbers):
                break
            found.update((number, None) for number, _ in ids.among(span))
        return sorted(found)

    def give(self, command: GiveResult) -> None:
        """Keep the result of a task that has ended. The algorithm has not fetched it."""
        self.state.record(records.ResultGiven(command.number, command.frames, command.cause, command.root))

    def release(self, command: ReleaseResults) -> None:
        """The algorithm has fetched these results."""
        results = self.state.jar.blocked.results
        held = [number for number in command.numbers if number in results and results[number].is_held]
        if held:
            self.state.record(records.ResultsReleased(held))

    def decide(self) -> None:
        """Let blocked tasks be pending that have all values, and let those fail that never will."""
        blocked = self.state.jar.blocked
        if blocked.bytes > LARGE_BYTES:
            self.state.notice(_ADVICE.format(amount(LARGE_BYTES)), key=_ADVICE)
        while blocked.ripe:
            ready: list[TaskRange] = []
            for task in sorted(blocked.ripe):
                span = blocked.tasks[task]
                missing = blocked.missing(span)
                if missing is not None:
                    number, result = missing
                    self.handback.fail_dependent(span, number, result.cause, result.root)
                elif self.handback.is_small_enough(span, blocked.added_bytes(span)):
                    ready.append(span.whole)
            if ready:
                self._unblock(ready)

    def _unblock(self, ready: Sequence[TaskRange]) -> None:
        spans = self.state.record(records.TasksUnblocked(ready))
        for sid in dict.fromkeys(span.policy.sid for span in spans):
            if sid is not None and sid not in self.state.members.slaves:
                self.handback.release_addressed(sid, "is gone or never was")
