"""The jar of all tasks that the master has, and the one place where a task changes its state.

Records move spans of tasks along their lifecycle (`TRANSITIONS`, `Taskjar.changes`). Finished, unrunnable and
cancelled tasks leave the jar at once, so all others are in it.

Pending tasks are in `Taskjar.pending`, blocked tasks in `Taskjar.blocked`, delayed tasks in `Taskjar.delayed`, all
others in `Taskjar.held` by their slave. A task is at one place. If it was given to another slave, its former slave may
still run it (see `ConnectedSlave.given_back`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice, takewhile
from math import inf
from operator import attrgetter
from typing import Any

from attrs import Factory, define
from msgspec import Struct, field
from msgspec.structs import replace

from mwpy._core.holding import TaskIds, count_of, divided, take, take_newest
from mwpy._core.master.algorithms import Algorithms
from mwpy._core.master.spans import LeftState, Span, ids_in, named, numbers_in, portion_of, size_of
from mwpy._values import groups, messages, records
from mwpy._values.bounds import Buffer, SlaveId
from mwpy._values.causes import Cause, PlainEnum
from mwpy._values.errors import InternalError
from mwpy._values.groups import PackedCalls, named_in
from mwpy._values.last_words import NO_WORDS, Death
from mwpy._values.messagepack import decode, encode, split_list
from mwpy._values.records import Charge, SlaveEnded, TaskRange
from mwpy._values.requires import Requires
from mwpy._values.shares import SharedObject
from mwpy._values.task import NOTHING_SHARED, TaskState, extended, headline

# Allocated tasks, which slaves hold.


_name_of = attrgetter("first", "count", "attempt")


class HeldTasks(Struct, eq=False):
    """The tasks that one slave holds."""

    spans: deque[Span] = field(default_factory=deque)
    """The tasks, in the order in which they were sent."""
    load: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """How many of them belong to each algorithm, by its number. No count is zero."""
    ended: bool = False
    """Whether the slave is gone. Then other records of the same iteration move these tasks."""

    @property
    def count(self) -> int:
        """How many tasks it holds."""
        return sum(self.load.values())


def check_found(spans: Sequence[Span], tasks: Sequence[TaskRange]) -> None:
    """Check that all tasks of a record were found.

    Raises:
        InternalError: some were not; the fault of mwpy itself.
    """
    if sum(map(count_of, spans)) != sum(map(count_of, tasks)):
        raise InternalError(f"{', '.join(map(str, tasks))}: some of them are not where the record says")


# Blocked tasks, which wait for the results of other tasks, and the results to which tasks refer.
#
# `mwpy.result(task_id)` in the arguments of a task stands for the result of another task. The task is blocked until
# this task has ended. Then the encoded value travels with its arguments, behind their large buffers. So everything that
# handles arguments handles these values, too: sizes, later attempts, and calls that failed.
#
# A result is kept while a blocked task refers to it, and while the algorithm may submit other tasks that do: until it
# has fetched the result. `HandBack` decides about blocked tasks.


class Referred(Struct, eq=False):
    """The result of a task to which other tasks refer or may refer."""

    is_held: bool = False
    """Whether the algorithm may submit more tasks that refer to it."""
    waiting: dict[int, None] = field(default_factory=dict)
    """The ids of the blocked tasks that refer to it."""
    frames: Sequence[Buffer] = ()
    """The encoded value and its large buffers; empty if there is no value, or not yet."""
    shared: Mapping[int, SharedObject] = NOTHING_SHARED
    """Those of the frames that agents fetch once, by their places. The master has them on disk."""
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
        """How many bytes its value takes in the memory of the master, and in messages."""
        return sum(map(len, self.frames)) - sum(each.share.size for each in self.shared.values())

    @property
    def names(self) -> list[str]:
        """The name of each of its frames that does not travel with a task; empty texts for the others."""
        return [self.shared[at].share.digest if at in self.shared else "" for at in range(len(self.frames))]


@define(eq=False, repr=False)
class BlockedTasks:
    """All blocked tasks. Only the taskjar adds and removes them."""

    tasks: dict[int, Span] = Factory(dict)
    """The tasks, by id. Each has a span of its own."""
    results: dict[int, Referred] = Factory(dict)
    """The results that are kept, by the id of their task."""
    num_missing: dict[int, int] = Factory(dict)
    """For each blocked task: how many of the results to which it refers have no value yet."""
    ripe: dict[int, None] = Factory(dict)
    """The ids of the blocked tasks that need not wait any longer."""
    bytes: int = 0
    """How many bytes all values take in the master."""

    def add(self, spans: Iterable[Span]) -> None:
        """Block tasks. The span of each has only this task."""
        for span in spans:
            self.tasks[span.first] = span
            span.algorithm.blocked += 1
            results = [self.results.setdefault(number, Referred()) for number in span.refers]
            for result in results:
                result.waiting[span.first] = None
            self.num_missing[span.first] = sum(not result.is_here for result in results)
            if not self.num_missing[span.first] or any(result.cause for result in results):
                self.ripe[span.first] = None

    def remove(self, tasks: Sequence[TaskRange]) -> list[Span]:
        """Remove tasks."""
        return [*map(self._remove, numbers_in(tasks))]

    def _remove(self, task: int) -> Span:
        span = self.tasks.pop(task, None)
        if span is None:
            raise InternalError(f"task {task} is not blocked")
        del self.num_missing[task]
        span.algorithm.blocked -= 1
        self.ripe.pop(task, None)
        for number in span.refers:
            del self.results[number].waiting[task]
            self._drop(number)
        return span

    def unblock(self, tasks: Sequence[TaskRange]) -> list[Span]:
        """Remove tasks, and add the values to which they refer to their buffers."""
        for each in tasks:
            span = self.tasks[each.first]
            results = [self.results[number] for number in span.refers]
            names = [(task, self.results[task].names) for task in span.refers]
            more, shared = list[Buffer]([encode(names)]), dict[int, SharedObject]()
            for result in results:
                shared |= {len(more) + at: result.shared[at] for at in result.shared}
                more += result.frames
            span.buffers = (extended(span.buffers[0] if span.buffers else (), more, shared),)
        spans = self.remove(tasks)
        for span in spans:
            span.refers, span.begun = (), True
        return spans

    def missing(self, span: Span) -> tuple[int, Referred] | None:
        """The first of the results to which a task refers that has no value and never will."""
        found = ((number, self.results[number]) for number in span.refers)
        return next((each for each in found if each[1].cause), None)

    def added_bytes(self, span: Span) -> int:
        """How many bytes the values take to which a task refers."""
        return sum(self.results[number].size for number in span.refers)

    # ---- results -------------------------------------------------------------------------------------------

    def hold(self, record: records.ResultsHeld) -> None:
        """Keep the results of tasks that have not ended."""
        for number in record.numbers:
            self.results.setdefault(number, Referred()).is_held = True

    def give(self, record: records.ResultGiven) -> None:
        """Keep the result of a task that has ended."""
        self.results.setdefault(record.number, Referred()).is_held = True
        self._end(record.number, record.frames, record.cause, record.root)

    def release(self, record: records.ResultsReleased) -> None:
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
                own = slice(ends[place], ends[place + 1])
                shares = group.shares[own.start - 1 : own.stop - 1]
                pairs = enumerate(zip(shares, frames[own], strict=bool(shares)), 1)
                shared = {at: SharedObject(share, frame) for at, (share, frame) in pairs if share.size}
                self._end(number, [entry, *frames[own]], "", 0, shared)

    def ended(self, spans: Iterable[Span], how: str) -> None:
        """Tasks have ended without values."""
        for span in spans if self.results else ():
            for number in span.ids:
                self.fail(number, f"task {number} ({span.algorithm.name}) {how}", number)

    def fail(self, number: int, cause: str, root: int) -> None:
        """A task has ended without a value."""
        if number in self.results:
            self._end(number, (), cause, root)

    def _end(
        self,
        number: int,
        frames: Sequence[Buffer],
        cause: str,
        root: int,
        shared: Mapping[int, SharedObject] = NOTHING_SHARED,
    ) -> None:
        result = self.results[number]
        if result.is_here or result.cause:
            return  # it is here twice
        result.frames, result.shared, result.cause, result.root = frames, shared, cause, root
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
            for number in span.refers:
                waiting.setdefault(number, set()).add(task)
            missing = sum(not self.results[number].is_here for number in span.refers)
            assert self.num_missing[task] == missing, f"{span}: the results that it needs were miscounted"
        assert self.num_missing.keys() == self.tasks.keys(), "a task is counted, but not blocked"
        assert waiting == {n: {*each.waiting} for n, each in self.results.items() if each.waiting}, "a task was lost"
        assert self.bytes == sum(each.size for each in self.results.values()), "the values were miscounted"
        kept_for_nobody = [n for n, each in self.results.items() if each.is_free]
        assert not kept_for_nobody, f"the results of {kept_for_nobody} are kept for nobody"


WHOLE_KEPT = 500
"""For this many of the latest deaths that tasks are charged with, the last words are kept as a whole. They can be long,
and many tasks can wait with a history of deaths. This also shortens the last words of unrunnable tasks that the
algorithm already has. Records keep the complete last words."""

OLD_WORDS_CHARACTERS = 300
"""Characters of each stream that an older death keeps."""

_NO_END = SlaveEnded(SlaveId(""), Cause.CRASH, "", "", NO_WORDS)


def _history(span: Span, death: Death) -> tuple[Death, ...]:
    """The history of a task with one more death.

    If the task left a state in this attempt and is not to blame, it has come further than before. Then the earlier
    losses without its fault do not count any more. So a long task may be lost in any number of short slots.
    """
    left = span.left_now
    if left is None or not death.is_blameless:
        return (*span.deaths, death)
    span.left = replace(left, num_lost=left.num_lost + 1)
    return (*[each for each in span.deaths if not each.is_blameless], death)


# The lifecycle of a task.
#
# The table `TRANSITIONS` says what each event does to a task in each state. A transition that the table does not have
# is an internal error. Only the taskjar moves tasks.


class TaskEvent(PlainEnum):
    """What can happen to a task."""

    SUBMIT = "submit"
    BLOCK = "submit with references"
    UNBLOCK = "get all values"
    FAIL = "fail before it is sent"
    ALLOCATE = "allocate"
    FINISH = "finish"
    RETURN = "return"
    DELAY = "return for later"
    AWAIT = "wait for an agent of a former generation"
    BE_DUE = "be due"
    RECLAIM = "be answered by a former slave"
    GIVE_UP = "give up"
    LET_FINISH = "let finish"
    CANCEL = "cancel"
    REUSE = "be answered from the run database"
    TAKE_OVER = "be answered by a former generation"


_NEW, _BLOCKED, _PENDING, _ALLOCATED = TaskState.NEW, TaskState.BLOCKED, TaskState.PENDING, TaskState.ALLOCATED
_FINISHED, _UNRUNNABLE = TaskState.FINISHED, TaskState.UNRUNNABLE
_DELAYED, _CANCELLING, _CANCELLED = TaskState.DELAYED, TaskState.CANCELLING, TaskState.CANCELLED

TRANSITIONS: dict[TaskEvent, dict[TaskState, TaskState]] = {
    TaskEvent.SUBMIT: {_NEW: _PENDING},
    TaskEvent.BLOCK: {_NEW: _BLOCKED},
    TaskEvent.UNBLOCK: {_BLOCKED: _PENDING},
    TaskEvent.FAIL: {_PENDING: _FINISHED, _BLOCKED: _FINISHED},
    TaskEvent.ALLOCATE: {_PENDING: _ALLOCATED},
    TaskEvent.FINISH: {_ALLOCATED: _FINISHED, _CANCELLING: _FINISHED},
    TaskEvent.RETURN: {_ALLOCATED: _PENDING},
    TaskEvent.DELAY: {_ALLOCATED: _DELAYED},
    TaskEvent.AWAIT: {_PENDING: _DELAYED},
    TaskEvent.BE_DUE: {_DELAYED: _PENDING},
    TaskEvent.RECLAIM: {_PENDING: _ALLOCATED, _DELAYED: _ALLOCATED, _ALLOCATED: _ALLOCATED, _CANCELLING: _CANCELLING},
    TaskEvent.GIVE_UP: {
        _BLOCKED: _UNRUNNABLE,
        _PENDING: _UNRUNNABLE,
        _ALLOCATED: _UNRUNNABLE,
        _DELAYED: _UNRUNNABLE,
    },
    TaskEvent.LET_FINISH: {_ALLOCATED: _CANCELLING},
    TaskEvent.CANCEL: {
        _BLOCKED: _CANCELLED,
        _PENDING: _CANCELLED,
        _ALLOCATED: _CANCELLED,
        _CANCELLING: _CANCELLED,
        _DELAYED: _CANCELLED,
    },
    TaskEvent.REUSE: {_NEW: _FINISHED},
    TaskEvent.TAKE_OVER: {
        _BLOCKED: _FINISHED,
        _PENDING: _FINISHED,
        _ALLOCATED: _FINISHED,
        _CANCELLING: _FINISHED,
        _DELAYED: _FINISHED,
    },
}


_WAITING = _NEW, _BLOCKED, _PENDING
ENDED = _FINISHED, _UNRUNNABLE, _CANCELLED


# Pending tasks, which wait until they are sent to a slave.
#
# Pending tasks wait in queues. All tasks of a queue need the same of a slave, so a slave that cannot have one of them
# skips the queue and not each task. The needs name the queue:
#
# - Tasks of one algorithm need that the slave can run it. So each algorithm has a queue, and the algorithms take turns.
#   A group of tasks of one algorithm can be sized by arithmetic, too.
# - Tasks whose policy says how long they take need that time: an agent with little time left skips the queues of long
#   tasks. Policies round these times, so there are few of them.
# - Tasks with requirements need an agent that offers them. Their queues are apart, because they do not take turns (see
#   `fitting.py`).
# - Tasks of a higher priority come first, then chains that were begun, then the largest `cost`. Queues that are equal
#   in this take turns.
# - Suspects must run alone on an agent (see `Dispatch`).
# - Tasks that are addressed to a slave need this slave. They have one queue, in the order of submission.
#
# A task that comes back goes to the head of its queue, because it is the oldest; of several, the oldest is the first. A
# task that ran when its slave died goes to the tail instead. If the task killed the slave, the other tasks run before
# it kills the next slave. If another fault killed the slave, that fault may have ended before the task runs again.


class Needs(Struct, frozen=True):
    """What the tasks of a queue need."""

    algorithm: int | None = None
    """The number of their algorithm; None if they are addressed to a slave."""
    seconds: float | None = None
    """How long each of them takes, as its policy says."""
    alone: bool = False
    """Whether nothing else may run on its agent."""
    sid: SlaveId | None = None
    """The slave to which they are addressed."""
    requires: Requires | None = None
    """What they require of an agent; None for nothing."""
    priority: int = 0
    """Their priority."""
    begun: bool = False
    """Whether they refer to results of other tasks, so that they go on with something that was begun."""
    cost: float | None = None
    """How large they are, as their policy says."""

    @property
    def rank(self) -> tuple[int, bool, float]:
        """The queue of the largest rank is first."""
        return self.priority, self.begun, (self.seconds or 0.0) if self.cost is None else self.cost


def needs_of(span: Span) -> Needs:
    """What tasks need of a slave."""
    policy = span.policy
    if policy.sid is not None:
        return Needs(sid=policy.sid)
    alone = bool(span.deaths) and span.runs_alone
    order = policy.requires, policy.priority, span.begun, policy.cost
    return Needs(span.algorithm.number, policy.seconds_expected, alone, None, *order)


_first = attrgetter("first")

MAX_SPAN = 1000
"""The largest number of tasks in a span that is new or may still be extended: to extend or cut a span copies it."""


@define(eq=False, repr=False)
class PendingTasks:
    """All pending tasks. Only the taskjar adds and removes them."""

    queues: OrderedDict[Needs, deque[Span]] = Factory(OrderedDict)
    """Pending tasks that any slave may run. No queue is empty. The first queue has the next turn: queues of a larger
    rank are before others."""
    fitted: dict[Needs, deque[Span]] = Factory(dict)
    """Pending tasks with requirements, which are addressed to no slave. No queue is empty."""
    special: dict[Needs, deque[Span]] = Factory(dict)
    """Pending tasks that are addressed to a slave, or must run alone. No queue is empty."""
    prioritised: bool = False
    """Whether a task ever had another priority than 0."""
    count: int = 0
    """How many tasks are pending."""
    num_plain: int = 0
    """How many of these are addressed to no slave, and have no requirements or must run alone."""

    @property
    def counts(self) -> Counter[int]:
        """How many tasks of each algorithm are pending, by its number."""
        found: Counter[int] = Counter()
        for span in self.spans():
            found[span.algorithm.number] += span.count
        return found

    def unaddressed(self) -> Iterator[tuple[int, deque[Span]]]:
        """Yield the queues of tasks that are addressed to no slave, and their algorithms."""
        for needs, queue in (*self.queues.items(), *self.fitted.items(), *self.special.items()):
            if needs.algorithm is not None:
                yield needs.algorithm, queue

    @property
    def shortest_s(self) -> float:
        """How many seconds each task that any slave may run needs at least; 0 if this is not known of all of them."""
        return min((queue[0].needed_s or 0.0 for _, queue in self.unaddressed()), default=0.0)

    def heads(self, queue: Iterable[Span], count: int, max_bytes: int, refused: Container[int] = ()) -> list[TaskRange]:
        """Choose tasks at the head of a queue, to be sent in one message; at least one task.

        Args:
            queue: not empty.
            count: the largest number of tasks.
            max_bytes: the largest sum of their arguments' sizes.
            refused: numbers of algorithms; the choice ends before the first task of one of them.

        Returns:
            The tasks, with the number of their next attempt. They stay in the queue until a record moves them.
        """
        chosen: list[TaskRange] = []
        requires = None  # those of a queue of tasks for one slave may differ
        for span in queue:
            if count <= 0 or (chosen and (span.algorithm.number in refused or span.policy.requires != requires)):
                break
            requires = span.policy.requires
            size = size_of(span, count) + (0 if span.left is None else span.left.size)
            fits = span.count
            if size > max_bytes:
                fits = 0 if span.left is not None else bisect_right(list(accumulate(span.sizes())), max_bytes)
            if chosen and (not fits or (portion_of(span) and fits > count)):  # a portion is divided only if it must be
                break
            fits = min(max(1, fits), count)
            chosen.append(span.part(span.first, fits, span.attempt + 1))
            if fits < span.count:
                break
            count -= fits
            max_bytes -= size
        return chosen

    def all_queues(self) -> Iterator[deque[Span]]:
        """All queues."""
        return chain(self.queues.values(), self.fitted.values(), self.special.values())

    def spans(self) -> Iterator[Span]:
        """All spans, queue by queue."""
        return chain.from_iterable(self.all_queues())

    def add(self, spans: Iterable[Span]) -> None:
        """Add spans at the tails of their queues."""
        for span in spans:
            queue = self._count_in(span)
            if queue and queue[-1].count < MAX_SPAN and queue[-1].joins(span):
                queue[-1] = queue[-1].join(span)
            else:
                queue.append(span)

    def put_back(self, spans: Sequence[Span]) -> None:
        """Add spans at the heads of their queues, among others that came back, in the order of their ids.

        Tasks come back from several slaves, one slave after the other. An ordered map waits for the oldest task.
        """
        returned: dict[Needs, tuple[deque[Span], list[Span]]] = {}
        for span in spans:
            queue = self._count_in(span)
            returned.setdefault(needs_of(span), (queue, []))[1].append(span)
        for queue, before in returned.values():
            last = max(span.first for span in before)
            while queue and queue[0].first < last and not queue[0].charged:
                before.append(queue.popleft())
            queue.extendleft(sorted(before, key=_first, reverse=True))

    def _homes(self) -> tuple[dict[Needs, deque[Span]], ...]:
        return self.queues, self.fitted, self.special

    def _home(self, needs: Needs) -> dict[Needs, deque[Span]]:
        """The queues to which that of tasks with these needs belongs."""
        if needs.sid is not None or needs.alone:
            return self.special
        return self.queues if needs.requires is None else self.fitted

    def _count_in(self, span: Span) -> deque[Span]:
        """Count a span that becomes pending, and return its queue."""
        needs = needs_of(span)
        self._count(needs, span.count)
        home = self._home(needs)
        queue = home.get(needs)
        if queue is None:
            self.prioritised = self.prioritised or needs.priority != 0
            queue = home[needs] = deque()
            if home is self.queues:
                self.end_turn(needs)
        return queue

    def end_turn(self, needs: Needs) -> None:
        """The turn of a queue that any slave may run is over: those of the same rank are before it now."""
        self.queues.move_to_end(needs)
        rank = needs.rank
        before = islice(reversed(self.queues), 1, None)
        for lower in reversed([*takewhile(lambda each: each.rank < rank, before)]):
            self.queues.move_to_end(lower)

    def _count(self, needs: Needs, count: int) -> None:
        self.count += count
        if needs.sid is None and (needs.requires is None or needs.alone):
            self.num_plain += count

    def remove(self, tasks: Sequence[TaskRange]) -> list[Span]:
        """Remove tasks from the head of their queue."""
        everything = ((home, *each) for home in self._homes() for each in home.items())
        headed = ((home, needs) for home, needs, queue in everything if queue[0].first == tasks[0].first)
        home, needs = next(headed, (self.queues, Needs()))
        queue = home.get(needs)
        spans: list[Span] = []
        for each in tasks:
            if not queue or queue[0].first != each.first or queue[0].count < each.count:
                raise InternalError(f"{each}: not at the head of the queue")
            span = queue.popleft()
            if span.count > each.count:
                span, rest = span.cut(each.count)
                queue.appendleft(rest)
            self._count(needs, -span.count)
            spans.append(span)
        if not queue:
            del home[needs]
        return spans

    def unaddress(self, record: records.TasksUnaddressed) -> list[Span]:
        """Any slave may run tasks that were addressed to one."""
        spans = self.withdraw(record.tasks)
        for span in spans:
            span.policy = replace(span.policy, sid=None)
        self.add(spans)
        return spans

    def withdraw(self, tasks: Sequence[TaskRange]) -> list[Span]:
        """Remove tasks, wherever they are in their queues."""
        ids, algorithms = ids_in(tasks), {each.algorithm for each in tasks}
        spans: list[Span] = []
        for home in self._homes():
            for needs in [each for each in home if each.sid is not None or each.algorithm in algorithms]:
                taken = take_newest(home[needs], ids)
                self._count(needs, -sum(map(count_of, taken)))
                if not home[needs]:
                    del home[needs]
                spans += taken
        return spans

    def check(self) -> None:
        """Recompute the counts, and compare the queues with the tasks' states."""
        alone = [queue for needs, queue in self.special.items() if needs.alone]
        plain = sum(map(count_of, chain.from_iterable([*self.queues.values(), *alone])))
        assert self.num_plain == plain, "the tasks without requirements were miscounted"
        assert self.count == self.counts.total(), "the pending tasks were miscounted"
        ranks = [needs.rank for needs in self.queues]
        assert ranks == sorted(ranks, reverse=True), "a queue of a smaller rank is before others"
        for needs, queue in chain.from_iterable(home.items() for home in self._homes()):
            assert queue, "an empty queue was kept"
            assert needs in self._home(needs), f"a queue is at a wrong place: {needs}"
            for span in queue:
                assert needs_of(span) == needs, f"{span}: it waits in a wrong queue"
                assert span.count, "a span without tasks was kept"


