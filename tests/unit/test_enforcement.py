"""Limits of tasks in the agent: when it looks at a slave, when it kills it, and which task is charged."""

from __future__ import annotations

import math

import pytest

from mwpy._core.agent.core import AgentCore
from mwpy._core.agent.enforcement import LOOK_S
from mwpy._core.agent.events import (
    AgentActions,
    AgentSettings,
    ExitSeen,
    Heard,
    MemoryRead,
    Recalled,
    Resumed,
    SlaveExited,
    SlaveHeard,
    Terminated,
)
from mwpy._core.agent.watch import CHECK_S
from mwpy._transport import wire
from mwpy._values import messages
from mwpy._values.causes import Cause
from mwpy._values.last_words import NO_WORDS
from mwpy._values.policy import Limits

REASON = (
    "killed by its agent because it ran task 2 for more than 1.5 s, its seconds_max: raise this limit, or give such "
    "tasks less to do"
)


def heard(message: messages.Message, *payload: bytes) -> Heard:
    return Heard(message, wire.encode(message, payload))


def slave_heard(message: messages.Message, *payload: bytes) -> SlaveHeard:
    return SlaveHeard(1, message, wire.encode(message, payload))


def results(*tasks: int) -> SlaveHeard:
    count = len(tasks)
    group = messages.Results(1, [*tasks], [1] * count, [1] * count, [0.1] * count, [])
    return slave_heard(group, messages.payload(count, [b"\0"] * count))


def send(core: AgentCore, first: int, *seconds: float | None, now: float = 0.0) -> None:
    """The master sends tasks to slave 1, with consecutive ids from `first` on. Each is a span with its own limit."""
    count = len(seconds)
    limits = [None if each is None else Limits(each) for each in seconds]
    firsts = [*range(first, first + count)]
    group = messages.Tasks(1, firsts, [1] * count, [1] * count, [0] * count, limits=limits)
    core.handle(heard(group, b""), now)
    core.take_actions()


def look(core: AgentCore, started: int, began: float, *, at: float | None = None) -> AgentActions:
    """The next moment comes at which the agent looks, at a slave that started a task at `began`."""
    due = core.children[1].look_at
    assert due is not None
    assert at is None or due == at
    core.decide(due)
    assert core.take_actions().check_memory == [1]
    core.handle(MemoryRead(1, started, began, None), due)
    core.check()
    return core.take_actions()


def ends(core: AgentCore, started: int, *, now: float = 9.0) -> messages.SlaveDied:
    """Slave 1 ends. Returns what the master hears."""
    core.handle(ExitSeen(1, by_sigkill=True), now)
    core.decide(now)
    assert core.take_actions().collect == [1]
    core.handle(SlaveExited(1, "its end", NO_WORDS, started), now)
    [died] = [each.message for each in core.take_actions().to_master if isinstance(each.message, messages.SlaveDied)]
    return died


@pytest.fixture
def core() -> AgentCore:
    """An agent with one slave, which is ready. No journal is read."""
    core = AgentCore(AgentSettings(messages.Hello("m", "g", "host", 1, "3.11", slaves=1)))
    core.handle(heard(messages.Welcome("AGENT-0", 1, 1000, 30.0)), 0.0)
    core.handle(heard(messages.Algorithms([messages.AlgorithmDefinition(0, "f", "m:f", "", "3.11")])), 0.0)
    core.handle(slave_heard(messages.SlaveReady(1)), 0.0)
    core.take_actions()
    return core


def test_a_task_without_a_limit_is_never_looked_at(core: AgentCore) -> None:
    send(core, 1, None, None)
    assert core.children[1].look_at is None
    assert core.next_deadline() == CHECK_S


def test_a_slave_is_killed_if_its_task_is_over_its_limit(core: AgentCore) -> None:
    """The agent looks when the shortest limit has passed, and then when the task is over its limit."""
    send(core, 1, 2.5, 1.5, None)
    assert look(core, 2, 0.5, at=1.5) == AgentActions()
    actions = look(core, 2, 0.5, at=2.0)
    assert (actions.recall, actions.kill) == ([(1, None)], [])
    core.handle(Recalled(1, 2, None), 2.001)
    actions = core.take_actions()
    assert (actions.kill, actions.to_slaves) == ([1], [])
    died = ends(core, 2)
    assert died == messages.SlaveDied(1, 2, Cause.TIME_LIMIT, REASON, NO_WORDS, [(1, 1, 1)])


def test_the_time_of_a_stop_is_not_counted(core: AgentCore) -> None:
    """A batch system may suspend a job with all its processes. A stop before the task began has no effect."""
    core.handle(Resumed(50.0), 0.25)
    send(core, 1, 1.0, now=0.25)
    core.handle(Resumed(100.0), 100.75)
    assert look(core, 1, 0.5, at=1.25).recall == []
    core.handle(MemoryRead(1, 1, 0.5, None), 101.25)
    assert core.take_actions().recall == []
    core.handle(MemoryRead(1, 1, 0.5, None), 101.5)
    assert core.take_actions().recall == [(1, None)]


