"""Checks from outside which tasks are tried again after exceptions, and how long they pause before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from mwpy._simulation.live_attempts import AttemptChecker
from mwpy._transport.channel.journal import AGAIN, FAILED, VALUE
from mwpy._values.causes import Cause
from mwpy._values.records import Charge, TaskRange
from mwpy._values.task import Result

__all__ = ["RetryChecker"]


class RetryChecker(Struct, eq=False):
    """Checks the attempts of tasks."""

    attempts: AttemptChecker
    """Knows the policy of each task, and which attempt has answered."""
    charged: dict[int, int]
    """How many attempts of each task were lost by its own fault, as far as the master knows."""
    cancelled: dict[int, None]
    """Tasks that must not be sent to a slave again."""
    errors: dict[int, int] = field(default_factory=dict)
    """How many of its first attempts each task ends with an exception; all if it is not tried again."""
    spoilt: dict[tuple[int, int], None] = field(default_factory=dict)
    """Tasks and their attempts that raise an exception, because they run on a bad host."""
    now: float = 0.0
    """The time of the last records."""
    _due_at: dict[int, float] = field(default_factory=dict)
    """When the last pause of each task ends."""

    def end_of(self, task: int, attempt: int) -> int:
        """How an attempt of a task ends that kills nothing: with a value, a failure, or a reason to try again."""
        fails = (task, attempt) in self.spoilt
        if not self.attempts.policies[task].retries_errors:
            return FAILED if fails or self.errors[task] else VALUE
        return AGAIN if fails or attempt <= self.errors[task] else VALUE

    def sent(self, tasks: Sequence[TaskRange]) -> None:
        """Tasks are sent to a slave."""
        again = [task for task, _ in _each(tasks) if task in self.cancelled]
        assert not again, f"tasks {again} are sent again although they are cancelled"
        early = [task for task, _ in _each(tasks) if self.now < self._due_at.get(task, 0.0)]
        assert not early, f"tasks {early} are sent again before their pauses are over"

    def returned(self, tasks: Sequence[TaskRange], charges: Sequence[Charge], pause_s: float) -> None:
        """Tasks come back, and pause for some seconds."""
        self.lost(tasks, charges)
        for task, _ in _each(tasks):
            charged = any(charge.is_charged for charge in charges)
            expected_s = self.attempts.policies[task].after * 2 ** (self.charged[task] - 1) if charged else 0.0
            assert pause_s == expected_s, f"task {task} pauses for {pause_s} s, not {expected_s} s"
            self._due_at[task] = self.now + pause_s

    def lost(self, tasks: Sequence[TaskRange], charges: Sequence[Charge]) -> None:
        """Attempts of tasks are lost, or come back."""
        for task, attempt in _each(tasks):
            if any(charge.cause is Cause.ERROR for charge in charges):
                assert self.end_of(task, attempt) == AGAIN, f"task {task} raised nothing in attempt {attempt}"
                assert task not in self.cancelled, f"task {task} is tried again although it is cancelled"
                self.charged[task] = self.charged.get(task, 0) + 1

    def finished(self, result: Result[Any]) -> None:
        """The algorithm gets a result of a task that was not cancelled."""
        task = result.task_id
        if result.sid is None:
            return  # it failed at its submission
        end = self.end_of(task, self.attempts.answered[task])
        assert result.ok == (end == VALUE), f"task {task} has the result of another attempt"
        used_up = self.charged.get(task, 0) + 1 >= self.attempts.policies[task].attempts_max
        assert end != AGAIN or used_up or task in self.cancelled, f"task {task} was not tried again"


def _each(tasks: Sequence[TaskRange]) -> list[tuple[int, int]]:
    """The ids and attempts of all tasks."""
    return [(each.first + place, each.attempt) for each in tasks for place in range(each.count)]
