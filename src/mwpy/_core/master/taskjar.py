"""The jar of all tasks that the master has, and the one place where a task changes its state.

The table `TRANSITIONS` is the lifecycle of a task. Records move spans of tasks along it (`Taskjar.changes`). A
transition that the table does not have is an internal error. Finished and unrunnable tasks leave the jar at once, so
all tasks in it are pending or allocated.

Pending tasks are in `Taskjar.pending`, allocated tasks in `Taskjar.held` by the slave that holds them.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attrs import define, evolve, field

from mwpy._core.holding import count_of, take
from mwpy._core.master.deaths import KeptDeaths
from mwpy._core.master.pending import PendingTasks
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


@define(eq=False)
class HeldTasks:
    """The tasks that one slave holds."""

    spans: deque[Span] = field(factory=deque)
    """The tasks, in the order in which they were sent."""
    load: dict[int, int] = field(factory=lambda: defaultdict(int))
    """How many of them belong to each algorithm, by its number. No count is zero."""
    ended: bool = False
    """Whether the slave is gone. Then other records of the same iteration move these tasks."""

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
    pending: PendingTasks = field(factory=PendingTasks)
    """The tasks that wait to be sent."""
    held: dict[SlaveId, HeldTasks] = field(factory=dict)
    """Allocated tasks, by slave: an entry for each slave, and for each ended slave that held tasks."""
    deaths: KeptDeaths = field(factory=KeptDeaths)
    """The deaths that tasks are charged with."""
    changes: dict[type, Callable[[Any, Tags], list[Span]]] = field(init=False, repr=False)
    """What each kind of record does to the tasks; all other kinds do nothing. A task's state changes in no other way.
    `MasterState.record` calls these methods. A lookup is faster than a `match`."""

    @changes.default
    def _list_changes(self) -> dict[type, Callable[[Any, Tags], list[Span]]]:
        return {
            records.TasksAllocated: self._allocated,
            records.ResultsReceived: self._received,
            records.TasksSubmitted: self._submitted,
            records.TasksReturned: self._returned,
            records.TasksGivenUp: self._given_up,
            records.TasksUnaddressed: self._unaddressed,
            records.SlaveConnected: self._connected,
            records.SlaveEnded: self._ended,
            records.AlgorithmDefined: self._defined,
        }

    @property
    def num_allocated(self) -> int:
        """How many tasks are at slaves."""
        return self.runnable - self.pending.count

    def spans(self) -> Iterator[Span]:
        """All spans: pending ones, and those that slaves hold."""
        yield from self.pending.spans()
        for held in self.held.values():
            yield from held.spans

    # ---- what records do -----------------------------------------------------------------------------------

    def _allocated(self, record: records.TasksAllocated, _: Tags) -> list[Span]:
        sid = record.sid
        spans = self.pending.remove(sid, record.tasks)
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
        spans: list[Span] = []
        for position, each in enumerate(record.tasks):
            algorithm = self.definitions[each.algorithm].definition
            own_tags = tags[position] if tags else [None] * each.count
            spans.append(Span(each.first, each.count, algorithm, each.policy, each.payloads, each.buffers, own_tags))
        _move(spans, _SUBMIT)
        self.runnable += sum(map(count_of, spans))
        self.pending.add(spans)
        return spans

    def _returned(self, record: records.TasksReturned, _: Tags) -> list[Span]:
        spans = self._take_ranges(record.sid, record.tasks)
        _move(spans, _RETURN)
        for span in spans:
            span.sid = None
        self.deaths.charge(spans, record.charges)
        if any(not charge.agent_lost for charge in record.charges):
            self.pending.add(spans)
        else:
            self.pending.put_back(spans)
        return spans

    def _given_up(self, record: records.TasksGivenUp, _: Tags) -> list[Span]:
        take = self._take_ranges if record.held else self.pending.remove
        spans = take(record.sid, record.tasks)
        _move(spans, _GIVE_UP)
        self.runnable -= sum(map(count_of, spans))
        self.deaths.charge(spans, record.charges)
        return spans

    def _unaddressed(self, record: records.TasksUnaddressed, _: Tags) -> list[Span]:
        spans = self.pending.remove(record.sid, record.tasks)
        for span in spans:
            span.policy = evolve(span.policy, sid=None)
        self.pending.add(spans)
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
        """Recompute all derived values, and compare the places of the tasks with their states."""
        self.pending.check()
        for sid, held in self.held.items():
            _check_held(sid, held)
        allocated = sum(held.count for held in self.held.values())
        assert allocated == self.num_allocated, "a task is neither pending nor at a slave"
        self.deaths.check()


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
