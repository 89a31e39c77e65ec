"""The states of a task: each event in each state moves the task as the table says, or is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from attrs import define, field
from tests.master_state import Books

from mwpy._core.master.lifecycle import TRANSITIONS, TaskEvent
from mwpy._core.master.members import ConnectedSlave
from mwpy._core.master.spans import Span
from mwpy._values import records
from mwpy._values.causes import Cause
from mwpy._values.errors import InternalError
from mwpy._values.groups import payload
from mwpy._values.messages import Results
from mwpy._values.policy import TaskPolicy
from mwpy._values.records import TaskRange
from mwpy._values.task import TaskState

_E, _S = TaskEvent, TaskState


@define(eq=False)
class Story:
    """A task in some state, and two slaves. The first slave has the task, if a slave has it."""

    books: Books = field(factory=Books)
    slaves: list[ConnectedSlave] = field(factory=list)
    refers: Sequence[int] = ()
    """The ids of ended tasks to whose results it refers."""

    def __attrs_post_init__(self) -> None:
        self.slaves += [self.books.slave(), self.books.slave()]
        self.books.submit(1, policy=TaskPolicy(speculate=True, keep=True), refers=self.refers)
        for number in self.refers:
            self.books.state.record(records.ResultGiven(number, [b"\0"], "", 0))

    @property
    def live(self) -> list[Span]:
        """What is in the jar of the task: one span, or several if several attempts live."""
        return [*self.books.state.jar.spans(), *self.books.state.jar.kept.tasks.values()]

    def named(self, attempt: int | None = None) -> TaskRange:
        """The task in an attempt, by default in its oldest live one."""
        return TaskRange(1, 1, self.live[0].attempt if attempt is None else attempt, 0, "max")

    def happen(self, event: TaskEvent) -> list[Span]:
        """Record an event."""
        return self.books.state.record(RECORDS[event](self))

    @property
    def holds(self) -> bool:
        """Whether a slave has the task."""
        return self.live[0].sid is not None


def _results(story: Story) -> records.Record:
    if story.live[0].state in (_S.ANSWERED, _S.REPEATING):
        return records.AnswersGiven([story.named(1)], "why", is_sure=False)
    group = Results(1, [1], [1], [story.named().attempt], [0.1], [])
    return records.ResultsReceived(story.slaves[0].sid, group, [payload(1, [b"\0"])])


def _kept(story: Story) -> records.Record:
    group = Results(1, [1], [1], [story.named().attempt], [0.1], [])
    return records.AnswersKept(story.slaves[0].sid, "host", group, [payload(1, [b"\0"])])


def _stored(story: Story) -> records.Record:
    group = Results(1, [1], [1], [story.named().attempt], [0.1], [], kept=[(0, 64)])
    return records.ResultsReceived(story.slaves[0].sid, group, [payload(1, [b"\xc0"])], "AGENT-0")


def _taken_over(story: Story) -> records.Record:
    group = Results(1, [1], [1], [story.named().attempt], [0.1], [])
    sid = story.slaves[0].sid if story.holds else None
    return records.TasksAnswered(sid, [story.named()], group, [payload(1, [b"\0"])])


def _cancelled(story: Story, *, again: bool) -> records.Record:
    """The same record is another event if the task runs again."""
    if story.live[0].runs_again is not again or story.live[0].state is _S.KEPT:
        raise KeyError
    return records.TasksCancelled(story.slaves[0].sid if story.holds else None, [story.named()], "why")


def _lost(story: Story) -> None:
    """If the task is kept, its value is lost."""
    jar = story.books.state.jar
    if 1 in jar.kept.tasks and 1 not in jar.blocked.lost:
        story.books.state.record(records.ValuesLost("AGENT-0", [1], "why"))


def _again(story: Story, *, waits: bool) -> records.Record:
    """A kept task is pending again, or waits for lost values to which it refers."""
    if story.live[0].state is not _S.KEPT:
        if waits and story.live[0].state is _S.PENDING:
            return records.TasksBlocked([story.named()])
        raise KeyError
    _lost(story)
    if waits:
        story.books.state.record(records.ResultsHeld([18]))
        story.live[0].refers = [18]
    return records.TasksRecomputed([story.named()])


def _sent(story: Story, *, again: bool) -> records.Record:
    """The same record is another event if the task has an answer."""
    if (story.live[0].state is _S.ANSWERED) is not again:
        raise KeyError
    return records.TasksAllocated(story.slaves[0].sid, [story.named(2 if again else 1)])


def _failed(story: Story) -> records.Record:
    """The tasks of this record need not be in the jar, but one that is there must be blocked."""
    if story.live[0].state is not _S.BLOCKED:
        raise KeyError
    return records.TasksFailed([story.named()], "why")


RECORDS: dict[TaskEvent, Callable[[Story], records.Record]] = {
    _E.UNBLOCK: lambda story: records.TasksUnblocked([story.named()]),
    _E.FAIL: _failed,
    _E.ALLOCATE: lambda story: _sent(story, again=False),
    _E.KEEP: _kept,
    _E.VERIFY: lambda story: _sent(story, again=True),
    _E.FINISH: _results,
    _E.RETURN: lambda story: records.TasksReturned(story.slaves[0].sid, [story.named()], "why"),
    _E.DELAY: lambda story: records.TasksReturned(story.slaves[0].sid, [story.named()], "why", (), 1.0),
    _E.AWAIT: lambda story: records.TasksAwaited([story.named()]),
    _E.BE_DUE: lambda story: records.TasksDue([story.named()]),
    _E.REPEAT: lambda story: records.AttemptsStarted(story.slaves[1].sid, [story.named(2)], story.slaves[0].sid, "why"),
    _E.END_ONE: lambda story: records.AttemptsEnded(story.slaves[0].sid, [story.named()], "why"),
    _E.GIVE_UP: lambda story: records.TasksGivenUp(story.slaves[0].sid, story.holds, [story.named()], "why"),
    _E.LET_FINISH: lambda story: records.TasksCancelling(story.slaves[0].sid, [story.named()]),
    _E.CANCEL: lambda story: _cancelled(story, again=False),
    _E.TAKE_OVER: _taken_over,
    _E.STORE: _stored,
    _E.RELEASE: lambda story: records.ValuesReleased([1]),
    _E.RECOMPUTE: lambda story: _again(story, waits=False),
    _E.WAIT: lambda story: _again(story, waits=True),
    _E.STOP: lambda story: _cancelled(story, again=True),
}
"""How each event is recorded, except those of new tasks."""

WAYS: dict[str, tuple[TaskState, list[TaskEvent]]] = {
    "blocked": (_S.BLOCKED, []),
    "unblocked": (_S.PENDING, [_E.UNBLOCK]),
    "pending": (_S.PENDING, []),
    "allocated": (_S.ALLOCATED, [_E.ALLOCATE]),
    "delayed": (_S.DELAYED, [_E.ALLOCATE, _E.DELAY]),
    "cancelling": (_S.CANCELLING, [_E.ALLOCATE, _E.LET_FINISH]),
    "answered": (_S.ANSWERED, [_E.ALLOCATE, _E.KEEP]),
    "repeating": (_S.REPEATING, [_E.ALLOCATE, _E.KEEP, _E.VERIFY]),
    "kept": (_S.KEPT, [_E.ALLOCATE, _E.STORE]),
}
"""How a task gets into each state in the jar."""


@pytest.mark.parametrize("event", RECORDS, ids=lambda event: event.value)
@pytest.mark.parametrize("way", WAYS)
def test_an_event_moves_a_task_with_one_attempt_as_the_table_says(way: str, event: TaskEvent) -> None:
    """An event that the table does not have in this state is refused, and so is the end of one attempt of one."""
    state, events = WAYS[way]
    story = Story(refers=[17] if way.endswith("blocked") else ())
    for each in events:
        story.happen(each)
    target = None if event in (_E.END_ONE, _E.STOP) else TRANSITIONS[event].get(state)
    if target is None:
        with pytest.raises((InternalError, KeyError)):
            story.happen(event)
        return
    moved = story.happen(event)
    assert [span.state for span in moved or story.live] == [target]
    story.books.state.jar.check()
    ends = target in (_S.FINISHED, _S.UNRUNNABLE, _S.CANCELLED, _S.RELEASED)
    assert len(story.live) == (0 if ends else 2 if event is _E.REPEAT else 1)


def _allocate_again(story: Story) -> None:
    story.books.state.record(records.TasksAllocated(story.slaves[1].sid, [story.named(2)]))


def _delay_again(story: Story) -> None:
    _allocate_again(story)
    story.books.state.record(records.TasksReturned(story.slaves[1].sid, [story.named(2)], "why", (), 1.0))


WAYS_BACK: dict[TaskState, Callable[[Story], None]] = {
    _S.PENDING: lambda story: None,
    _S.BLOCKED: lambda story: None,
    _S.ALLOCATED: _allocate_again,
    _S.DELAYED: _delay_again,
}
"""How a task that runs again gets into each state."""


@pytest.mark.parametrize("state", WAYS_BACK, ids=lambda state: state.value)
def test_a_task_that_runs_again_is_kept_when_this_is_stopped(state: TaskState) -> None:
    assert TRANSITIONS[_E.STOP] == dict.fromkeys(WAYS_BACK, _S.KEPT)
    story = Story()
    for event in (_E.ALLOCATE, _E.STORE, _E.WAIT if state is _S.BLOCKED else _E.RECOMPUTE):
        story.happen(event)
    WAYS_BACK[state](story)
    assert story.live[0].state is state
    sid = story.live[0].sid
    story.books.state.record(records.TasksCancelled(sid, [story.named()], "why"))
    assert story.live[0].state is _S.KEPT
    story.books.state.jar.check()


@pytest.mark.parametrize("cancelling", [False, True])
def test_the_end_of_one_of_several_attempts_leaves_the_task_where_it_was(cancelling: bool) -> None:
    """The other attempt, of the other slave, goes on with its own number. The next attempt has a higher number."""
    story = Story()
    story.happen(_E.ALLOCATE)
    story.happen(_E.REPEAT)
    state = _S.ALLOCATED
    if cancelling:
        state = TRANSITIONS[_E.LET_FINISH][state]
        for slave, attempt in zip(story.slaves, (1, 2), strict=True):
            story.books.state.record(records.TasksCancelling(slave.sid, [story.named(attempt)]))
    story.books.state.jar.check()
    story.happen(_E.END_ONE)
    story.books.state.jar.check()
    [left] = story.live
    assert (left.state, left.attempt, left.sent, left.sid) == (
        TRANSITIONS[_E.END_ONE][state],
        2,
        2,
        story.slaves[1].sid,
    )


def test_every_event_of_the_table_is_in_these_tests() -> None:
    """New tasks are submitted, with references or without, fail, or are found in the file: no other state is left."""
    assert {*RECORDS} | {_E.SUBMIT, _E.BLOCK, _E.REUSE, _E.FORBID} == {*TaskEvent} == {*TRANSITIONS}
    reached = {state for state, _ in WAYS.values()}
    assert {source for steps in TRANSITIONS.values() for source in steps} == reached | {_S.NEW}


def test_more_than_two_attempts_may_live() -> None:
    """The policies allow two, and the jar any number. Each new attempt has the next number, and all share a history."""
    story = Story()
    story.happen(_E.ALLOCATE)
    story.happen(_E.REPEAT)
    third, first = story.books.slave(), story.slaves[0].sid
    story.books.state.record(records.AttemptsStarted(third.sid, [story.named(3)], first, "why"))
    jar = story.books.state.jar
    jar.check()
    assert [(span.attempt, span.sent, span.sid) for span in story.live] == [
        (1, 3, "SLAVE-0"),
        (2, 3, "SLAVE-1"),
        (3, 3, "SLAVE-2"),
    ]
    charge = records.Charge(first, Cause.CRASH, "it died")
    story.books.state.record(records.AttemptsEnded(first, [story.named(1)], "why", (charge,)))
    jar.check()
    assert [[death.attempt for death in span.deaths] for span in story.live] == [[1], [1]]
    assert (jar.num_allocated, jar.runnable) == (1, 1)
