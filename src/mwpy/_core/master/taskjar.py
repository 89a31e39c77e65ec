"""The jar of all tasks that the master holds, and the one place where a task changes its state.

A task's way is the table `TRANSITIONS`. `Taskjar.apply` walks it, a span of tasks at a time, as records say; a pair
that the table does not have is an internal error. Finished and unrunnable tasks leave the jar at once:
what it holds is pending or allocated.

Pending tasks wait in queues: one for each slave that has tasks addressed to it, in the order of their
submission, and one for each algorithm for all others. One queue an algorithm, because a group of tasks of
one algorithm can be sized by arithmetic, and because a slave that cannot run an algorithm then passes over
its queue and not over each of its tasks. The algorithms take turns. A task that comes back goes to the head of
its queue: it is the oldest. One that was running when its slave died goes to the tail: if it killed, the others come
before the next slave that it kills, and if not, it does not meet one bad moment three times over.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Container, Iterable, Sequence
from itertools import accumulate

from attrs import define, evolve, field

from mwpy._core.holding import count_of
from mwpy._values import records
from mwpy._values.algorithm import Algorithm
from mwpy._values.errors import InternalError
from mwpy._values.ids import SlaveId
from mwpy._values.last_words import Death
from mwpy._values.task import PlainEnum, Span, TaskState

__all__ = ["TRANSITIONS", "TaskEvent", "Taskjar"]


class TaskEvent(PlainEnum):
    """What can happen to a task."""

    SUBMIT = "submit"
    FAIL = "fail before it is sent"
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
    TaskEvent.GIVE_UP: {_NEW: _UNRUNNABLE, _PENDING: _UNRUNNABLE, _ALLOCATED: _UNRUNNABLE},
}
_SUBMIT, _FAIL, _ALLOCATE, _FINISH, _RETURN, _GIVE_UP = TaskEvent


MAX_SPAN = 1000
"""Tasks from which on a span is not made longer: making it longer copies it."""


@define(eq=False)
class Taskjar:
    """All pending and allocated tasks."""

    runnable: int = 0
    """How many tasks are pending or allocated."""
    queues: dict[Algorithm, deque[Span]] = field(factory=dict)
    """Pending tasks that any slave may run, by algorithm; no empty queue. The first has its turn next."""
    addressed: dict[SlaveId, deque[Span]] = field(factory=dict)
    """Pending tasks addressed to a slave; no empty queue."""
    num_queued: dict[Algorithm, int] = field(factory=lambda: defaultdict(int))
    """How many tasks of each algorithm are in `queues`; no zero."""
    num_addressed: dict[Algorithm, int] = field(factory=lambda: defaultdict(int))
    """How many tasks of each algorithm are in `addressed`; no zero."""

    @property
    def pending(self) -> dict[Algorithm, int]:
        """How many tasks of each algorithm are pending; no zero."""
        if not self.num_addressed:
            return dict(self.num_queued)
        return Counter(self.num_queued) + Counter(self.num_addressed)

    @property
    def num_unaddressed(self) -> int:
        """How many pending tasks any slave may run."""
        return sum(self.num_queued.values())

    @property
    def num_allocated(self) -> int:
        """How many tasks slaves hold."""
        return self.runnable - self.num_unaddressed - sum(self.num_addressed.values())

    def apply(self, record: records.Record) -> None:
        """Change the tasks as a record says; the only place where a task's state changes.

        Raises:
            InternalError: the record contradicts the tasks' states; mwpy's own fault.
        """
        match record:
            case records.TasksSubmitted(spans):
                _walk(spans, _SUBMIT)
                self.runnable += sum(map(count_of, spans))
                self._enqueue(spans)
            case records.TasksFailed(spans):
                _walk(spans, _FAIL)
            case records.TasksAllocated(sid, spans):
                self._dequeue(spans)
                _walk(spans, _ALLOCATE)
                for span in spans:
                    span.attempt += 1
                    span.sid = sid
            case records.ResultsReceived(_, spans):
                _walk(spans, _FINISH)
                self.runnable -= sum(map(count_of, spans))
            case records.TasksReturned(_, spans, _, deaths):
                _walk(spans, _RETURN)
                for span in spans:
                    span.sid = None
                if deaths:
                    _charge(spans, deaths)
                    self._enqueue(spans)
                else:
                    self._enqueue_first(spans)
            case records.TasksGivenUp(spans, _, deaths):
                self.runnable -= sum(span.count for span in spans if span.state is not _NEW)
                self._dequeue([span for span in spans if span.state is _PENDING])
                _walk(spans, _GIVE_UP)
                _charge(spans, deaths)
            case records.TasksUnaddressed(_, spans):
                self._dequeue(spans)
                for span in spans:
                    span.policy = evolve(span.policy, sid=None)
                self._enqueue(spans)
            case _:
                pass

    def heads(self, queue: deque[Span], count: int, max_bytes: int, refused: Container[Algorithm] = ()) -> list[Span]:
        """Cut so many tasks off the head of a queue, but no more bytes and none from a refused one on; at least one.

        They stay in the queue until a record says where they went.
        """
        heads: list[Span] = []
        while len(heads) < len(queue) and count > 0:
            span = queue[len(heads)]
            sizes = span.sizes
            fits = len(sizes) if sum(sizes) <= max_bytes else bisect_right(list(accumulate(sizes)), max_bytes)
            if heads and (not fits or span.algorithm in refused):
                break
            fits = min(max(1, fits), count)
            if fits < len(sizes):
                span, rest = span.cut(fits)
                queue[len(heads)] = span
                queue.insert(len(heads) + 1, rest)
            heads.append(span)
            count -= fits
            max_bytes -= sum(sizes[:fits])
        return heads

    def next_turn(self, algorithm: Algorithm) -> None:
        """Let an algorithm wait for its next turn behind all others."""
        queue = self.queues.pop(algorithm, None)
        if queue:
            self.queues[algorithm] = queue

    def _enqueue(self, spans: Iterable[Span]) -> None:
        for span in spans:
            queue, counted = self._place_of(span)
            counted[span.algorithm] += span.count
            if queue and queue[-1].count < MAX_SPAN and queue[-1].joins(span):
                queue[-1] = queue[-1].join(span)
            else:
                queue.append(span)

    def _enqueue_first(self, spans: Sequence[Span]) -> None:
        for span in reversed(spans):
            queue, counted = self._place_of(span)
            counted[span.algorithm] += span.count
            queue.appendleft(span)

    def _place_of(self, span: Span) -> tuple[deque[Span], dict[Algorithm, int]]:
        """The queue of a pending span, and what counts its tasks."""
        sid = span.policy.sid
        if sid is not None:
            return self.addressed.setdefault(sid, deque()), self.num_addressed
        queue = self.queues.get(span.algorithm)
        if queue is None:
            queue = self.queues[span.algorithm] = deque()
        return queue, self.num_queued

    def _dequeue(self, spans: Sequence[Span]) -> None:
        """Take spans from the head of a queue; those of one call are of one queue."""
        if not spans:
            return
        queue, counted = self._place_of(spans[0])
        for span in spans:
            if not queue or queue.popleft() is not span:
                raise InternalError(f"{span}: not at the head of the queue")
            counted[span.algorithm] -= span.count
            if not counted[span.algorithm]:
                del counted[span.algorithm]
        if not queue:
            sid = spans[0].policy.sid
            if sid is not None:
                del self.addressed[sid]
            else:
                del self.queues[spans[0].algorithm]

    def check(self) -> None:
        """Recompute what is derived and hold the queues against the tasks' states."""
        queued: Counter[Algorithm] = Counter()
        for algorithm, queue in self.queues.items():
            queued[algorithm] = sum(map(count_of, queue))
        assert queued == self.num_queued, "the tasks that any slave may run were miscounted"
        addressed: Counter[Algorithm] = Counter()
        for span in (span for queue in self.addressed.values() for span in queue):
            addressed[span.algorithm] += span.count
        assert addressed == self.num_addressed, "the addressed tasks were miscounted"
        for queue in (*self.queues.values(), *self.addressed.values()):
            assert queue, "an empty queue was kept"
            for span in queue:
                assert span.count, "a span without tasks was kept"
                assert span.state is _PENDING, f"{span}: in a queue, but {span.state.name}"
                assert span.sid is None, f"{span}: in a queue, but allocated to {span.sid}"


def _walk(spans: Sequence[Span], event: TaskEvent) -> None:
    ways = TRANSITIONS[event]
    for span in spans:
        state = ways.get(span.state)
        if state is None:
            raise InternalError(
                f"{span}: {span.state.name} (attempt {span.attempt} on {span.sid}), which cannot {event.value}"
            )
        span.state = state


def _charge(spans: Sequence[Span], deaths: tuple[Death, ...]) -> None:
    for span in spans:
        span.deaths += deaths
