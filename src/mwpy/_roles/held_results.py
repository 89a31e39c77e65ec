"""The results to which tasks may refer with `mwpy.result`, as the algorithm's thread knows them.

A task may refer to a result that is not fetched. The core must keep this result from then on, because the algorithm may
fetch it before the later task has it. If the other task has not ended, the core is asked to keep its result. The answer
comes behind all ends of tasks that the core has given out. So if the task has ended, its end is in the inbox then, or
was fetched, and the algorithm's thread gives the value back to the core.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct, field

from mwpy._core.master.commands import GiveResult, HoldResults, ReleaseResults
from mwpy._roles.access import Access
from mwpy._roles.inbox import Inbox
from mwpy._values.errors import DependencyFailed, UsageError
from mwpy._values.failures import in_one_line
from mwpy._values.ids import Buffer
from mwpy._values.messagepack import as_read, encode
from mwpy._values.references import ReferringBuffers, ResultReference
from mwpy._values.task import Result, UnrunnableTask, encoded_in, failed

__all__ = ["HeldResults"]


class HeldResults(Struct, eq=False):
    """Makes the core keep results."""

    access: Access
    inbox: Inbox
    _held: dict[int, bool] = field(default_factory=dict)
    """The tasks whose results the core may keep, and whether it surely does. An interrupt may come in between."""

    def refer(self, buffers: Sequence[Buffer]) -> Sequence[int]:
        """Make the core keep the results to which a task refers that is submitted next.

        Args:
            buffers: what `Codec.dumps_call` returned.

        Returns:
            The ids of their tasks.

        Raises:
            UsageError: there is no such task, or its result was fetched; the caller's fault.
        """
        if not isinstance(buffers, ReferringBuffers):
            return ()
        numbers = sorted(each.task_id for each in buffers.references if isinstance(each, ResultReference))
        new = [number for number in numbers if not self._held.get(number)]
        if new:
            last = self.access.io.submissions.total
            if not 1 <= new[0] <= new[-1] <= last:
                wrong = new[0] if new[0] < 1 else new[-1]
                known = f"the ids of the tasks that are submitted are 1 to {last}" if last else "none is submitted yet"
                raise UsageError(f"mwpy.result({wrong}): there is no such task; {known}")
            self._hold(new)
        return numbers

    def _hold(self, numbers: Sequence[int]) -> None:
        self._held.update(dict.fromkeys(numbers, False))
        ended = {*numbers}.difference(self.inbox.ask(HoldResults(numbers)))
        for result in self.inbox.results if ended else ():
            if result.task_id in ended:
                self.access.io.command(_given(result))
                ended.remove(result.task_id)
        for task in self.inbox.unrunnable if ended else ():
            if task.task_id in ended:
                cause = f"task {task.task_id} ({task.algorithm}) is unrunnable: {task.reason}"
                self.access.io.command(GiveResult(task.task_id, (), cause, task.task_id))
                ended.remove(task.task_id)
        self._held.update(dict.fromkeys(numbers, True))
        for number in ended:
            del self._held[number]
        if ended:
            raise UsageError(
                f"mwpy.result({min(ended)}): this result was fetched already, or belongs to a map, so the master does "
                f"not have it any more: pass its value itself, or refer to it before you call mw.results()"
            )

    def fetched(self, ended: Iterable[Result[Any] | UnrunnableTask]) -> None:
        """The algorithm has fetched the ends of these tasks."""
        if self._held:
            numbers = [each.task_id for each in ended if each.task_id in self._held]
            if numbers:
                io = self.access.io
                io.command(ReleaseResults(numbers, io.submissions.total))
                for number in numbers:
                    del self._held[number]


def _given(result: Result[Any]) -> GiveResult:
    error = result.error if failed(result) else None
    number, name = result.task_id, result.algorithm
    if error is None:
        entry, buffers = encoded_in(result)
        return GiveResult(number, [encode(as_read(entry)), *buffers])
    if isinstance(error, DependencyFailed):
        return GiveResult(number, (), error.cause, error.dependency)
    what = in_one_line(error.type_name, error.text)
    return GiveResult(number, (), f"task {number} ({name}) failed: {what}", number)