def test_a_task_that_finishes_at_the_last_moment_costs_nothing(core: AgentCore) -> None:
    """The slave has started the next task when the agent stops it. It goes on, and the next task is watched."""
    send(core, 1, 1.0, 1.0)
    assert look(core, 1, 0.0625, at=1.0) == AgentActions()
    assert look(core, 1, 0.0625, at=1.0625).recall == [(1, None)]
    core.handle(Recalled(1, 2, None), 1.07)
    actions = core.take_actions()
    assert actions.kill == []
    assert [each.message for _, each in actions.to_slaves] == [messages.Revoked(1, [], [], [])]
    assert look(core, 2, 1.0625, at=2.0625).recall == [(1, None)]


def test_a_result_that_the_slave_left_behind_counts(core: AgentCore) -> None:
    """The task finished between the recall and the kill. Nobody is charged."""
    send(core, 1, None, 1.0)
    assert look(core, 2, 0.0, at=1.0) == AgentActions()
    assert look(core, 2, 0.5, at=2.0).recall == [(1, None)]
    core.handle(Recalled(1, 2, None), 2.0)
    core.take_actions()
    core.handle(results(1, 2), 2.0)
    assert [type(each.message) for each in core.take_actions().to_master] == [messages.Results]
    assert ends(core, 2).running == 0


def test_a_slave_that_has_ended_is_not_looked_at(core: AgentCore) -> None:
    """Neither is one that is killed for another reason."""
    send(core, 1, 1.0)
    core.handle(ExitSeen(1, by_sigkill=True), 0.5)
    assert core.children[1].look_at is None
    core.handle(MemoryRead(1, 1, 0.25, 0), 2.0)
    actions = core.take_actions()
    assert (actions.recall, core.children[1].look_at) == ([], None)


def test_tasks_that_were_taken_back_or_have_finished_are_not_looked_at(core: AgentCore) -> None:
    send(core, 1, 1.0, 1.0)
    core.handle(results(1), 0.5)
    core.handle(heard(messages.Cancel([2], [1], kill=True)), 0.5)
    core.handle(Recalled(1, 1, messages.Cancel([2], [1], kill=True)), 0.5)
    core.take_actions()
    assert look(core, 1, 0.0, at=1.0) == AgentActions()
    assert core.children[1].look_at is None


def test_a_slave_that_runs_no_task_with_a_limit_is_looked_at_again(core: AgentCore) -> None:
    """It runs the task before. The task behind it cannot be over its limit before this limit has passed."""
    send(core, 1, None, 1.0)
    for number in range(1, 20):
        assert look(core, 1, 0.0, at=float(number)) == AgentActions()


def test_new_tasks_with_a_shorter_limit_are_looked_at_earlier(core: AgentCore) -> None:
    send(core, 1, 60.0)
    send(core, 2, 600.0, None, now=1.0)
    assert core.children[1].look_at == 60.0
    send(core, 4, 0.5, now=2.0)
    assert look(core, 1, 0.25, at=2.5) == AgentActions()
    assert core.children[1].look_at == 3.0


def test_a_tiny_limit_does_not_keep_the_agent_busy(core: AgentCore) -> None:
    send(core, 1, 1e-6, None)
    assert look(core, 1, 0.0, at=LOOK_S) == AgentActions()
    assert core.children[1].look_at == 2 * LOOK_S


def test_a_slave_that_is_not_ready_gets_no_tasks_and_is_not_looked_at(core: AgentCore) -> None:
    core.handle(Terminated("evicted"), 0.0)
    send(core, 1, 1.0)
    assert core.children[1].look_at is None


@pytest.mark.parametrize("began", [math.nan, math.inf, -1.0, 0.5, 2.5])
def test_a_slave_that_writes_an_impossible_time_is_killed(began: float) -> None:
    """A task began neither before its slave was started nor in the future."""
    core = AgentCore(AgentSettings(messages.Hello("m", "g", "host", 1, "3.11", slaves=1)))
    core.handle(heard(messages.Welcome("AGENT-0", 1, 1000, 30.0)), 1.0)
    core.handle(slave_heard(messages.SlaveReady(1)), 1.0)
    send(core, 1, 1.0, now=1.0)
    assert look(core, 1, began, at=2.0).kill == [1]
    died = ends(core, 1)
    assert (died.running, died.cause) == (1, Cause.CRASH)
    assert "it says that its task began at an impossible time" in died.reason


def test_a_slave_that_says_nonsense_about_its_task_is_not_looked_at(core: AgentCore) -> None:
    """The same holds if the results of its tasks are lost."""
    send(core, 1, 9.0, 9.0)
    core.handle(MemoryRead(1, 2, 0.5, 0), 9.0)
    core.handle(MemoryRead(1, 2, 0.5, 0), 12.0)
    actions = core.take_actions()
    assert (actions.kill, actions.recall) == ([1], [])
