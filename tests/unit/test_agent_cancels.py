"""Cancelling in the agent: which tasks it takes back, when it kills a slave, and what the master gets."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.driven_agent import (
    WELCOME,
    agent,
    heard,
    held,
    results,
    slave_heard,
    tasks,
    to_master,
    to_slaves,
    with_slaves,
)

from mwpy._core.agent.child import (
    OVERWROTE,
    UNREADABLE,
    AgentActions,
    ExitSeen,
    Nonsense,
    Recalled,
    SlaveExited,
    Terminated,
)
from mwpy._core.agent.core import AgentCore
from mwpy._core.agent.traffic import SPARED_S
from mwpy._transport import wire
from mwpy._values import groups, messages
from mwpy._values.bounds import MAX_TASKS
from mwpy._values.causes import Cause
from mwpy._values.errors import ExitCode
from mwpy._values.last_words import NO_WORDS

KILLED = "killed by its agent because it ran task 2, whose result is not wanted any more"


def cancel(core: AgentCore, started: int, *tasks: int, kill: bool = True, now: float = 0.0) -> AgentActions:
    """The master cancels tasks when slave 1 has started the task at a position, and perhaps finished it."""
    message = messages.Cancel([*tasks], [1] * len(tasks), kill)
    core.handle(heard(message), now)
    assert core.take_actions().recall == [(1, message)]
    core.handle(Recalled(1, started, message), now)
    return core.take_actions()


def look(core: AgentCore, started: int) -> AgentActions:
    """The time is over that a slave gets to finish a cancelled task: let the agent look."""
    due = core.next_deadline()
    assert due is not None
    core.decide(due)
    assert core.take_actions().recall == [(1, None)]
    core.handle(Recalled(1, started, None), due)
    return core.take_actions()


@pytest.fixture
def core() -> AgentCore:
    """An agent with two slaves. Slave 1 holds the tasks 1 to 5, and slave 2 holds task 9. No journal is read."""
    core = agent(replace(WELCOME, result_group=1), with_slaves(2))
    core.handle(tasks(1, 2, 3, 4, 5), 0.0)
    core.handle(tasks(9, slave=2), 0.0)
    core.take_actions()
    return core


def test_a_recall_of_a_slave_that_was_given_up_changes_nothing(core: AgentCore) -> None:
    """The agent was frozen while it left. Now its time is over, and the last slave is broken."""
    core.handle(Terminated("SIGTERM", Cause.EVICTED), 0.0)
    core.handle(SlaveExited(2, "exit code 0", NO_WORDS, 0), 0.0)
    core.take_actions()
    message = messages.Cancel([2], [1], True)
    core.handle(heard(message), 100.0)
    core.handle(Nonsense(1, UNREADABLE, "nonsense"), 100.0)
    core.decide(100.0)
    actions = core.take_actions()
    assert actions.recall == [(1, message)]
    core.handle(Recalled(1, 2, message), 100.0)
    assert isinstance(to_master(actions)[-1], messages.Goodbye)
    assert actions.exit is ExitCode.EVICTED


def test_a_slave_that_has_started_the_next_task_is_not_killed(core: AgentCore) -> None:
    """The result of the cancelled task may still be in its journal."""
    cancel(core, 2, 2)
    actions = look(core, 3)
    assert (actions.kill, to_slaves(actions)) == ([], [(1, messages.Revoked(1, [], [], []))])
    assert to_master(actions) == []
    assert core.next_deadline() is None


@pytest.mark.parametrize("how", ["result", "refusal"])
def test_a_slave_whose_cancelled_task_ends_in_time_is_not_killed(core: AgentCore, how: str) -> None:
    """The result of the cancelled task is not passed on. Results of other tasks are."""
    cancel(core, 2, 2)
    if how == "result":
        core.handle(results(1, 2), 0.0)
        [message] = to_master(core.take_actions())
        assert isinstance(message, messages.Results)
        assert list(groups.each_task(message)) == [(1, 1)]
    else:
        core.handle(slave_heard(messages.AlgorithmFailed(1, 0, "cannot", [2], [1], [1])), 0.0)
    assert core.next_deadline() is None


def test_more_cancelled_tasks_than_one_message_can_name_are_recalled_again(core: AgentCore) -> None:
    """Slave and master get one message for each recall. A task that starts between two recalls may finish."""
    ids = [*range(11, 11 + 2 * MAX_TASKS + 20, 2)]
    core.handle(tasks(*ids, slave=2), 0.0)
    core.take_actions()
    message = messages.Cancel(ids, [1] * len(ids), kill=False)
    revoked = []
    for started in (1, 1 + MAX_TASKS + 1):
        core.handle(Recalled(2, started, message), 0.0)
        actions = core.take_actions()
        [sent] = to_master(actions)
        assert to_slaves(actions) == [(2, sent)]
        wire.decode(wire.encode(sent), wire.FROM_AGENT)
        assert isinstance(sent, messages.Revoked)
        revoked += sent.tasks
        assert actions.recall == ([(2, message)] if started == 1 else [])
    assert revoked == [*ids[:MAX_TASKS], *ids[MAX_TASKS + 1 :]]
    assert held(core, 2) == [9, ids[MAX_TASKS]]


def test_a_slave_that_names_any_number_of_tasks_does_not_stall_its_agent(core: AgentCore) -> None:
    """The agent checks whether the cancelled task is among them."""
    cancel(core, 2, 2)
    core.handle(slave_heard(messages.AlgorithmFailed(1, 0, "cannot", [3], [1 << 60], [1])), 0.0)
    assert (held(core), core.next_deadline()) == ([1], SPARED_S)


@pytest.mark.parametrize("started", [2, 1 << 60])
def test_a_slave_that_was_killed_for_a_cancelled_task_is_charged_with_nothing_else(
    core: AgentCore, started: int
) -> None:
    """The agent knows which task it ran. What is in its memory or stream afterwards does not count."""
    cancel(core, 2, 2)
    assert look(core, 2).kill == [1]
    core.handle(Nonsense(1, UNREADABLE, "no message"), 0.2)
    core.handle(ExitSeen(1, by_sigkill=True), 0.2)
    core.handle(Nonsense(1, OVERWROTE, "numbers have changed"), 0.2)
    core.handle(SlaveExited(1, "killed by signal 9", NO_WORDS, started), 0.2)
    actions = core.take_actions()
    assert actions.kill == []
    assert to_master(actions) == [messages.SlaveDied(1, 0, Cause.CANCELLED, KILLED, NO_WORDS, [(1, 1, 1)])]


def test_a_slave_that_is_not_trusted_gets_no_answer_to_a_recall(core: AgentCore) -> None:
    """It is killed. Its end names the first task that it held, although this task is cancelled."""
    message = messages.Cancel([1], [1], kill=True)
    core.handle(heard(message), 0.0)
    core.handle(Nonsense(1, OVERWROTE, "numbers have changed"), 0.0)
    core.take_actions()
    core.handle(Recalled(1, 1, message), 0.0)
    actions = core.take_actions()
    assert (to_slaves(actions), to_master(actions), actions.kill) == ([], [], [])
    core.handle(SlaveExited(1, "killed by signal 9", NO_WORDS, 1), 0.0)
    [died] = to_master(core.take_actions())
    assert isinstance(died, messages.SlaveDied)
    assert died.running == 1
