"""Tasks that a slave has finished, and whose results wait behind a long task, are given back to the master."""

from __future__ import annotations

import pytest
from tests.driven_agent import agent, results, slave_heard, tasks

from mwpy._core.agent.child import AgentActions, Looked
from mwpy._core.agent.core import AgentCore
from mwpy._core.agent.limits import SILENT_S
from mwpy._core.agent.traffic import AGAIN_S
from mwpy._values import messages


@pytest.fixture
def core() -> AgentCore:
    """Slave 1 holds the tasks 1 to 4, 5 to 8 of a portion, and 9 to 12 of another."""
    core = agent()
    for first, kind in ((1, 0), (5, 1), (9, 1)):
        core.handle(tasks(*range(first, first + 4), portions=[kind]), 1.0)
    core.handle(results(1, 4), 1.0)
    core.take_actions()
    return core


def look(number: int) -> float:
    """When the agent looks for the results of the silent slave, for the first or a later time."""
    return 1.0 + SILENT_S + (number - 1) * AGAIN_S


def silent(core: AgentCore, started: int, now: float) -> AgentActions:
    """The journal is read and empty, while the slave runs the task at this position."""
    core.decide(now)
    assert core.take_actions().look == [1], "nobody looks at the slave"
    core.handle(Looked(1, started), now)
    return core.take_actions()


def test_they_are_given_back_if_the_slave_stays_at_its_task(core: AgentCore) -> None:
    """The task that runs is not given back, and no later one."""
    assert not silent(core, 6, look(1)).to_master
    [outgoing] = silent(core, 6, look(2)).to_master
    assert outgoing.message == messages.Revoked(1, [5], [1], [1], late=True)
    core.decide(look(3))
    assert not core.take_actions().look


def test_the_newest_state_of_a_task_arrives_before_the_task_is_given_back(core: AgentCore) -> None:
    """Its next attempt begins with this state."""
    for task in (5, 6):
        core.handle(slave_heard(messages.Checkpoint(1, task, 1), b"state"), 1.0)
        core.decide(1.0)
    first = core.take_actions().to_master
    silent(core, 7, look(1))
    second = silent(core, 7, look(2)).to_master
    sent = [outgoing.message for outgoing in (*first, *second)]
    assert sent[-2:] == [messages.Checkpoint(1, 6, 1), messages.Revoked(1, [5], [2], [1], late=True)]


def test_the_states_of_a_task_do_not_hide_the_results_that_wait_behind_it(core: AgentCore) -> None:
    """A slave sends the results of its journal before a state, but not those of a stretch."""
    for number in (1, 2):
        core.handle(slave_heard(messages.Checkpoint(1, 6, 1), b"state"), look(number) - 0.001)
        core.take_actions()
        sent = silent(core, 6, look(number)).to_master
    assert sent[-1].message == messages.Revoked(1, [5], [1], [1], late=True)


def test_nonsense_in_the_memory_gives_nothing_back(core: AgentCore) -> None:
    silent(core, 99, look(1))
    core.decide(look(2))
    assert not core.take_actions().look
