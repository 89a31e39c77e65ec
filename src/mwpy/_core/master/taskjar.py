"""The jar of all tasks that the master has, and the one place where a task changes its state.

Records move spans of tasks along their lifecycle (`lifecycle.py`, `Taskjar.changes`). Finished, unrunnable and
cancelled tasks leave the jar at once, so all others are in it.

Pending tasks are in `Taskjar.pending`, blocked tasks in `Taskjar.blocked`, delayed tasks in `Taskjar.delayed`, all
others in `Taskjar.held` by their slave.

An allocated or cancelling task usually has one live attempt. If it has several, each is a span of this one task, at
another slave, with its own number of the attempt (see `allocated.py`). All its attempts except the last one end with
`AttemptsEnded`, also when the task has an answer. So all other records move tasks with one live attempt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from math import inf
from typing import Any

from mwpy._core.holding import count_of
from mwpy._core.master import lifecycle
from mwpy._core.master.algorithms import Algorithms
from mwpy._core.master.allocated import AllocatedTasks, HeldTasks, check_found
from mwpy._core.master.blocked import BlockedTasks
from mwpy._core.master.deaths import KeptDeaths
from mwpy._core.master.delayed import DelayedTasks
from mwpy._core.master.left_states import LeftStates
from mwpy._core.master.lifecycle import TaskEvent, move
from mwpy._core.master.pending import PendingTasks
from mwpy._core.master.reused_ids import ReusedIds
from mwpy._core.master.spans import Span
from mwpy._values import records
from mwpy._values.ids import SlaveId
from mwpy._values.packed import PackedCalls
from mwpy._values.records import TaskRange
from mwpy._values.task import TaskState

__all__ = ["Taskjar"]

_SUBMIT, _BLOCK, _UNBLOCK, _FAIL, _ALLOCATE, _FINISH, _RETURN, _DELAY, _AWAIT, _BE_DUE, *_REST = TaskEvent
_REPEAT, _END_ONE, _GIVE_UP, _LET_FINISH, _CANCEL, _REUSE, _FORBID, _TAKE_OVER, *_OTHERS = _REST
_NEW, _FINISHED, _UNRUNNABLE = TaskState.NEW, TaskState.FINISHED, TaskState.UNRUNNABLE
"""Before Python 3.12, looking up a member of an enumeration takes ten times as long as looking up a name."""

Tags = Sequence[tuple[Any, ...]]
"""The tags of each entry of `TasksSubmitted`; empty if they are unknown."""


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
        self.reused = ReusedIds()
        """Those that have ended and were answered from the run database."""
        self.pending = PendingTasks()
        """The tasks that wait to be sent."""
        self.blocked = BlockedTasks()
        """The tasks that wait for the results of others."""
        self.delayed = DelayedTasks()
        """The tasks that pause before their next attempt."""
        self.held: dict[SlaveId, HeldTasks] = {}
        """Allocated tasks, by slave: an entry for each slave, and for each ended slave that held tasks."""
        self.allocated = AllocatedTasks(self.held)
        """The same tasks, and which of them have several live attempts."""
        self.left = LeftStates(self.allocated)
        """The states that tasks left for their next attempts."""
        self.speculates = False
        """Whether a task was ever submitted of which a second attempt may be started."""
        self.deaths = KeptDeaths()
        """The deaths that tasks are charged with."""
        self.changes = self._list_changes()
        """What each kind of record does to the tasks; all other kinds do nothing. A task's state changes in no other
        way. `MasterState.record` calls these methods. A lookup is faster than a `match`."""

    def _list_changes(self) -> dict[type, Callable[[Any, Tags], list[Span]]]:
        return {
            records.TasksAllocated: self._allocated,
            records.ResultsReceived: self._received,
            records.AttemptsStarted: self._attempts_started,
            records.AttemptsEnded: self._attempts_ended,
            records.TasksSubmitted: self._submitted,
            records.ResultsReused: _only(partial(_reuse, self)),
            records.TasksForbidden: _only(partial(_forbid, self)),
            records.TasksAwaited: partial(_awaited, self),
            records.TasksReturned: self._returned,
            records.TasksDue: self._due,
            records.TasksGivenUp: self._given_up,
            records.TasksCancelled: partial(_cancelled, self),
            records.TasksAnswered: partial(_answered, self),
            records.TasksCancelling: self._cancelling,
            records.TasksUnaddressed: self.pending.unaddress,
            records.TaskCheckpointed: self.left.add,
            records.SlaveConnected: _only(self.allocated.slave_connected),
            records.SlaveEnded: _only(self.deaths.note_end, self.allocated.slave_ended),
            records.LossesExplained: _only(self.deaths.explain),
            records.TasksFailed: self._failed,
            records.TasksUnblocked: self._unblocked,
            records.ResultsHeld: _only(self.blocked.hold),
            records.ResultGiven: _only(self.blocked.give),
            records.ResultsReleased: _only(self.blocked.release),
            records.AlgorithmDefined: _only(self.algorithms.add),
            records.AlgorithmsForgotten: _only(self.algorithms.forget),
        }

    @property
    def num_allocated(self) -> int:
        """How many tasks are at slaves."""
        return self.runnable - self.pending.count - len(self.blocked.tasks) - len(self.delayed.tasks)

    def spans(self) -> Iterator[Span]:
        """All spans: pending, blocked and delayed ones, and those that slaves hold."""
        yield from self.pending.spans()
        yield from self.blocked.tasks.values()
        yield from self.delayed.tasks.values()
        yield from chain.from_iterable(held.spans for held in self.held.values())

    # ---- what records do -----------------------------------------------------------------------------------

    def _allocated(self, record: records.TasksAllocated, _: Tags) -> list[Span]:
        sid = record.sid
        spans = self.pending.remove(sid, record.tasks)
        move(spans, _ALLOCATE)
        held = self.held[sid]
        for span in spans:
            span.attempt = span.sent = span.attempt + 1
            span.sid = sid
            held.load[span.algorithm.number] += span.count
            self._count_away(span, span.count)
        held.spans.extend(spans)
        return spans

    def _received(self, record: records.ResultsReceived, _: Tags) -> list[Span]:
        results = record.results
        spans = self.allocated.take(record.sid, results.tasks, results.counts, results.attempts)
        move(spans, _FINISH)
        self.failed += len(results.failed)
        self._count_ended(spans)
        if self.blocked.results:
            self.blocked.received(spans, results, record.frames)
        return spans

    def _submitted(self, record: records.TasksSubmitted, tags: Tags) -> list[Span]:
        spans: list[Span] = []
        for position, each in enumerate(record.tasks):
            algorithm = self.algorithms.defined[each.algorithm]
            self.algorithms.begin(algorithm, each.count)
            columns = _calls_in(each), tuple(each.buffers), tags[position] if tags else (None,) * each.count
            spans.append(Span(each.first, each.count, algorithm, each.policy, *columns, refers=each.refers))
            self.speculates = self.speculates or each.policy.speculate
        self.runnable += sum(map(count_of, spans))
        new = [span for span in spans if not span.refers]
        move(new, _SUBMIT)
        self.pending.add(new)
        if len(new) < len(spans):
            blocked = [span for span in spans if span.refers]
            move(blocked, _BLOCK)
            self.blocked.add(blocked)
        return spans

    def _attempts_started(self, record: records.AttemptsStarted, _: Tags) -> list[Span]:
        spans = self.allocated.set_apart(record.beside, record.tasks)
        move(spans, _REPEAT)
        new = {each.first: each for each in record.tasks}
        return [self.allocated.start_another(span, record.sid, new[span.first]) for span in spans]

    def _attempts_ended(self, record: records.AttemptsEnded, _: Tags) -> list[Span]:
        spans = self.allocated.take(record.sid, *_columns(record.tasks))
        move(spans, _END_ONE)
        self.deaths.charge(spans, record.charges)
        self.allocated.end_some(record.sid, spans)
        return spans

    def _returned(self, record: records.TasksReturned, _: Tags) -> list[Span]:
        spans = self.allocated.take(record.sid, *_columns(record.tasks))
        move(spans, _DELAY if record.pause_s else _RETURN)
        for span in spans:
            span.sid, span.attempt = None, span.sent
        self.deaths.charge(spans, record.charges)
        if record.pause_s:
            return self.delayed.add(spans, record.pause_s)
        for span in spans:
            self._count_away(span, -span.count)
        if any(charge.is_charged for charge in record.charges):
            self.pending.add(spans)
        else:
            self.pending.put_back(spans)
        return spans

    def _due(self, record: records.TasksDue, _: Tags) -> list[Span]:
        spans = self.delayed.remove(record.tasks)
        move(spans, _BE_DUE)
        for span in spans:
            self._count_away(span, -span.count)
        self.pending.add(spans)
        return spans

    def _unblocked(self, record: records.TasksUnblocked, _: Tags) -> list[Span]:
        spans = self.blocked.unblock(record.tasks)
        move(spans, _UNBLOCK)
        self.pending.add(spans)
        return spans

    def _given_up(self, record: records.TasksGivenUp, _: Tags) -> list[Span]:
        if record.held:
            spans = self.allocated.take(record.sid, *_columns(record.tasks))
        elif record.tasks[0].first in self.delayed.tasks:
            spans = self.delayed.remove(record.tasks)
        else:
            spans = self.pending.remove(record.sid, record.tasks)
            for span in spans:
                self._count_away(span, span.count)
        move(spans, _GIVE_UP)
        self.failed += sum(map(count_of, spans))
        self._count_ended(spans)
        self.deaths.charge(spans, record.charges)
        if self.blocked.results:
            self.blocked.ended(spans, f"is unrunnable: {record.reason}")
        return spans

    def _cancelling(self, record: records.TasksCancelling, _: Tags) -> list[Span]:
        spans = self.allocated.set_apart(record.sid, record.tasks)
        move(spans, _LET_FINISH)
        return spans

    def _failed(self, record: records.TasksFailed, _: Tags) -> list[Span]:
        spans: list[Span] = []
        for each in record.tasks:
            if each.first in self.blocked.tasks:
                spans += self.blocked.remove([each])
                self.runnable -= each.count
                self.algorithms.end(spans[-1].algorithm, each.count)
            _end_new(self, each)
            self.cancelled += each.count if record.dependency else 0
            self.failed += 0 if record.dependency else each.count
            cause, root = record.cause or f"{each} failed: {record.reason}", record.dependency or each.first
            self.blocked.fail(each.first, cause, root)
        move(spans, _FAIL)
        return spans

    def _count_away(self, span: Span, count: int) -> None:
        """Tasks of a span are not pending any more; with a negative number, they are pending again."""
        span.algorithm.away += count
        self.away += count

    def _count_ended(self, spans: Sequence[Span]) -> None:
        """Spans have ended."""
        for span in spans:
            self.runnable -= span.count
            self.ended += span.count
            if span.left is not None:
                self.left.bytes -= span.left.size
            self.algorithms.end(span.algorithm, span.count)

    # ---- checking ------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Recompute all derived values, and compare the places of the tasks with their states."""
        self.pending.check()
        self.blocked.check()
        self.delayed.check()
        beside = self.allocated.check()
        allocated = sum(held.count for held in self.held.values()) - beside.total()
        assert allocated == self.num_allocated, "a task is neither pending nor delayed nor at a slave"
        not_pending = allocated + len(self.delayed.tasks)
        assert not_pending == self.away - self.ended, "the tasks that are not pending any more were miscounted"
        runnable: Counter[int] = Counter()
        for span in self.spans():
            runnable[span.algorithm.number] += span.count
        self.algorithms.check(runnable - beside)
        self.left.check(self.spans())
        self.deaths.check()


