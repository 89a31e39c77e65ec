"""Blocked tasks, which wait for the results of other tasks, and the results to which tasks refer.

`mwpy.result(task_id)` in the arguments of a task stands for the result of another task. The task is blocked until this
task has ended. Then the encoded value travels with its arguments, behind their large buffers. So everything that
handles arguments handles these values, too: sizes, later attempts, and calls that failed.

A result is kept while a blocked task refers to it, and while the algorithm may submit other tasks that do: until it has
fetched the result. `references.py` decides about blocked tasks.

With the policy `keep`, the algorithm may submit such tasks until it releases the result, and the value stays at its
agent. A task that refers to it uses it until it has ended. The value may be lost meanwhile. `keeping.py` decides what
happens then.
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
from mwpy._values.records import ResultGiven, ResultsHeld, ResultsReleased, TaskRange, ValuesLost
from mwpy._values.references import extended
from mwpy._values.share_messages import Share
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

    stays: bool = False
    """Whether its task is KEPT, or runs again to be so."""
    share: Share | None = None
    """The value that stays at an agent, as messages name it; None if there is none, or not yet, or not any more."""
    agent: str = ""
    """The name of this agent; empty if there is none."""
    users: dict[int, None] = field(default_factory=dict)
    """The ids of the tasks that refer to it, are not blocked and have not ended."""

    @property
    def is_here(self) -> bool:
        """Whether there is a value."""
        return bool(self.frames) or self.share is not None

    @property
    def is_free(self) -> bool:
        """Whether nobody needs it."""
        return not (self.is_held or self.waiting or self.users)

    @property
    def size_there(self) -> int:
        """How many bytes its value takes at its agent."""
        return 0 if self.share is None else self.share.size

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
    at: dict[str, dict[int, None]] = field(default_factory=dict)
    """The ids of the tasks whose values stay at each agent. No entry is empty."""
    lost: dict[int, None] = field(default_factory=dict)
    """The ids of the kept tasks without values."""
    bereft: dict[int, None] = field(default_factory=dict)
    """The ids of the tasks without values at agents that have users."""
    free: dict[int, None] = field(default_factory=dict)
    """The ids of tasks whose values stay, and were not needed at some moment."""

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
            values = [(number, self.results[number].frames) for number in span.refers if self.results[number].frames]
            if values:
                index = encode([(number, len(frames)) for number, frames in values])
                own = span.buffers[0] if span.buffers else ()
                span.has_values = True
                span.buffers = (extended(own, [index, *(frame for _, frames in values for frame in frames)]),)
            for number in span.refers:
                if self.results[number].share is not None:
                    self.results[number].users[span.first] = None
        spans = self.remove(tasks)
        for span in spans:
            results = [(number, self.results.get(number)) for number in span.refers]
            span.refers = [number for number, result in results if result is not None and span.first in result.users]
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
        stay = frozenset(place for place, _ in group.kept)
        places = [place for place, number in enumerate(numbers) if number in self.results and place not in stay]
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
        """Forget a result if nobody needs it. If its value stays at an agent, another record does so."""
        result = self.results[number]
        if not result.is_free:
            return
        if result.stays:
            self.free[number] = None
        else:
            self.free.pop(number, None)
            self.bytes -= result.size
            del self.results[number]

    # ---- values that stay at agents -----------------------------------------------------------------------------

    def store(self, number: int, agent: str, share: Share) -> None:
        """The value of a task stays at an agent."""
        result = self.results.setdefault(number, Referred())  # it may be released already
        result.share, result.agent, result.stays = share, agent, True
        self.at.setdefault(agent, {})[number] = None
        self.bereft.pop(number, None)
        for task in result.waiting:
            self.num_missing[task] -= 1
            if not self.num_missing[task]:
                self.ripe[task] = None
        self._drop(number)

    def lose(self, record: ValuesLost) -> None:
        """Values are lost."""
        for number in record.numbers:
            _take_away(self, number)
            self.lost[number] = None
            if self.results[number].users:
                self.bereft[number] = None
            for task in self.results[number].waiting:
                self.num_missing[task] += 1
                if self.missing(self.tasks[task]) is None:
                    self.ripe.pop(task, None)

    def stop_using(self, span: Span) -> None:
        """A task has ended, or is blocked again."""
        for number in span.refers:
            if number in self.results:
                self.results[number].users.pop(span.first, None)
                if not self.results[number].users:
                    self.bereft.pop(number, None)
                self._drop(number)

    def forget(self, number: int, cause: str) -> None:
        """The value of a task is released; or, if there is a cause, it is lost forever."""
        _take_away(self, number)
        self.lost.pop(number, None)
        self.free.pop(number, None)
        self.results[number].stays = False
        if cause:
            self._end(number, (), cause, number)
        else:
            self._drop(number)

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
        kept_for_nobody = [n for n, each in self.results.items() if each.is_free and n not in self.free]
        assert not kept_for_nobody, f"the results of {kept_for_nobody} are kept for nobody"
        assert not any(each.is_free and not each.stays for each in self.results.values()), "a result is kept for nobody"
        bereft = {n for n, each in self.results.items() if each.users and each.share is None}
        assert bereft == self.bereft.keys(), "a task uses a value that is not there"
        places = [(each.agent, n) for n, each in self.results.items() if each.share is not None]
        assert sorted(places) == sorted((a, n) for a, own in self.at.items() for n in own), "a place is wrong"


def _take_away(blocked: BlockedTasks, number: int) -> None:
    """The value of a task is not at its agent any more."""
    result = blocked.results[number]
    if result.share is not None:
        del blocked.at[result.agent][number]
        if not blocked.at[result.agent]:
            del blocked.at[result.agent]
        result.share, result.agent = None, ""
