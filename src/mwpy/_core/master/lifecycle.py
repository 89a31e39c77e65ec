"""The lifecycle of a task.

The table `TRANSITIONS` says what each event does to a task in each state. A transition that the table does not have is
an internal error. Only the taskjar and its parts move tasks.
"""

from __future__ import annotations

from collections.abc import Sequence

from mwpy._core.master.spans import Span
from mwpy._values.errors import InternalError
from mwpy._values.plain_enum import PlainEnum
from mwpy._values.task import TaskState

__all__ = ["TRANSITIONS", "TaskEvent", "move"]


class TaskEvent(PlainEnum):
    """What can happen to a task."""

    SUBMIT = "submit"
    BLOCK = "submit with references"
    UNBLOCK = "get all values"
    FAIL = "fail before it is pending"
    ALLOCATE = "allocate"
    FINISH = "finish"
    RETURN = "return"
    DELAY = "return for later"
    AWAIT = "wait for an agent of a former generation"
    BE_DUE = "be due"
    REPEAT = "start another attempt"
    END_ONE = "end one of several attempts"
    GIVE_UP = "give up"
    LET_FINISH = "let finish"
    CANCEL = "cancel"
    REUSE = "be answered from the run database"
    FORBID = "be refused a second execution"
    TAKE_OVER = "be answered by a former generation"


_NEW, _BLOCKED, _PENDING, _ALLOCATED = TaskState.NEW, TaskState.BLOCKED, TaskState.PENDING, TaskState.ALLOCATED
_FINISHED, _UNRUNNABLE = TaskState.FINISHED, TaskState.UNRUNNABLE
_DELAYED, _CANCELLING, _CANCELLED = TaskState.DELAYED, TaskState.CANCELLING, TaskState.CANCELLED

TRANSITIONS: dict[TaskEvent, dict[TaskState, TaskState]] = {
    TaskEvent.SUBMIT: {_NEW: _PENDING},
    TaskEvent.BLOCK: {_NEW: _BLOCKED},
    TaskEvent.UNBLOCK: {_BLOCKED: _PENDING},
    TaskEvent.FAIL: {_NEW: _FINISHED, _BLOCKED: _FINISHED},
    TaskEvent.ALLOCATE: {_PENDING: _ALLOCATED},
    TaskEvent.FINISH: {_ALLOCATED: _FINISHED, _CANCELLING: _FINISHED},
    TaskEvent.RETURN: {_ALLOCATED: _PENDING},
    TaskEvent.DELAY: {_ALLOCATED: _DELAYED},
    TaskEvent.AWAIT: {_PENDING: _DELAYED},
    TaskEvent.BE_DUE: {_DELAYED: _PENDING},
    TaskEvent.REPEAT: {_ALLOCATED: _ALLOCATED},
    TaskEvent.END_ONE: {_ALLOCATED: _ALLOCATED, _CANCELLING: _CANCELLING},
    TaskEvent.GIVE_UP: {_PENDING: _UNRUNNABLE, _ALLOCATED: _UNRUNNABLE, _DELAYED: _UNRUNNABLE},
    TaskEvent.LET_FINISH: {_ALLOCATED: _CANCELLING},
    TaskEvent.CANCEL: {
        _BLOCKED: _CANCELLED,
        _PENDING: _CANCELLED,
        _ALLOCATED: _CANCELLED,
        _CANCELLING: _CANCELLED,
        _DELAYED: _CANCELLED,
    },
    TaskEvent.REUSE: {_NEW: _FINISHED},
    TaskEvent.FORBID: {_NEW: _UNRUNNABLE},
    TaskEvent.TAKE_OVER: {
        _BLOCKED: _FINISHED,
        _PENDING: _FINISHED,
        _ALLOCATED: _FINISHED,
        _DELAYED: _FINISHED,
    },
}


def move(spans: Sequence[Span], event: TaskEvent) -> None:
    """Move the tasks of spans along their lifecycle.

    Raises:
        InternalError: the table has no such transition; the fault of mwpy itself.
    """
    transitions = TRANSITIONS[event]
    for span in spans:
        state = transitions.get(span.state)
        if state is None:
            raise InternalError(
                f"{span}: {span.state.name} (attempt {span.attempt} on {span.sid}), which cannot {event.value}"
            )
        span.state = state
