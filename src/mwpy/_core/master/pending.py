"""Pending tasks, which wait until they are sent to a slave.

Pending tasks wait in queues. Each slave that tasks are addressed to has a queue of them, in the order of submission.
All other tasks wait in one queue for each algorithm, for two reasons: a group of tasks of one algorithm can be sized
by arithmetic, and a slave that cannot run an algorithm skips one queue and not each task. The algorithms take turns.
Suspects, which must run alone on an agent, have queues of their own (see `isolation.py`).

Tasks whose policy says how long they take wait in queues of their own, one for each such time: an agent with little
time left skips the queues of long tasks. Policies round these times, so there are few of them.

A task that comes back goes to the head of its queue, because it is the oldest; of several, the oldest is the first. A
task that ran when its slave died goes to the tail instead. If the task killed the slave, the other tasks run before it
kills the next slave. If another fault killed the slave, that fault may have ended before the task runs again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from itertools import accumulate
from math import inf
from operator import attrgetter
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from mwpy._core.holding import TaskIds, count_of, take_out
from mwpy._core.master.spans import Span, ids_in, portion_of, size_of
from mwpy._values.errors import InternalError
from mwpy._values.ids import SlaveId
from mwpy._values.records import TaskRange, TasksUnaddressed
from mwpy._values.task import TaskState

__all__ = ["MAX_SPAN", "Lane", "PendingTasks"]

K = TypeVar("K")

Lane = int | tuple[int, float]
"""Names a queue: the number of an algorithm. For tasks with `seconds_expected` also this time."""

_first = attrgetter("first")

MAX_SPAN = 1000
"""The largest number of tasks in a span that is new or may still be extended: to extend or cut a span copies it."""


class PendingTasks(Struct, eq=False):
    """All pending tasks. Only the taskjar adds and removes them."""

    queues: OrderedDict[Lane, deque[Span]] = field(default_factory=OrderedDict)
    """Pending tasks that any slave may run. No queue is empty. The first queue has the next turn."""
    suspects: dict[Lane, deque[Span]] = field(default_factory=dict)
    """Pending tasks that any slave may run if nothing else runs on its agent. No queue is empty."""
    addressed: dict[SlaveId, deque[Span]] = field(default_factory=dict)
    """Pending tasks that are addressed to a slave. No queue is empty."""
    num_queued: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """How many tasks of each algorithm are in `queues` and `suspects`. No number is zero."""
    num_addressed: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """How many tasks of each algorithm are in `addressed`. No number is zero."""
    count: int = 0
    """How many tasks are pending."""
    num_unaddressed: int = 0
    """How many pending tasks any slave may run."""

    @property
    def counts(self) -> dict[int, int]:
        """How many tasks of each algorithm are pending, by its number. No count is zero."""
        if not self.num_addressed:
            return dict(self.num_queued)
        return Counter(self.num_queued) + Counter(self.num_addressed)

    @property
    def shortest_s(self) -> float:
        """How many seconds each task that any slave may run needs at least; 0 if this is not known of all of them."""
        queues = *self.queues.values(), *self.suspects.values()
        return min((queue[0].needed_s or 0.0 for queue in queues), default=0.0)

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
        for span in queue:
            if count <= 0 or (chosen and span.algorithm.number in refused):
                break
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

    def spans(self) -> Iterator[Span]:
        """All spans, queue by queue."""
        for queue in (*self.queues.values(), *self.suspects.values(), *self.addressed.values()):
            yield from queue

    def unaddressed(self, algorithm: int) -> list[Span]:
        """All tasks of an algorithm that any slave may run, queue by queue."""
        queues = (*self.queues.items(), *self.suspects.items()) if algorithm in self.num_queued else ()
        return [span for lane, queue in queues if _number(lane) == algorithm for span in queue]

    def first_turn(self, refused: Collection[int], ends_in_s: float = inf) -> Lane | None:
        """The queue that has the next turn; None if there is none.

        This takes no longer when more algorithms have pending tasks.

        Args:
            refused: numbers of algorithms, whose queues are left out.
            ends_in_s: the queues of tasks that take longer are left out.
        """
        if not refused and ends_in_s == inf:
            return next(iter(self.queues), None)
        for lane, queue in self.queues.items():
            if _number(lane) not in refused and (ends_in_s == inf or (queue[0].needed_s or 0.0) <= ends_in_s):
                return lane
        return None

    def next_turn(self, lane: Lane) -> None:
        """Move a queue behind all other queues."""
        if lane in self.queues:
            self.queues.move_to_end(lane)

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
        returned: dict[tuple[SlaveId | None, Lane, bool], tuple[deque[Span], list[Span]]] = {}
        for span in spans:
            queue = self._count_in(span)
            key = span.policy.sid, _lane(span.algorithm.number, span.policy.seconds_expected), span.runs_alone
            returned.setdefault(key, (queue, []))[1].append(span)
        for queue, before in returned.values():
            last = max(span.first for span in before)
            while queue and queue[0].first < last and not queue[0].charged:
                before.append(queue.popleft())
            queue.extendleft(sorted(before, key=_first, reverse=True))

    def _count_in(self, span: Span) -> deque[Span]:
        """Count a span that becomes pending, and return its queue."""
        number, count, sid = span.algorithm.number, span.count, span.policy.sid
        self.count += count
        if sid is not None:
            self.num_addressed[number] += count
            return self.addressed.setdefault(sid, deque())
        self.num_unaddressed += count
        self.num_queued[number] += count
        queues = self.suspects if span.deaths and span.runs_alone else self.queues
        lane = _lane(number, span.policy.seconds_expected)
        queue = queues.get(lane)
        if queue is None:
            queue = queues[lane] = deque()
        return queue

    def remove(self, sid: SlaveId, tasks: Sequence[TaskRange]) -> list[Span]:
        """Remove tasks from the head of their queue, which belongs to a slave or to their algorithm."""
        queue: deque[Span] | None = self.addressed.get(sid)
        queues: dict[Lane, deque[Span]] = self.queues
        counted = self.num_addressed
        lane = _lane(tasks[0].algorithm, tasks[0].expected_s)
        if not queue or queue[0].first != tasks[0].first:
            queue, counted = queues.get(lane), self.num_queued
            if not queue or queue[0].first != tasks[0].first:
                queues = self.suspects
                queue = queues.get(lane)
        spans: list[Span] = []
        for each in tasks:
            if not queue or queue[0].first != each.first or queue[0].count < each.count:
                raise InternalError(f"{each}: not at the head of the queue")
            span = queue.popleft()
            if span.count > each.count:
                span, rest = span.cut(each.count)
                queue.appendleft(rest)
            self._discount(counted, each.algorithm, each.count)
            spans.append(span)
        if not queue:
            if counted is self.num_addressed:
                del self.addressed[sid]
            else:
                del queues[lane]
        return spans

    def unaddress(self, record: TasksUnaddressed, _: object) -> list[Span]:
        """Any slave may run tasks that were addressed to one."""
        spans = self.remove(record.sid, record.tasks)
        for span in spans:
            span.policy = replace(span.policy, sid=None)
        self.add(spans)
        return spans

    def withdraw(self, tasks: Sequence[TaskRange]) -> list[Span]:
        """Remove tasks, wherever they are in their queues."""
        ids = ids_in(tasks)
        spans: list[Span] = []
        for lane in dict.fromkeys(_lane(each.algorithm, each.expected_s) for each in tasks):
            spans += self._take_out(self.queues, lane, ids, self.num_queued)
            spans += self._take_out(self.suspects, lane, ids, self.num_queued)
        for sid in list(self.addressed):
            spans += self._take_out(self.addressed, sid, ids, self.num_addressed)
        return spans

    def _take_out(self, queues: dict[K, deque[Span]], key: K, ids: TaskIds, counted: dict[int, int]) -> list[Span]:
        """Remove tasks from one of the queues, and the queue if no other task is in it."""
        if key not in queues:
            return []
        taken = take_out(queues[key], ids)
        for span in taken:
            self._discount(counted, span.algorithm.number, span.count)
        if not queues[key]:
            del queues[key]
        return taken

    def _discount(self, counted: dict[int, int], algorithm: int, count: int) -> None:
        """Count tasks that were removed from a queue."""
        self.count -= count
        if counted is self.num_queued:
            self.num_unaddressed -= count
        counted[algorithm] -= count
        if not counted[algorithm]:
            del counted[algorithm]

    def check(self) -> None:
        """Recompute the counts, and compare the queues with the tasks' states."""
        queued: Counter[int] = Counter()
        for queues in (self.queues, self.suspects):
            for lane, queue in queues.items():
                queued[_number(lane)] += sum(map(count_of, queue))
                right = (lane, queues is self.suspects)
                lanes = [_lane(span.algorithm.number, span.policy.seconds_expected) for span in queue]
                alone = [span.runs_alone for span in queue]
                assert all(each == right for each in zip(lanes, alone, strict=True)), "a task waits in a wrong queue"
        assert queued == self.num_queued, "the tasks that any slave may run were miscounted"
        addressed: Counter[int] = Counter()
        for span in (span for queue in self.addressed.values() for span in queue):
            addressed[span.algorithm.number] += span.count
        assert addressed == self.num_addressed, "the addressed tasks were miscounted"
        assert self.num_unaddressed == queued.total(), "the tasks that are addressed to no slave were miscounted"
        assert self.count == queued.total() + addressed.total(), "the pending tasks were miscounted"
        for queue in (*self.queues.values(), *self.suspects.values(), *self.addressed.values()):
            assert queue, "an empty queue was kept"
            for span in queue:
                assert span.count, "a span without tasks was kept"
                assert span.state is TaskState.PENDING, f"{span}: in a queue, but {span.state.name}"
                assert span.sid is None, f"{span}: in a queue, but allocated to {span.sid}"
                assert span.attempt == span.sent, f"{span}: its next attempt is not {span.sent + 1}"


def _lane(number: int, expected_s: float | None) -> Lane:
    """The queue of tasks of an algorithm that take this time by their policy."""
    return number if expected_s is None else (number, expected_s)


def _number(lane: Lane) -> int:
    """The algorithm of a queue."""
    return lane[0] if isinstance(lane, tuple) else lane
