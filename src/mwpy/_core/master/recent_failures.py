"""Which kinds of failures there were, and which tasks failed last, for inquirers.

The jar counts failures. Only when this count changes, the actions of the iteration are searched for failed tasks. So a
task that succeeds costs nothing.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from mwpy._core.master.state import MasterState
from mwpy._values.bounds import shortened
from mwpy._values.errors import DependencyFailed, TaskCancelled
from mwpy._values.failures import headline, in_one_line
from mwpy._values.max_failures import KINDS_KEPT, OTHER_KINDS
from mwpy._values.messagepack import Pickled
from mwpy._values.task import Result, encoded_in, failed

__all__ = ["FAILURES_KEPT", "RecentFailure", "RecentFailures"]

FAILURES_KEPT = 1000
"""How many of the newest failures are kept."""

TEXT_CHARACTERS = 500


class RecentFailure(Struct, frozen=True):
    """How a task failed."""

    task: int
    algorithm: str
    host: str | None
    text: str
    at: float
    """When, on the core's clock."""

    def __str__(self) -> str:
        place = "" if self.host is None else f" on {self.host}"
        return f"task {self.task} ({self.algorithm}){place}: {self.text}"


class RecentFailures(Struct, eq=False):
    """Counts failures by kind, and keeps the newest ones."""

    state: MasterState
    kinds: dict[str, int] = field(default_factory=dict)
    """How many tasks failed, by the type of the exception; for unrunnable tasks, with the cause of the last loss."""
    newest: dict[int, RecentFailure] = field(default_factory=dict)
    """The newest failures by the id of the task; the last one is the newest."""
    _seen: int = 0
    """How many failures the jar had counted when the actions were last searched."""

    def decide(self, now: float) -> None:
        """Search the actions of this iteration for tasks that failed."""
        if self.state.jar.failed == self._seen:
            return
        self._seen = self.state.jar.failed
        for result in self.state.actions.results:
            if failed(result):
                self._add_result(result, now)
        for task in self.state.actions.unrunnable:
            cause = f" ({task.deaths[-1].cause.value})" if task.deaths else ""
            place = task.algorithm, task.result().host
            self._add(f"TaskUnrunnable{cause}", RecentFailure(task.task_id, *place, _short(task.reason), now))

    def _add_result(self, result: Result[Any], now: float) -> None:
        value, _ = encoded_in(result)
        if isinstance(value, TaskCancelled | DependencyFailed):
            return  # the jar counts it as cancelled
        text = headline(value.pickle) if type(value) is Pickled else in_one_line(value.type_name, value.text)
        failure = RecentFailure(result.task_id, result.algorithm, result.host, text, now)
        self._add(text.partition(":")[0], failure)

    def _add(self, kind: str, failure: RecentFailure) -> None:
        if kind not in self.kinds and len(self.kinds) >= KINDS_KEPT:
            kind = OTHER_KINDS
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        self.newest.pop(failure.task, None)
        self.newest[failure.task] = failure
        if len(self.newest) > FAILURES_KEPT:
            del self.newest[next(iter(self.newest))]

    @property
    def last(self) -> RecentFailure | None:
        """The newest failure; None if there is none."""
        return next(reversed(self.newest.values()), None)


def _short(text: str) -> str:
    return " ".join(shortened(text, TEXT_CHARACTERS).split())
