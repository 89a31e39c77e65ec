"""Allocated tasks, which slaves hold. A task may have several live attempts, each at another slave."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import attrgetter

from msgspec import Struct, field

from mwpy._core.holding import count_of, divided, take_each
from mwpy._core.master.spans import Span, ids_in
from mwpy._values.errors import InternalError
from mwpy._values.ids import SlaveId
from mwpy._values.records import SlaveConnected, SlaveEnded, TaskRange
from mwpy._values.task import TaskState

__all__ = ["AllocatedTasks", "HeldTasks", "check_found"]

_start = attrgetter("start")

_AT_SLAVES = (TaskState.ALLOCATED, TaskState.CANCELLING)


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


class AllocatedTasks(Struct, eq=False):
    """All tasks that slaves hold. Only the taskjar adds and removes them."""

    held: dict[SlaveId, HeldTasks]
    """The tasks of each slave."""
    several: dict[int, dict[SlaveId, Span]] = field(default_factory=dict)
    """The live attempts of each task that has several, by its id: the spans in `held`, by slave, the oldest first."""

    def slave_ended(self, record: SlaveEnded) -> None:
        """A slave is gone. Other records of the same iteration move its tasks."""
        held = self.held.get(record.sid)
        if held is not None:  # else it ended before it was ready for tasks
            held.ended = True
            if not held.spans:
                del self.held[record.sid]

    def slave_connected(self, record: SlaveConnected) -> None:
        """A slave holds nothing yet."""
        self.held[record.sid] = HeldTasks()

    def set_apart(self, sid: SlaveId, tasks: Sequence[TaskRange]) -> list[Span]:
        """Give tasks among those that a slave holds spans of their own, and return these."""
        held = self.held[sid].spans
        parts = [*divided(held, ids_in(tasks))]
        held.clear()
        held.extend(part for part, _ in parts)
        spans = [part for part, named in parts if named]
        check_found(spans, tasks)
        return spans

    def take(self, sid: SlaveId, firsts: Sequence[int], counts: Sequence[int], attempts: Sequence[int]) -> list[Span]:
        """Remove tasks from a slave that holds them."""
        held = self.held[sid]
        spans: list[Span] = []
        every = take_each(held.spans, firsts, counts, attempts)
        for taken, first, count, attempt in zip(every, firsts, counts, attempts, strict=True):
            if sum(map(count_of, taken)) != count:
                raise InternalError(f"task {first} and {count - 1} more, attempt {attempt}: {sid} does not hold them")
            for span in taken:
                number = span.algorithm.number
                left = held.load[number] - span.count
                if left:
                    held.load[number] = left
                else:
                    del held.load[number]
            spans += taken
        if held.ended and not held.spans:
            del self.held[sid]
        return spans

    def start_another(self, span: Span, sid: SlaveId, task: TaskRange) -> Span:
        """Add another attempt of a task, which a slave gets. `span` is a live attempt of this task alone."""
        assert span.sid is not None, f"{span} is at no slave"
        [another] = span.singles()
        another.attempt, another.sid = task.attempt, sid
        live = self.several.setdefault(another.first, {span.sid: span})
        live[sid] = another
        for each in live.values():
            each.sent = task.attempt
        held = self.held[sid]
        held.load[task.algorithm] += 1
        held.spans.append(another)
        return another

    def end_some(self, sid: SlaveId, spans: Iterable[Span]) -> None:
        """Some attempts that a slave held have ended. The other attempts of the same tasks share their history."""
        for span in spans:
            live = self.several.get(span.first, {})
            if live.pop(sid, None) is not span:
                raise InternalError(f"{span}: no other attempt of it lives")
            for other in live.values():
                other.deaths, other.left = span.deaths, span.left
            if len(live) == 1:
                del self.several[span.first]

    def check(self) -> Counter[int]:
        """Compare the live attempts of each task. Return how many there are beside the first ones, by algorithm."""
        for sid, own in self.held.items():
            _check_held(sid, own)
        beside: Counter[int] = Counter()
        for number, live in self.several.items():
            first, *others = live.values()
            assert others, f"task {number} has one live attempt, and not several"
            assert len({span.attempt for span in live.values()}) == len(live), f"{first}: an attempt lives twice"
            for sid, span in live.items():
                assert any(span is each for each in self.held[sid].spans), f"{span}: {sid} does not hold it"
                assert (span.first, span.count) == (number, 1), f"{span}: it is an attempt of task {number}"
                same = (span.state, span.sent, span.left) == (first.state, first.sent, first.left)
                assert same and span.deaths == first.deaths, f"{span}: its attempts differ in more than their numbers"
            beside[first.algorithm.number] += len(others)
        ids = [span.ids for held in self.held.values() for span in held.spans if span.first not in self.several]
        ids.sort(key=_start)
        twice = [after for before, after in pairwise(ids) if after.start < before.stop]
        assert not twice, f"several slaves hold the tasks {twice}"
        return beside


def _check_held(sid: SlaveId, held: HeldTasks) -> None:
    counted: Counter[int] = Counter()
    for span in held.spans:
        assert span.sid == sid, f"{span}: held by {sid} but allocated to {span.sid}"
        assert span.state in _AT_SLAVES, f"{span}: held by {sid} but {span.state.name}"
        assert span.attempt <= span.sent, f"{span}: attempt {span.attempt} of {span.sent} lives"
        counted[span.algorithm.number] += span.count
    assert counted == held.load, f"the load of {sid} was miscounted"


def check_found(spans: Sequence[Span], tasks: Sequence[TaskRange]) -> None:
    """Check that all tasks of a record were found.

    Raises:
        InternalError: some were not; the fault of mwpy itself.
    """
    if sum(map(count_of, spans)) != sum(map(count_of, tasks)):
        raise InternalError(f"{', '.join(map(str, tasks))}: some of them are not where the record says")