# Which tasks have ended, and which of these were answered from the run database.
#
# A task that has ended is not in the taskjar any more. But a later task may refer to any task, and `mwpy explain` asks
# for any. To look for a task in all spans would take milliseconds if there are many.


_UNENDED, _ENDED_HERE, _REUSED = range(3)


@define(eq=False, repr=False)
class EndedTasks:
    """A byte for each task that was submitted, up to the last one that has ended."""

    reused: int = 0
    """How many tasks were answered from the run database."""
    reused_failed: int = 0
    """How many of these failed."""
    _how: bytearray = Factory(bytearray)

    def add(self, first: int, count: int, how: int = _ENDED_HERE) -> None:
        """Tasks have ended. Each ends once."""
        end = first + count
        self._how.extend(bytes(max(0, end - len(self._how))))
        assert not any(self._how[first:end]), "a task has ended twice"
        self._how[first:end] = bytes((how,)) * count

    def has(self, number: int) -> bool:
        """Whether a task has ended."""
        return number < len(self._how) and self._how[number] != _UNENDED

    def was_reused(self, number: int) -> bool:
        """Whether a task was answered from the run database at its submission."""
        return self.has(number) and self._how[number] == _REUSED

    def check(self, count: int, runnable: Iterable[Span]) -> None:
        """Compare it with the number of tasks that have ended, and with those that have not."""
        assert len(self._how) - self._how.count(_UNENDED) == count, "the tasks that have ended were miscounted"
        assert not any(map(self.has, chain.from_iterable(span.ids for span in runnable))), "a task has not ended"


