"""Blocked tasks, which wait for the results of other tasks, and the results to which tasks refer.

`mwpy.result(task_id)` in the arguments of a task stands for the result of another task. The task is blocked until this
task has ended. Then the encoded value travels with its arguments, behind their large buffers. So everything that
handles arguments handles these values, too: sizes, later attempts, and calls that failed.

A result is kept while a blocked task refers to it, and while the algorithm may submit other tasks that do: until it has
fetched the result. `references.py` decides about blocked tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from msgspec import Struct, field

from mwpy._core.master.spans import Span
from mwpy._values import groups, messages
from mwpy._values.errors import InternalError
from mwpy._values.failures import headline
from mwpy._values.ids import Buffer
from mwpy._values.messagepack import decode, encode, split_list
from mwpy._values.records import ResultGiven, ResultsHeld, ResultsReleased, TaskRange
from mwpy._values.references import extended
from mwpy._values.task import TaskState

__all__ = ["BlockedTasks", "Referred"]


class Referred(Struct, eq=False):
    """The result of a task to which other tasks refer or may refer."""

    is_held: bool = False
    """Whether the algorithm may submit more tasks that refer to it."""
    waiting: dict[int, None] = field(default_factory=dict)
    """The ids of the blocked tasks that refer to it."""
    frames: Sequence[Buffer] = ()
    """The encoded value and its large buffers; empty if there is no value, or not yet."""
    cause: str = ""
    """Why there is no value: which task did not end well, and why. Empty if there is one, or perhaps will be."""
    root: int = 0
    """The id of the task that did not end well: this task, or one to which it refers."""

    @property
    def is_here(self) -> bool:
        """Whether there is a value."""
        return bool(self.frames)

    @property
    def is_free(self) -> bool:
        """Whether nobody needs it."""
        return not (self.is_held or self.waiting)

    @property
    def size(self) -> int:
        """How many bytes its value takes in the master."""
        return sum(map(len, self.frames))


class BlockedTasks(Struct, eq=False):
    """All blocked tasks. Only the taskjar adds and removes them."""

    tasks: dict[int, Span] = field(default_factory=dict)
    """The tasks, by id. Each has a span of its own."""
    results: dict[int, Referred] = field(default_factory=dict)
    """The results that are kept, by the id of their task."""
    num_missing: dict[int, int] = field(default_factory=dict)
    """For each blocked task: how many of the results to which it refers have no value yet."""
    ripe: dict[int, None] = field(default_factory=dict)
    """The ids of the blocked tasks that need not wait any longer."""
    bytes: int = 0
    """How many bytes all values take in the master."""

    def add(self, spans: Iterable[Span]) -> None:
        """Block tasks. The span of each has only this task."""
        for span in spans:
            self.tasks[span.first] = span
            results = [self.results.setdefault(number, Referred()) for number in span.refers]
            for result in results:
                result.waiting[span.first] = None
            self.num_missing[span.first] = sum(not result.is_here for result in results)
            if not self.num_missing[span.first] or any(result.cause for result in results):
                self.ripe[span.first] = None

    def remove(self, tasks: Sequence[TaskRange]) -> list[Span]:
        """Remove tasks."""
        return [self._remove(number) for each in tasks for number in range(each.first, each.first + each.count)]

    def _get(self, task: int) -> Span:
        span = self.tasks.get(task)
        if span is None:
            raise InternalError(f"task {task} is not blocked")
        return span

    def _remove(self, task: int) -> Span:
        span = self._get(task)
        del self.tasks[task]
        del self.num_missing[task]
        self.ripe.pop(task, None)
        for number in span.refers:
            del self.results[number].waiting[task]
            self._drop(number)
        return span

    def unblock(self, tasks: Sequence[TaskRange]) -> list[Span]:
        """Remove tasks, and add the values to which they refer to their buffers."""
        for each in tasks:
            span = self._get(each.first)
            values = [(number, self.results[number].frames) for number in span.refers]
            index = encode([(number, len(frames)) for number, frames in values])
            own = span.buffers[0] if span.buffers else ()
            span.buffers = (extended(own, [index, *(frame for _, frames in values for frame in frames)]),)
        spans = self.remove(tasks)
        for span in spans:
            span.refers = ()
        return spans

    def missing(self, span: Span) -> tuple[int, Referred] | None:
        """The first of the results to which a task refers that has no value and never will."""
        found = ((number, self.results[number]) for number in span.refers)
        return next((each for each in found if each[1].cause), None)

    def added_bytes(self, span: Span) -> int:
        """How many bytes the values take to which a task refers."""
        return sum(self.results[number].size for number in span.refers)

    # ---- results -------------------------------------------------------------------------------------------

    def hold(self, record: ResultsHeld) -> None:
        """Keep the results of tasks that have not ended."""
        for number in record.numbers:
            self.results.setdefault(number, Referred()).is_held = True

    def give(self, record: ResultGiven) -> None:
        """Keep the result of a task that has ended."""
        self.results.setdefault(record.number, Referred()).is_held = True
        self._end(record.number, record.frames, record.cause, record.root)

    def release(self, record: ResultsReleased) -> None:
        """The algorithm submits no more tasks that refer to these results."""
        for number in record.numbers:
            self.results[number].is_held = False
            self._drop(number)

    def received(self, spans: Sequence[Span], group: messages.Results, frames: Sequence[Buffer]) -> None:
        """Results of tasks have arrived."""
        numbers = [number for number, _ in groups.each_task(group)]
        places = [place for place, number in enumerate(numbers) if number in self.results]
        if not places:
            return
        encoded, failed = split_list(frames[0]), frozenset(group.failed)
        ends = [*accumulate(group.buffers or [0] * len(numbers), initial=1)]
        for place in places:
            number, entry = numbers[place], bytes(encoded[place])  # a copy, because the others need not be kept
            if place in failed:
                name = next(span.algorithm.name for span in spans if number in span.ids)
                what = headline(decode(entry).pickle)  # type: ignore[attr-defined]  # checked when it arrived
                self._end(number, (), f"task {number} ({name}) failed: {what}", number)
            else:
                self._end(number, [entry, *frames[ends[place] : ends[place + 1]]], "", 0)

    def ended(self, spans: Iterable[Span], how: str) -> None:
        """Tasks have ended without values."""
        for span in spans:
            for number in span.ids:
                self.fail(number, f"task {number} ({span.algorithm.name}) {how}", number)

    def fail(self, number: int, cause: str, root: int) -> None:
        """A task has ended without a value."""
        if number in self.results:
            self._end(number, (), cause, root)

    def _end(self, number: int, frames: Sequence[Buffer], cause: str, root: int) -> None:
        result = self.results[number]
        if result.is_here or result.cause:
            return  # it is here twice
        result.frames, result.cause, result.root = frames, cause, root
        self.bytes += result.size
        for task in result.waiting:
            self.num_missing[task] -= bool(frames)
            if cause or not self.num_missing[task]:
                self.ripe[task] = None
        self._drop(number)

    def _drop(self, number: int) -> None:
        """Forget a result if nobody needs it."""
        result = self.results[number]
        if result.is_free:
            self.bytes -= result.size
            del self.results[number]

    def check(self) -> None:
        """Recompute the derived values, and compare the tasks with their states."""
        waiting: dict[int, set[int]] = {}
        for task, span in self.tasks.items():
            assert (span.first, span.count) == (task, 1), f"{span}: it is blocked as task {task}"
            assert span.state is TaskState.BLOCKED, f"{span}: it is blocked, but {span.state.name}"
            for number in span.refers:
                waiting.setdefault(number, set()).add(task)
            missing = sum(not self.results[number].is_here for number in span.refers)
            assert self.num_missing[task] == missing, f"{span}: the results that it needs were miscounted"
            ripe = not missing or self.missing(span) is not None
            assert ripe == (task in self.ripe), f"{span}: it waits without need, or has no values"
        assert self.ripe.keys() <= self.tasks.keys(), "a task is ripe, but not blocked"
        assert self.num_missing.keys() == self.tasks.keys(), "a task is counted, but not blocked"
        assert waiting == {n: {*each.waiting} for n, each in self.results.items() if each.waiting}, "a task was lost"
        assert self.bytes == sum(each.size for each in self.results.values()), "the values were miscounted"
        kept_for_nobody = [n for n, each in self.results.items() if each.is_free]
        assert not kept_for_nobody, f"the results of {kept_for_nobody} are kept for nobody"
