"""Stops the run when too many tasks have failed.

The core does not wait for the master algorithm, which may be at work for a long time. It cancels all tasks at once, and
also those that are submitted before the algorithm learns of the stop. When the algorithm knows, and all tasks have
ended, the core answers which tasks did not run, and goes on with an empty jar and new counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from mwpy._core.master.cancellation import Cancellation
from mwpy._core.master.commands import CancelTasks, GoOn, Running
from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterState, Stopped
from mwpy._values import records
from mwpy._values.ids import TaskId

__all__ = ["Stop"]


class Stop(Struct, eq=False):
    """Decides when the run stops, and when it goes on."""

    state: MasterState
    cancellation: Cancellation
    stopped: bool = False
    """Whether each task is cancelled."""
    _asked: list[GoOn] = field(default_factory=list)
    """The commands that were not answered yet."""
    _not_run: list[TaskId] = field(default_factory=list)
    """The tasks that were cancelled since the stop."""
    _failed_before: int = 0
    """How many tasks had failed when the run went on after the last stop."""
    _ended_before: int = 0

    def go_on(self, command: GoOn) -> None:
        """The algorithm knows of the stop."""
        self._asked.append(command)

    def decide(self) -> None:
        """Stop the run if it is time, cancel the tasks of a stopped run, and go on with it if this is possible."""
        limit, jar = self.state.settings.max_failures, self.state.jar
        if limit is not None and not self.stopped:
            failed, ended = jar.failed - self._failed_before, self._num_ended - self._ended_before
            self.stopped = limit.is_reached(failed, ended)
            if self.stopped:
                self.state.actions.stopped = Stopped(failed, ended)
                self.state.notice(f"the run is stopped: {failed} of {ended} ended tasks failed (max_failures={limit})")
                self._cancel(jar.spans(), Running.FINISH if limit.finish else Running.KILL)
        if not self.stopped and not self._asked:
            return
        if jar.pending.count or jar.blocked.tasks or jar.delayed.tasks:
            waiting = [*jar.pending.spans(), *jar.blocked.tasks.values(), *jar.delayed.tasks.values()]
            self._cancel(waiting, Running.FINISH)
        for record in self.state.actions.records:
            if isinstance(record, records.TasksCancelled):
                self._not_run += [TaskId(each.first + at) for each in record.tasks for at in range(each.count)]
        if self._asked and not jar.num_allocated:
            self._answer()

    @property
    def _num_ended(self) -> int:
        """How many tasks have ended in a way that says something about their algorithm."""
        return self.state.jar.ended - self.state.jar.cancelled

    def _cancel(self, spans: Iterable[Span], running: Running) -> None:
        ranges = [*dict.fromkeys((span.first, span.count) for span in spans)]  # a task may have several attempts
        self.cancellation.cancel(CancelTasks(ranges, running))

    def _answer(self) -> None:
        self.state.actions.cancelled += [(command, sorted(self._not_run)) for command in self._asked]
        self.stopped, self._asked, self._not_run = False, [], []
        self._failed_before, self._ended_before = self.state.jar.failed, self._num_ended