_SUBMIT, _BLOCK, _UNBLOCK, _FAIL, _ALLOCATE, _FINISH, _RETURN, _DELAY, _AWAIT, _BE_DUE, *_REST = TaskEvent
_RECLAIM, _GIVE_UP, _LET_FINISH, _CANCEL, _REUSE, _TAKE_OVER, *_OTHERS = _REST
"""Before Python 3.12, looking up a member of an enumeration takes ten times as long as looking up a name."""

Tags = Sequence[tuple[tuple[Any, ...], Any]]
"""The tags and the owner of each entry of `TasksSubmitted`; empty if they are unknown."""


class Taskjar:
    """All tasks that have not ended."""

    def __init__(self) -> None:
        self.algorithms = Algorithms()
        """The task algorithms."""
        self.runnable = 0
        """How many tasks have not ended."""
        self.away = 0
        """How many tasks were submitted and are not pending or blocked any more."""
        self.ended = 0
        """How many of these have ended."""
        self.failed = 0
        """How many of those that have ended failed or are unrunnable."""
        self.cancelled = 0
        """How many of those that have ended were cancelled, or failed because of a task that they refer to."""
        self.ends = EndedTasks()
        """Which tasks have ended, and how many were answered from the run database."""
        self.pending = PendingTasks()
        """The tasks that wait to be sent."""
        self.blocked = BlockedTasks()
        """The tasks that wait for the results of others."""
        self.delayed: dict[int, Span] = {}
        """The tasks that pause before their next attempt, by id. Each has a span of its own, because its pause may end
        at any time. `HandBack` decides when."""
        self.held: dict[SlaveId, HeldTasks] = {}
        """Allocated tasks, by slave: an entry for each slave, and for each ended slave that held tasks."""
        self.left_bytes = 0
        """How many bytes the states take that tasks left for their next attempts. `Interim` decides which count."""
        self.speculates = False
        """Whether a task was ever submitted that may be given to another slave while one runs it."""
        self._whole: deque[Death] = deque()
        """The latest deaths; their last words are not truncated."""
        self._last_end = _NO_END
        """The most recent end of a slave. A charge immediately follows the end of its slave, so one is enough."""
        self.changes: dict[type, Callable[..., list[Span] | None]] = {
            records.TasksAllocated: self._allocated,
            records.ResultsReceived: self._received,
            records.TasksReclaimed: self._reclaimed,
            records.TasksSubmitted: self._submitted,
            records.ResultsReused: self._reused,
            records.TasksAwaited: self._awaited,
            records.TasksReturned: self._returned,
            records.TasksDue: self._due,
            records.TasksGivenUp: self._given_up,
            records.TasksCancelled: self._cancelled,
            records.TasksAnswered: self._answered,
            records.TasksCancelling: self._cancelling,
            records.TasksUnaddressed: self.pending.unaddress,
            records.TaskCheckpointed: self._left_state,
            records.SlaveConnected: self._slave_connected,
            records.SlaveEnded: self._slave_ended,
            records.LossesExplained: self._explained,
            records.TasksFailed: self._failed,
            records.TasksUnblocked: self._unblocked,
            records.ResultsHeld: self.blocked.hold,
            records.ResultGiven: self.blocked.give,
            records.ResultsReleased: self.blocked.release,
            records.AlgorithmDefined: self.algorithms.add,
            records.AlgorithmsForgotten: self.algorithms.forget,
        }
        """What each kind of record does to the tasks; all other kinds do nothing. A task's state changes in no other
        way. `MasterState.record` calls these methods. They return the spans that they move. A lookup is faster than a
        `match`."""

    @property
    def num_allocated(self) -> int:
        """How many tasks are at slaves."""
        return self.runnable - self.pending.count - len(self.blocked.tasks) - len(self.delayed)

    def spans(self) -> Iterator[Span]:
        """All spans: pending, blocked and delayed ones, and those that slaves hold."""
        yield from self.pending.spans()
        yield from self.blocked.tasks.values()
        yield from self.delayed.values()
        yield from chain.from_iterable(held.spans for held in self.held.values())

    def places(self, ids: TaskIds) -> Iterator[tuple[SlaveId | None, list[TaskRange]]]:
        """Yield where those tasks are that have these ids: the slave that holds them, or None, and the tasks, which are
        in one state if no slave holds them."""
        for spans in (self.pending.spans(), self.delayed.values(), self.blocked.tasks.values()):
            if found := named(spans, ids):
                yield None, found
        for sid, held in self.held.items():
            if found := named(held.spans, ids):
                yield sid, found

    # ---- what records do -----------------------------------------------------------------------------------

    def _submitted(self, record: records.TasksSubmitted, tags: Tags = ()) -> list[Span]:
        spans: list[Span] = []
        for position, each in enumerate(record.tasks):
            algorithm = self.algorithms.defined[each.algorithm]
            self.algorithms.begin(algorithm, each.count)
            own, owner = tags[position] if tags else ((None,) * each.count, None)
            calls: tuple[bytes, ...] | PackedCalls = tuple(each.payloads)
            if each.packed:
                calls = PackedCalls.from_data(each.packed, each.payloads[0], each.count)
            columns = calls, tuple(each.buffers), own
            spans.append(
                Span(each.first, each.count, algorithm, each.policy, *columns, refers=each.refers, owner=owner)
            )
            self.speculates = self.speculates or each.policy.speculate
        self.runnable += sum(map(count_of, spans))
        new = [span for span in spans if not span.refers]
        self._move(new, _SUBMIT)
        self.pending.add(new)
        blocked = [span for span in spans if span.refers]
        self._move(blocked, _BLOCK)
        self.blocked.add(blocked)
        return spans

    def _unblocked(self, record: records.TasksUnblocked) -> list[Span]:
        spans = self.blocked.unblock(record.tasks)
        self._move(spans, _UNBLOCK)
        self.pending.add(spans)
        return spans

    def _allocated(self, record: records.TasksAllocated) -> list[Span]:
        spans = self.pending.remove(record.tasks)
        self._move(spans, _ALLOCATE)
        for span in spans:
            span.sent += 1
        self._hold(record.sid, spans)
        return spans

    def _hold(self, sid: SlaveId, spans: Sequence[Span], attempt: int | None = None) -> None:
        """Let a slave hold tasks, in an attempt; None for the last one."""
        held = self.held[sid]
        for span in spans:
            span.sid, span.attempt = sid, span.sent if attempt is None else attempt
            held.load[span.algorithm.number] += span.count
        held.spans.extend(spans)

    def _reclaimed(self, record: records.TasksReclaimed) -> list[Span]:
        spans = self._taken_out(record.holder, record.tasks, _RECLAIM)
        self._hold(record.sid, spans, record.attempt)
        return spans

    def _received(self, record: records.ResultsReceived) -> list[Span]:
        spans = self._taken(record.sid, named_in(record.results))
        self._move(spans, _FINISH)
        self._answer(spans, record)
        return spans

    def _answered(self, record: records.TasksAnswered) -> list[Span]:
        spans = self._taken_out(record.sid, record.tasks, _TAKE_OVER)
        self.ends.reused += sum(map(count_of, spans))
        self.ends.reused_failed += len(record.results.failed)
        self._answer(spans, record)
        return spans

    def _answer(self, spans: Sequence[Span], record: records.ResultsReceived | records.TasksAnswered) -> None:
        self.failed += len(record.results.failed)
        if self.blocked.results:
            self.blocked.received(spans, record.results, record.frames)

    def _returned(self, record: records.TasksReturned) -> list[Span]:
        spans = self._taken(record.sid, map(_name_of, record.tasks))
        self._move(spans, _DELAY if record.pause_s else _RETURN)
        for span in spans:
            span.sid, span.attempt = None, span.sent
        self._charge(spans, record.charges)
        if record.pause_s:
            return self._delay(spans, record.pause_s)
        if any(charge.is_charged for charge in record.charges):
            self.pending.add(spans)
        else:
            self.pending.put_back(spans)
        return spans

    def _awaited(self, record: records.TasksAwaited) -> list[Span]:
        spans = self._taken_out(None, record.tasks, _AWAIT)
        return self._delay(spans, inf)

    def _delay(self, spans: Sequence[Span], pause_s: float) -> list[Span]:
        """Delay tasks for a number of seconds. Return a span for each task."""
        singles = [single for span in spans for single in span.singles()]
        for single in singles:
            single.pause_s = pause_s
            self.delayed[single.first] = single
        return singles

    def _due(self, record: records.TasksDue) -> list[Span]:
        spans = self._taken_out(None, record.tasks, _BE_DUE)
        self.pending.add(spans)
        return spans

    def _given_up(self, record: records.TasksGivenUp) -> list[Span]:
        spans = self._taken_out(record.sid if record.held else None, record.tasks, _GIVE_UP)
        self.failed += sum(map(count_of, spans))
        self._charge(spans, record.charges)
        self.blocked.ended(spans, f"is unrunnable: {record.reason}")
        return spans

    def _cancelling(self, record: records.TasksCancelling) -> list[Span]:
        spans = self._set_apart(record.sid, record.tasks)
        self._move(spans, _LET_FINISH)
        return spans

    def _cancelled(self, record: records.TasksCancelled) -> list[Span]:
        spans = self._taken_out(record.sid, record.tasks, _CANCEL)
        self.cancelled += sum(map(count_of, spans))
        self.blocked.ended(spans, f"was cancelled {record.when}")
        return spans

    def _failed(self, record: records.TasksFailed) -> list[Span]:
        spans = self._taken_out(None, record.tasks, _FAIL)
        count = sum(map(count_of, spans))
        if record.dependency:
            self.cancelled += count
            for number in numbers_in(record.tasks):
                self.blocked.fail(number, record.cause, record.dependency)
        else:
            self.failed += count
            self.blocked.ended(spans, f"failed: {record.reason}")
        return spans

    def _reused(self, record: records.ResultsReused) -> None:
        """New tasks have ended. They never were in the jar, so there is no span to move."""
        assert TRANSITIONS[_REUSE] == {_NEW: _FINISHED}, "the table says what happens here"
        for each in record.tasks:
            self.algorithms.defined[each.algorithm].away += each.count
            self.away += each.count
            self.ended += each.count
            self.ends.add(each.first, each.count, _REUSED)
            self.ends.reused += each.count
            self.ends.reused_failed += len(each.failed)
            self.failed += len(each.failed)

    def _left_state(self, record: records.TaskCheckpointed) -> list[Span]:
        """A task left a state. It replaces an earlier one."""
        spans = self._set_apart(record.sid, [record.task])
        (span,) = spans
        before = span.left
        left = LeftState(record.frames, span.attempt, before.num_lost if before else 0)
        span.left = left
        span.algorithm.leaves_state = True
        self.left_bytes += left.size - (before.size if before else 0)
        return spans

    def _charge(self, spans: Sequence[Span], charges: Sequence[Charge]) -> None:
        """Add deaths to the history of tasks."""
        for charge in charges:
            words = self._last_end.words if charge.sid == self._last_end.sid else NO_WORDS
            by_attempt: dict[int, Death] = {}
            for span in spans:
                death = by_attempt.get(span.attempt)
                if death is None:
                    death = Death(charge.sid, span.attempt, charge.cause, charge.reason, words, charge.more_memory)
                    by_attempt[span.attempt] = death
                    self._whole.append(death)
                span.deaths = _history(span, death)
        while len(self._whole) > WHOLE_KEPT:
            oldest = self._whole.popleft()
            oldest.words = oldest.words.cut(OLD_WORDS_CHARACTERS)

    def _explained(self, record: records.LossesExplained) -> None:
        """Correct the cause of losses. Nothing was heard from their agent, and the network was blamed for this."""
        for death in chain(self._whole, chain.from_iterable(span.deaths for span in self.spans())):
            if death.cause is Cause.NETWORK and death.sid in record.sids:
                death.cause, death.reason = record.cause, record.reason

    def _slave_connected(self, record: records.SlaveConnected) -> None:
        """A slave holds nothing yet."""
        self.held[record.sid] = HeldTasks()

    def _slave_ended(self, record: SlaveEnded) -> None:
        """A slave is gone. Other records of the same iteration move its tasks."""
        self._last_end = record
        held = self.held.get(record.sid)
        if held is not None:  # else it ended before it was ready for tasks
            held.ended = True
            if not held.spans:
                del self.held[record.sid]

    # ---- where tasks are -----------------------------------------------------------------------------------

    def _taken(self, sid: SlaveId, tasks: Iterable[tuple[int, int, int]]) -> list[Span]:
        """Remove tasks from a slave that holds them: the first id, the count and the attempt of each range."""
        held, ranges = self.held[sid], [*tasks]
        spans = take(held.spans, ranges)
        if sum(map(count_of, spans)) != sum(count for _, count, _ in ranges):
            raise InternalError(f"{sid} does not hold all of the tasks {ranges} (first id, count and attempt)")
        for span in spans:
            number = span.algorithm.number
            left = held.load[number] - span.count
            if left:
                held.load[number] = left
            else:
                del held.load[number]
        if held.ended and not held.spans:
            del self.held[sid]
        return spans

    def _taken_out(self, sid: SlaveId | None, tasks: Sequence[TaskRange], event: TaskEvent) -> list[Span]:
        """Remove tasks, wherever they are, and move them along their lifecycle. They are at one slave, or all are in
        the same state.

        Args:
            sid: the slave that holds them; None if none does.
        """
        if sid is not None:
            spans = self._taken(sid, map(_name_of, tasks))
        elif tasks[0].first in self.delayed:
            spans = [self.delayed.pop(number) for number in numbers_in(tasks) if number in self.delayed]
            for span in spans:
                span.pause_s = 0.0
        else:
            blocked = tasks[0].first in self.blocked.tasks
            spans = self.blocked.remove(tasks) if blocked else self.pending.withdraw(tasks)
        check_found(spans, tasks)
        self._move(spans, event)
        return spans

    def _set_apart(self, sid: SlaveId, tasks: Sequence[TaskRange]) -> list[Span]:
        """Give tasks among those that a slave holds spans of their own, and return these."""
        held = self.held[sid].spans
        parts = [*divided(held, ids_in(tasks))]
        held.clear()
        held.extend(part for part, _ in parts)
        spans = [part for part, named in parts if named]
        check_found(spans, tasks)
        return spans

    def _move(self, spans: Sequence[Span], event: TaskEvent) -> None:
        """Move the tasks of spans along their lifecycle, and count them.

        Raises:
            InternalError: the table has no such transition; the fault of mwpy itself.
        """
        transitions = TRANSITIONS[event]
        for span in spans:
            before, state = span.state, transitions.get(span.state)
            if state is None:
                raise InternalError(
                    f"{span}: {before.name} (attempt {span.attempt} on {span.sid}), which cannot {event.value}"
                )
            span.state = state
            away = ((state not in _WAITING) - (before not in _WAITING)) * span.count
            span.algorithm.away += away
            self.away += away
            if state in ENDED:
                self.runnable -= span.count
                self.ended += span.count
                self.ends.add(span.first, span.count)
                self.left_bytes -= 0 if span.left is None else span.left.size
                self.algorithms.end(span.algorithm, span.count)

    # ---- checking ------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Recompute all derived values, and compare the places of the tasks with their states."""
        self.pending.check()
        self.blocked.check()
        for sid, held in self.held.items():
            counted: Counter[int] = Counter()
            for span in held.spans:
                counted[span.algorithm.number] += span.count
            assert counted == held.load, f"the load of {sid} was miscounted"
        allocated = sum(held.count for held in self.held.values())
        assert allocated == self.num_allocated, "a task is neither pending nor delayed nor at a slave"
        not_pending = allocated + len(self.delayed)
        assert not_pending == self.away - self.ended, "the tasks that are not pending any more were miscounted"
        runnable: Counter[int] = Counter()
        for span in self.spans():
            runnable[span.algorithm.number] += span.count
        blocked = Counter(span.algorithm.number for span in self.blocked.tasks.values())
        self.algorithms.check(runnable, blocked)
        left = sum(span.left.size for span in self.spans() if span.left is not None)
        assert self.left_bytes == left, "the states were miscounted"
        self.ends.check(self.ended, self.spans())
