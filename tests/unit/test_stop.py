"""The stop of a run with too many failures: what is cancelled, what may finish, and when the run goes on."""

from __future__ import annotations

import pytest
from tests.spans import MAX, held_by, span

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.core import MasterCore
from mwpy._core.master.state import Actions, CancelTasks, GoOn, MasterSettings, Received, Running, Stopped
from mwpy._transport.codec import Codec
from mwpy._values import groups, messages
from mwpy._values.errors import TaskCancelled
from mwpy._values.policy import MaxFailures

FAILURE = Codec().dumps_failure(ValueError("wrong"))


class Master:
    """A master with one agent and one slave, which is sent four tasks at a time."""

    def __init__(self, limit: MaxFailures) -> None:
        self.core = MasterCore(MasterSettings("m", "g", task_group=4, max_call_bytes=5, max_failures=limit))
        self.core.definitions.add(Defined(MAX))
        self.receive(messages.Hello("m", "g", "host", 1, "3.11", 1))
        self.receive(messages.SlaveReady(1))
        self.turn()

    def receive(self, message: messages.Message, *frames: bytes) -> None:
        self.core.handle(Received(b"a", "here", message, frames), 0.0)

    def turn(self) -> Actions:
        self.core.decide(0.0)
        self.core.check()
        return self.core.take_actions()

    def submit(self, first: int, count: int, payload: bytes = b"x") -> Actions:
        self.core.submit([span(first, MAX, count, payload)])
        return self.turn()

    def fail(self, first: int, count: int) -> Actions:
        """The slave reports that consecutive tasks failed."""
        group = messages.Results(1, [first], [count], [1], [0.1] * count, [*range(count)])
        self.receive(group, groups.payload(count, [FAILURE] * count))
        return self.turn()

    def go_on(self) -> Actions:
        self.command = GoOn()
        self.core.obey(self.command)
        return self.turn()

    @property
    def held(self) -> list[int]:
        return held_by(self.core, "SLAVE-0")


def cancelled(actions: Actions) -> list[int]:
    return [result.task_id for result in actions.results if isinstance(result.error, TaskCancelled)]


def sent(actions: Actions) -> list[messages.Message]:
    return [send.message for send in actions.sends]


def test_at_the_last_failure_all_tasks_are_cancelled_and_those_that_run_are_killed() -> None:
    """One message says so to the agent, and a notice to the user."""
    master = Master(MaxFailures(2))
    master.submit(1, 9)
    assert master.fail(1, 1).stopped is None
    held = master.held
    actions = master.fail(2, 1)
    assert actions.stopped == Stopped(2, 2)
    assert sorted(cancelled(actions)) == [3, 4, 5, 6, 7, 8, 9]
    [(_, unended)] = actions.cancelled
    assert unended == [3, 4, 5, 6, 7, 8, 9]
    [message] = sent(actions)
    assert isinstance(message, messages.Cancel)
    assert message.kill
    assert held[1:] == [
        number
        for first, many in zip(message.tasks, message.counts, strict=True)
        for number in range(first, first + many)
    ]
    assert "the run is stopped: 2 of 2 ended tasks failed (max_failures=2)" in str(actions.records)
    assert (master.held, master.core.state.jar.runnable) == ([], 0)


def test_tasks_are_cancelled_until_the_algorithm_knows_of_the_stop() -> None:
    """The answer names all tasks that did not run. Tasks that come later run, and failures are counted again."""
    master = Master(MaxFailures(2))
    master.submit(1, 4)
    assert cancelled(master.fail(1, 2)) == [3, 4]
    actions = master.submit(5, 2)
    assert (cancelled(actions), sent(actions), actions.stopped) == ([5, 6], [], None)
    assert master.go_on().cancelled == [(master.command, [3, 4, 5, 6])]
    master.submit(7, 3)
    assert master.held == [7, 8, 9]
    assert master.fail(7, 1).stopped is None
    assert master.fail(8, 1).stopped == Stopped(2, 2)


def test_with_finish_the_stop_ends_when_the_running_tasks_have_ended() -> None:
    """The agent gives back what has not started, and this is cancelled."""
    master = Master(MaxFailures(1, finish=True))
    master.submit(1, 6)
    actions = master.fail(1, 1)
    assert cancelled(actions) == [5, 6]
    assert sent(actions) == [messages.Cancel([2], [3], kill=False)]
    assert master.held == [2, 3, 4]
    assert not master.go_on().cancelled
    master.receive(messages.Revoked(1, [3], [2], [1], cancelled=True))
    actions = master.turn()
    assert (cancelled(actions), actions.cancelled) == ([3, 4], [])
    actions = master.fail(2, 1)
    assert actions.cancelled == [(master.command, [3, 4, 5, 6])]
    assert actions.stopped is None, "the running task failed after the stop"


def test_cancelled_tasks_are_no_failures_and_no_ended_tasks() -> None:
    """Otherwise a percentage would mean nothing after a cancellation."""
    master = Master(MaxFailures(50, is_percentage=True))
    master.submit(1, 4)
    master.core.obey(CancelTasks([(1, 4)], Running.KILL))
    master.turn()
    for first in range(5, 105, 4):
        master.submit(first, 4)
        actions = master.fail(first, 4)
    assert actions.stopped == Stopped(100, 100)


@pytest.mark.parametrize("count", [1, 2])
def test_tasks_that_are_too_large_and_unrunnable_tasks_are_failures(count: int) -> None:
    master = Master(MaxFailures(2))
    actions = master.submit(1, count, b"too large")
    assert (actions.stopped is not None) is (count == 2)


def test_a_second_command_gets_an_answer_too() -> None:
    """An interrupt may end the wait for the first answer."""
    master = Master(MaxFailures(2))
    assert master.go_on().cancelled == [(master.command, [])]
