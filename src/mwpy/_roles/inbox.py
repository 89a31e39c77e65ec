"""What a master algorithm has not fetched yet: results, unrunnable tasks, and slaves that connected or disconnected."""

from __future__ import annotations

from queue import Empty
from typing import TYPE_CHECKING, Any

from attrs import define, field

from mwpy._core.master.commands import CancelTasks, Waiting
from mwpy._roles.access import Access
from mwpy._roles.map_run import MapTag
from mwpy._values.errors import InternalError, TaskFailed
from mwpy._values.ids import SlaveId, TaskId
from mwpy._values.last_words import story_of
from mwpy._values.task import Result, UnrunnableTask

if TYPE_CHECKING:
    from mwpy._core.master.core import Actions

__all__ = ["Inbox"]


@define(eq=False)
class Inbox:
    """Receives outcomes from the I/O thread, and separates those of maps from the others."""

    access: Access
    results: list[Result[Any]] = field(factory=list)
    unrunnable: list[UnrunnableTask] = field(factory=list)
    connected: list[SlaveId] = field(factory=list)
    disconnected: list[SlaveId] = field(factory=list)
    _asked: tuple[CancelTasks, list[list[TaskId]]] | None = None
    """The last cancellation that must be answered, and a list for its answer."""
    has_mapped: bool = False
    """Whether some of the results may belong to a `map`."""

    def receive(self) -> None:
        """Take over all outcomes that have arrived.

        Raises:
            InternalError: the I/O thread died; our fault.
            UsageError: the computation is over; the caller's fault.
        """
        outcomes = self.access.io.outcomes
        if self.access.drive is not None and outcomes.empty():
            self.access.drive(0.0)
        while not outcomes.empty():
            self._sort(outcomes.get_nowait())

    def wait(self, timeout: float | None = None) -> None:
        """Like `receive`, but if no outcome has arrived, wait for one.

        Args:
            timeout: how long to wait at most, in seconds; None for as long as it takes.
        """
        io = self.access.io
        outcomes = io.outcomes
        if outcomes.empty():
            io.waiting = Waiting.FOREVER if timeout is None else Waiting.FOR_A_WHILE
            try:
                if self.access.drive is not None:
                    self.access.drive(timeout)
                    timeout = 0.0
                self._sort(outcomes.get(timeout=timeout))
            except Empty:
                return
            finally:
                io.waiting = Waiting.NOT
        while not outcomes.empty():
            self._sort(outcomes.get_nowait())

    def cancel(self, command: CancelTasks) -> list[TaskId]:
        """Send a cancellation, and wait until the core answers which of the tasks had not ended."""
        answers: list[list[TaskId]] = []
        self._asked = command, answers
        self.access.io.command(command)
        while not answers:
            self.wait()
        return answers[0]

    def _sort(self, outcome: Actions | BaseException) -> None:
        if isinstance(outcome, BaseException):
            raise InternalError(f"the I/O thread of mwpy died: {outcome!r}; please report this") from outcome
        if self.has_mapped:
            for result in outcome.results:
                tag = result.tag
                if type(tag) is MapTag:
                    tag.run.arrived.append(result)
                else:
                    self.results.append(result)
        else:
            self.results.extend(outcome.results)
        for task in outcome.unrunnable:
            if type(task.tag) is MapTag:
                task.tag.run.arrived.append(_failed_result(task))
            else:
                self.unrunnable.append(task)
        for command, unended in outcome.cancelled:
            if self._asked is not None and command is self._asked[0]:
                self._asked[1].append(unended)
        self.connected.extend(outcome.connected)
        self.disconnected.extend(outcome.disconnected)

    def counts(self) -> tuple[int, int, int, int]:
        """How many unrunnable tasks, results, connected and disconnected slaves can be fetched."""
        return len(self.unrunnable), len(self.results), len(self.connected), len(self.disconnected)


def _failed_result(task: UnrunnableTask) -> Result[Any]:
    failure = TaskFailed(task.algorithm, task.sid, "UnrunnableTask", task.reason, story_of(task.deaths))
    failure.deaths = task.deaths
    return Result(task.task_id, task.algorithm, task.sid, task.tag, 0.0, True, _value=failure)
