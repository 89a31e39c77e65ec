"""The jar of all tasks that the master has, and the one place where a task changes its state.

The table `TRANSITIONS` is the lifecycle of a task. `Taskjar.apply` moves spans of tasks along it, as records say. A
transition that the table does not have is an internal error. Finished and unrunnable tasks leave the jar at once, so
all tasks in it are pending or allocated.

Pending tasks wait in queues. Each slave that tasks are addressed to has a queue of them, in the order of submission.
All other tasks wait in one queue for each algorithm, for two reasons: a group of tasks of one algorithm can be sized
by arithmetic, and a slave that cannot run an algorithm skips one queue and not each task. The algorithms take turns.

A task that comes back goes to the head of its queue, because it is the oldest. A task that ran when its slave died
goes to the tail instead. If it killed the slave, the other tasks are run before it kills the next one. If it did not,
it does not meet the same bad moment three times in a row.

Allocated tasks are in `Taskjar.held`, by the slave that holds them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import accumulate
from typing import Any

from attrs import define, evolve, field

from mwpy._core.holding import count_of, take
from mwpy._core.master.deaths import KeptDeaths
from mwpy._core.master.spans import Span
from mwpy._values import records
from mwpy._values.errors import InternalError
from mwpy._values.ids import SlaveId
from mwpy._values.records import TaskRange
from mwpy._values.task import PlainEnum, TaskState

__all__ = ["TRANSITIONS", "HeldTasks", "TaskEvent", "Taskjar"]


class TaskEvent(PlainEnum):
    """What can happen to a task."""

    SUBMIT = "submit"
    FAIL = "fail at its submission"
    ALLOCATE = "allocate"
    FINISH = "finish"
    RETURN = "return"
    GIVE_UP = "give up"


_NEW, _PENDING, _ALLOCATED = TaskState.NEW, TaskState.PENDING, TaskState.ALLOCATED
_FINISHED, _UNRUNNABLE = TaskState.FINISHED, TaskState.UNRUNNABLE

TRANSITIONS: dict[TaskEvent, dict[TaskState, TaskState]] = {
    TaskEvent.SUBMIT: {_NEW: _PENDING},
    TaskEvent.FAIL: {_NEW: _FINISHED},
    TaskEvent.ALLOCATE: {_PENDING: _ALLOCATED},
    TaskEvent.FINISH: {_ALLOCATED: _FINISHED},
    TaskEvent.RETURN: {_ALLOCATED: _PENDING},
    TaskEvent.GIVE_UP: {_PENDING: _UNRUNNABLE, _ALLOCATED: _UNRUNNABLE},
}
_SUBMIT, _, _ALLOCATE, _FINISH, _RETURN, _GIVE_UP = TaskEvent


Tags = Sequence[list[Any]]
"""The tags of each entry of `TasksSubmitted`; empty if they are unknown."""

MAX_SPAN = 1000
"""Longest span, in tasks, that is extended by the next one: extending a span copies it."""


@define(eq=False)
class HeldTasks:
    """The tasks that one slave holds."""

    spans: deque[Span] = field(factory=deque)
    """In the order in which they were sent."""
    load: dict[int, int] = field(factory=lambda: defaultdict(int))
    """How many of them belong to each algorithm, by its number; no zero."""
    ended: bool = False
    """Whether the slave is gone; then records of the same iteration take these tasks."""

    @property
    def count(self) -> int:
        """How many tasks it holds."""
        return sum(self.load.values())


@define(eq=False)
class Taskjar:
    """All pending and allocated tasks."""

    definitions: list[records.AlgorithmDefined] = field(factory=list)
    """The algorithms, by their numbers."""
    runnable: int = 0
    """How many tasks are pending or allocated."""
    queues: dict[int, deque[Span]] = field(factory=dict)
    """Pending tasks that any slave may run, by algorithm; no empty queue. The first queue has its turn next."""
    addressed: dict[SlaveId, deque[Span]] = field(factory=dict)
    """Pending tasks addressed to a slave; no empty queue."""
    held: dict[SlaveId, HeldTasks] = field(factory=dict)
    """Allocated tasks by the slave that holds them: an entry for each slave, and for each ended one that held some."""
    num_queued: dict[int, int] = field(factory=lambda: defaultdict(int))
    """How many tasks of each algorithm are in `queues`; no zero."""
    num_addressed: dict[int, int] = field(factory=lambda: defaultdict(int))
    """How many tasks of each algorithm are in `addressed`; no zero."""
    deaths: KeptDeaths = field(factory=KeptDeaths)
    """The deaths that tasks are charged with."""

    @property
    def pending(self) -> dict[int, int]:
        """How many tasks of each algorithm are pending, by its number; no zero."""
        if not self.num_addressed:
            return dict(self.num_queued)
        return Counter(self.num_queued) + Counter(self.num_addressed)

    @property
    def num_unaddressed(self) -> int:
        """How many pending tasks any slave may run."""
        return sum(self.num_queued.values())

    @property
    def num_allocated(self) -> int:
        """How many tasks are at slaves."""
        return self.runnable - self.num_unaddressed - sum(self.num_addressed.values())

    def apply(self, record: records.Record, tags: Tags = ()) -> list[Span]:
        """Change the tasks as a record says; the only place where a task's state changes.

        Args:
            record: what happened.
            tags: with `TasksSubmitted`, the tags of each of its entries; without them, each tag is None.

        Returns:
            The spans of the record's tasks, in their new state.

        Raises:
            InternalError: the record contradicts the tasks' states; the fault of mwpy itself.
        """
        handler = _HANDLERS.get(type(record))
        return handler(self, record, tags) if handler is not None else []

    def heads(self, queue: deque[Span], count: int, max_bytes: int, refused: Container[int] = ()) -> list[TaskRange]:
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
            sizes = span.sizes
            fits = len(sizes) if sum(sizes) <= max_bytes else bisect_right(list(accumulate(sizes)), max_bytes)
            if chosen and not fits:
                break
            fits = min(max(1, fits), count)
            chosen.append(span.part(span.first, fits, span.attempt + 1))
            if fits < span.count:
                break
            count -= fits
            max_bytes -= sum(sizes)
        return chosen

    def next_turn(self, algorithm: int) -> None:
        """Let an algorithm wait for its next turn behind all others."""
        queue = self.queues.pop(algorithm, None)
        if queue:
            self.queues[algorithm] = queue

    # ---- what records do -----------------------------------------------------------------------------------

    def _allocated(self, record: records.TasksAllocated, _: Tags) -> list[Span]:
        sid = record.sid
        spans = self._dequeue(sid, record.tasks)
        _move(spans, _ALLOCATE)
        held = self.held[sid]
        for span in spans:
            span.attempt += 1
            span.sid = sid
            held.load[span.algorithm.number] += span.count
        held.spans.extend(spans)
        return spans

    def _received(self, record: records.ResultsReceived, _: Tags) -> list[Span]:
        results = record.results
        spans = self._take(record.sid, results.tasks, results.counts, results.attempts)
        _move(spans, _FINISH)
        self.runnable -= sum(map(count_of, spans))
        return spans

    def _submitted(self, record: records.TasksSubmitted, tags: Tags) -> list[Span]:
        spans = [
            Span(
                each.first,
                each.count,
                self.definitions[each.algorithm].definition,
                each.policy,
                each.payloads,
                each.buffers,
                tags[position] if tags else [None] * each.count,
            )
            for position, each in enumerate(record.tasks)
        ]
        _move(spans, _SUBMIT)
        self.runnable += sum(map(count_of, spans))
        self._enqueue(spans)
        return spans

    def _returned(self, record: records.TasksReturned, _: Tags) -> list[Span]:
        spans = self._take_ranges(record.sid, record.tasks)
        _move(spans, _RETURN)
        for span in spans:
            span.sid = None
        if record.charges:
            self.deaths.charge(spans, record.charges)
            self._enqueue(spans)
        else:
            self._enqueue_first(spans)
        return spans

    def _given_up(self, record: records.TasksGivenUp, _: Tags) -> list[Span]:
        take = self._take_ranges if record.held else self._dequeue
        spans = take(record.sid, record.tasks)
        _move(spans, _GIVE_UP)
        self.runnable -= sum(map(count_of, spans))
        self.deaths.charge(spans, record.charges)
        return spans

    def _unaddressed(self, record: records.TasksUnaddressed, _: Tags) -> list[Span]:
        spans = self._dequeue(record.sid, record.tasks)
        for span in spans:
            span.policy = evolve(span.policy, sid=None)
        self._enqueue(spans)
        return spans

    def _connected(self, record: records.SlaveConnected, _: Tags) -> list[Span]:
        self.held[record.sid] = HeldTasks()
        return []

    def _ended(self, record: records.SlaveEnded, _: Tags) -> list[Span]:
        self.deaths.note_end(record)
        held = self.held.get(record.sid)
        if held is not None:  # else it ended before it was ready for tasks
            held.ended = True
            if not held.spans:
                del self.held[record.sid]
        return []

    def _defined(self, record: records.AlgorithmDefined, _: Tags) -> list[Span]:
        self.definitions.append(record)
        return []

    # ---- queues --------------------------------------------------------------------------------------------

    def _enqueue(self, spans: Iterable[Span]) -> None:
        for span in spans:
            queue, counted = self._place_of(span)
            counted[span.algorithm.number] += span.count
            if queue and queue[-1].count < MAX_SPAN and queue[-1].joins(span):
                queue[-1] = queue[-1].join(span)
            else:
                queue.append(span)

    def _enqueue_first(self, spans: Sequence[Span]) -> None:
        for span in reversed(spans):
            queue, counted = self._place_of(span)
            counted[span.algorithm.number] += span.count
            queue.appendleft(span)

    def _place_of(self, span: Span) -> tuple[deque[Span], dict[int, int]]:
        """The queue of a pending span, and the counter of the tasks in such queues."""
        sid = span.policy.sid
        if sid is not None:
            return self.addressed.setdefault(sid, deque()), self.num_addressed
        queue = self.queues.get(span.algorithm.number)
        if queue is None:
            queue = self.queues[span.algorithm.number] = deque()
        return queue, self.num_queued

    def _dequeue(self, sid: SlaveId, tasks: Sequence[TaskRange]) -> list[Span]:
        """Remove tasks from the head of a slave's queue, if they are addressed to it, else of their algorithm's."""
        queue: deque[Span] | None = self.addressed.get(sid)
        counted = self.num_addressed
        if not queue or queue[0].first != tasks[0].first:
            queue, counted = self.queues.get(tasks[0].algorithm), self.num_queued
        spans: list[Span] = []
        for each in tasks:
            if not queue or queue[0].first != each.first or queue[0].count < each.count:
                raise InternalError(f"{each}: not at the head of the queue")
            span = queue.popleft()
            if span.count > each.count:
                span, rest = span.cut(each.count)
                queue.appendleft(rest)
            counted[each.algorithm] -= each.count
            if not counted[each.algorithm]:
                del counted[each.algorithm]
            spans.append(span)
        if not queue:
            if counted is self.num_addressed:
                del self.addressed[sid]
            else:
                del self.queues[tasks[0].algorithm]
        return spans

    # ---- allocated tasks -----------------------------------------------------------------------------------

    def _take_ranges(self, sid: SlaveId, tasks: Sequence[TaskRange]) -> list[Span]:
        columns = zip(*((each.first, each.count, each.attempt) for each in tasks), strict=True)
        return self._take(sid, *columns)

    def _take(self, sid: SlaveId, firsts: Sequence[int], counts: Sequence[int], attempts: Sequence[int]) -> list[Span]:
        """Remove tasks from a slave that holds them."""
        held = self.held[sid]
        spans: list[Span] = []
        for first, count, attempt in zip(firsts, counts, attempts, strict=True):
            taken = take(held.spans, first, count, attempt)
            if sum(map(count_of, taken)) != count:
                raise InternalError(f"task {first} and {count - 1} more, attempt {attempt}: {sid} does not hold them")
            for span in taken:
                number = span.algorithm.number
                held.load[number] -= span.count
                if not held.load[number]:
                    del held.load[number]
            spans += taken
        if held.ended and not held.spans:
            del self.held[sid]
        return spans

    # ---- checking ------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Recompute what is derived, and compare the tasks' places with their states."""
        queued: Counter[int] = Counter()
        for number, queue in self.queues.items():
            queued[number] = sum(map(count_of, queue))
        assert queued == self.num_queued, "the tasks that any slave may run were miscounted"
        addressed: Counter[int] = Counter()
        for span in (span for queue in self.addressed.values() for span in queue):
            addressed[span.algorithm.number] += span.count
        assert addressed == self.num_addressed, "the addressed tasks were miscounted"
        for queue in (*self.queues.values(), *self.addressed.values()):
            assert queue, "an empty queue was kept"
            for span in queue:
                assert span.count, "a span without tasks was kept"
                assert span.state is _PENDING, f"{span}: in a queue, but {span.state.name}"
                assert span.sid is None, f"{span}: in a queue, but allocated to {span.sid}"
        for sid, held in self.held.items():
            _check_held(sid, held)
        allocated = sum(held.count for held in self.held.values())
        assert allocated == self.num_allocated, "a task is neither pending nor at a slave"
        self.deaths.check()