def _cancelled(jar: Taskjar, record: records.TasksCancelled, _: Tags) -> list[Span]:
    spans = _taken_out(jar, record.sid, record.tasks)
    move(spans, _CANCEL)
    jar._count_ended(spans)
    jar.cancelled += sum(map(count_of, spans))
    if jar.blocked.results:
        jar.blocked.ended(spans, f"was cancelled {record.when}")
    return spans


def _answered(jar: Taskjar, record: records.TasksAnswered, _: Tags) -> list[Span]:
    spans = _taken_out(jar, record.sid, record.tasks)
    move(spans, _TAKE_OVER)
    jar.reused.count += sum(map(count_of, spans))
    jar.reused.failed += len(record.results.failed)
    jar.failed += len(record.results.failed)
    jar._count_ended(spans)
    if jar.blocked.results:
        jar.blocked.received(spans, record.results, record.frames)
    return spans


def _taken_out(jar: Taskjar, sid: SlaveId | None, tasks: Sequence[TaskRange]) -> list[Span]:
    """Remove tasks that end before an attempt of them does. They are at one slave, or all are in the same state.

    Args:
        sid: the slave that holds them; None if none does.
    """
    if sid is not None:
        spans = jar.allocated.take(sid, *_columns(tasks))
    elif tasks[0].first in jar.delayed.tasks:
        spans = jar.delayed.remove(tasks)
    else:
        blocked = tasks[0].first in jar.blocked.tasks
        spans = jar.blocked.remove(tasks) if blocked else jar.pending.withdraw(tasks)
        for span in spans:
            jar._count_away(span, span.count)
    check_found(spans, tasks)
    return spans


