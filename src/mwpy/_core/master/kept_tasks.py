"""Tasks whose values stay at agents (the policy `keep`).

The algorithm has the result of such a task, without the value. The task is KEPT until its value is released. Its call
is kept with it, because the value may be lost with its agent. If a task needs the value then, the kept task runs again.
It does not count as runnable meanwhile, and the algorithm gets no second result. If nobody needs the value any more
before it is computed again, the task is KEPT without a value. `BlockedTasks.results` has the places of the values, and
`keeping.py` decides what happens to them.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from mwpy._core.master.algorithms import Algorithms
from mwpy._core.master.blocked import BlockedTasks
from mwpy._core.master.left_states import LeftStates
from mwpy._core.master.lifecycle import TaskEvent, move
from mwpy._core.master.pending import PendingTasks
from mwpy._core.master.spans import Span
from mwpy._values import groups, messages, records
from mwpy._values.share_messages import share_of_result
from mwpy._values.task import TaskState

__all__ = ["KeptTasks"]

_KEPT = TaskState.KEPT


class KeptTasks(Struct, eq=False):
    """All tasks whose values stay at agents. Only the taskjar changes them."""

    algorithms: Algorithms
    pending: PendingTasks
    blocked: BlockedTasks
    left: LeftStates
    tasks: dict[int, Span] = field(default_factory=dict)
    """The kept tasks, by id. Each has a span of its own."""
    again: dict[int, None] = field(default_factory=dict)
    """The ids of the tasks that run again."""

    def store(self, spans: Sequence[Span], record: records.ResultsReceived) -> list[Span]:
        """Keep those tasks of a record whose values stay at the agent. Return a span for each task of the record."""
        places = dict(record.results.kept)
        named = groups.each_task(record.results)
        sizes = {task: (attempt, places[at]) for at, (task, attempt) in enumerate(named) if at in places}
        singles = [single for span in spans for single in ([span] if span.count == 1 else span.singles())]
        stored = [span for span in singles if span.first in sizes]
        move(stored, TaskEvent.STORE)
        self.left.forget(stored)
        for span in stored:
            span.sid, span.attempt = None, span.sent
            self.tasks[span.first] = span
            attempt, size = sizes[span.first]
            self.blocked.store(span.first, record.agent, share_of_result(span.first, attempt, size))
        return singles

    def num_again(self, results: messages.Results) -> int:
        """How many of the failures among some results are of tasks that run again."""
        if not self.again:
            return 0
        numbers = [task for task, _ in groups.each_task(results)]
        return sum(numbers[place] in self.again for place in dict.fromkeys(results.failed))

    def end(self, number: int) -> None:
        """A task that ran again has ended in some way."""
        del self.again[number]
        if number not in self.tasks:
            self.blocked.results[number].stays = False

    def stop(self, spans: Sequence[Span]) -> list[Span]:
        """Tasks run again no longer. They have no values."""
        move(spans, TaskEvent.STOP)
        self.left.forget(spans)
        for span in spans:
            span.sid, span.attempt = None, span.sent
            self.tasks[span.first] = span
            self.end(span.first)
            self.blocked.stop_using(span)
            self.blocked.lost[span.first] = None
        return [*spans]

    def compute_again(self, record: records.TasksRecomputed, _: object) -> list[Span]:
        """Tasks are pending again, or blocked."""
        spans = [self.tasks.pop(each.first) for each in record.tasks]
        for span in spans:
            span.runs_again = True
            self.again[span.first] = None
            del self.blocked.lost[span.first]
            move([span], TaskEvent.WAIT if span.refers else TaskEvent.RECOMPUTE)
            if span.refers:
                self.blocked.add([span])
            else:
                self.pending.add([span])
        return spans

    def block(self, record: records.TasksBlocked, _: object) -> list[Span]:
        """Pending tasks wait for values that are lost."""
        spans = self.pending.withdraw(record.tasks)
        move(spans, TaskEvent.WAIT)
        self.blocked.add(spans)
        for span in spans:
            self.blocked.stop_using(span)
        return spans

    def release(self, record: records.ValuesReleased, _: object) -> list[Span]:
        """The values of tasks are not kept any more."""
        spans = [self.tasks.pop(number) for number in record.numbers]
        move(spans, TaskEvent.RELEASE)
        for span in spans:
            self.algorithms.end(span.algorithm, 1)
            self.blocked.forget(span.first, record.cause)
        return spans

    def check(self) -> int:
        """Compare the tasks with their states and the places of their values.

        Returns:
            How many tasks that run again are pending or blocked.
        """
        for number, span in self.tasks.items():
            assert (span.first, span.count) == (number, 1), f"{span}: it is kept as task {number}"
            assert span.state is _KEPT, f"{span}: it is kept, but {span.state.name}"
            assert number not in self.again, f"{span}: it is kept, and runs again"
            lost = self.blocked.results[number].share is None
            assert lost == (number in self.blocked.lost), f"{span}: its value is lost or not"
        stays = {number for number, each in self.blocked.results.items() if each.stays}
        assert stays == {*self.tasks, *self.again}, "a kept value was forgotten, or its task"
        assert self.blocked.lost.keys() <= self.tasks.keys(), "a value is lost that runs again"
        unsent = [*self.pending.spans(), *self.blocked.tasks.values()]
        return sum(span.count for span in unsent if span.runs_again)