_HANDLERS: dict[type, Callable[[Taskjar, Any, Tags], list[Span]]] = {
    records.TasksAllocated: Taskjar._allocated,
    records.ResultsReceived: Taskjar._received,
    records.TasksSubmitted: Taskjar._submitted,
    records.TasksReturned: Taskjar._returned,
    records.TasksGivenUp: Taskjar._given_up,
    records.TasksUnaddressed: Taskjar._unaddressed,
    records.SlaveConnected: Taskjar._connected,
    records.SlaveEnded: Taskjar._ended,
    records.AlgorithmDefined: Taskjar._defined,
}
"""What each kind of record does to the tasks; all other kinds do nothing. A lookup is quicker than a `match`."""


def _check_held(sid: SlaveId, held: HeldTasks) -> None:
    counted: Counter[int] = Counter()
    for span in held.spans:
        assert span.sid == sid, f"{span}: held by {sid} but allocated to {span.sid}"
        assert span.state is _ALLOCATED, f"{span}: held by {sid} but {span.state.name}"
        counted[span.algorithm.number] += span.count
    assert counted == held.load, f"the load of {sid} was miscounted"


def _move(spans: Sequence[Span], event: TaskEvent) -> None:
    transitions = TRANSITIONS[event]
    for span in spans:
        state = transitions.get(span.state)
        if state is None:
            raise InternalError(
                f"{span}: {span.state.name} (attempt {span.attempt} on {span.sid}), which cannot {event.value}"
            )
        span.state = state