def _awaited(jar: Taskjar, record: records.TasksAwaited, _: Tags) -> list[Span]:
    spans = jar.pending.withdraw(record.tasks)
    check_found(spans, record.tasks)
    move(spans, _AWAIT)
    for span in spans:
        jar._count_away(span, span.count)
    return jar.delayed.add(spans, inf)


def _reuse(jar: Taskjar, record: records.ResultsReused) -> None:
    """New tasks have ended. They never were in the jar, so there is no span to move."""
    assert lifecycle.TRANSITIONS[_REUSE] == {_NEW: _FINISHED}, "the table says what happens here"
    for each in record.tasks:
        _end_new(jar, each)
        jar.reused.add(each.first, each.count, len(each.failed))
        jar.failed += len(each.failed)


def _forbid(jar: Taskjar, record: records.TasksForbidden) -> None:
    """New tasks have ended; see `_reuse`."""
    assert lifecycle.TRANSITIONS[_FORBID] == {_NEW: _UNRUNNABLE}, "the table says what happens here"
    _end_new(jar, record.tasks)
    jar.failed += record.tasks.count


def _end_new(jar: Taskjar, each: TaskRange | records.ReusedTasks) -> None:
    """Tasks that were never pending have ended."""
    jar.algorithms.defined[each.algorithm].away += each.count
    jar.away += each.count
    jar.ended += each.count


def _calls_in(submitted: records.SubmittedTasks) -> tuple[bytes, ...] | PackedCalls:
    calls = submitted.payloads
    return PackedCalls.from_data(submitted.packed, calls[0], submitted.count) if submitted.packed else tuple(calls)


def _only(*changes: Callable[[Any], None]) -> Callable[[Any, Tags], list[Span]]:
    """Changes that move no task."""

    def make_changes(record: Any, _: Tags) -> list[Span]:
        for change in changes:
            change(record)
        return []

    return make_changes


def _columns(tasks: Sequence[TaskRange]) -> Iterator[Sequence[int]]:
    """The first ids, the counts and the attempts of tasks."""
    return zip(*((each.first, each.count, each.attempt) for each in tasks), strict=True)
