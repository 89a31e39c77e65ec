"""Definitions: what agents are sent, what they must forget, what the master forgets, and what that costs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.driven import Driven
from tests.spans import defined

from mwpy._core.master.algorithms import OVERHEAD_BYTES
from mwpy._values import messages, records

SIZE = OVERHEAD_BYTES + 1


def by_value(number: int) -> records.AlgorithmDefined:
    """A function by value with a pickle of one byte."""
    return defined(number, "f", reference="", function=bytes([number]))


Changes = tuple[list[tuple[list[int], list[int]]], list[int]]


class Master(Driven):
    """A master with room for two functions by value, and an agent with one slave."""

    def __init__(self, slaves: int = 1) -> None:
        super().__init__([], max_definition_bytes=2 * SIZE)
        self.receive(messages.Hello("m", "g", "host", 1, "3.11", slaves))
        self.receive(messages.SlaveReady(1))

    def changes(self) -> Changes:
        """Which definitions the last step has sent and made agents forget, and what the master has forgotten."""
        sent = [
            ([each.number for each in send.message.definitions], send.message.forgotten)
            for send in self.actions.sends
            if isinstance(send.message, messages.Algorithms)
        ]
        return sent, [number for each in self.of(records.AlgorithmsForgotten) for number in each.numbers]

    def run(self, number: int) -> Changes:
        """Run a task of a function by value. Return what `changes` returns, of both steps."""
        task = self.submit(algorithm=by_value(number))
        sent, forgotten = self.changes()
        self.finish(task)
        return sent, forgotten + self.changes()[1]

    @property
    def known(self) -> set[int]:
        """What the agent knows."""
        return {*self.core.state.members.agents["AGENT-0"].known}


@pytest.fixture
def master() -> Master:
    return Master()


def test_the_least_recently_used_functions_are_forgotten_at_agents_and_in_the_master(master: Master) -> None:
    """Functions by name are kept. A function that was forgotten is defined and sent again."""
    master.submit(algorithm=defined(100, "max"))
    assert master.changes() == ([([100], [])], [])
    master.finish(1)
    assert master.run(1) == ([([1], [])], [])
    assert master.run(2) == ([([2], [])], [])
    assert master.run(1) == ([], [])
    assert master.run(3) == ([([3], [2])], [2])
    assert master.run(1) == ([], [])
    assert master.run(2) == ([([2], [3])], [3])
    assert [*master.core.state.jar.algorithms.defined] == [100, 1, 2]
    assert master.known == {100, 1, 2}


def test_what_tasks_need_is_kept_even_if_it_is_too_large(master: Master) -> None:
    """The master keeps what pending tasks need, and an agent what its slaves need for the tasks that they hold."""
    for number in (1, 2, 3, 4):
        master.submit(algorithm=by_value(number))
    assert master.known == {1}
    master.finish(1)
    assert master.changes() == ([([2], [1])], [1])
    master.core.state.settings = replace(master.core.state.settings, max_definition_bytes=SIZE)
    master.core.state.members.pace |= {3: 0.001, 4: 0.001}
    master.finish(2)
    assert master.changes() == ([([3], [2]), ([4], [])], [2])
    assert master.known == {3, 4}
    master.finish(3)
    assert master.changes() == ([], [3])


def test_an_agent_keeps_what_a_slave_needs_for_a_task_that_was_given_to_another_agent() -> None:
    master = Master(slaves=2)
    master.submit(algorithm=by_value(1))
    master.join(b"b")
    [slave, _] = master.core.state.members.slaves.values()
    master.core.state.give_away(slave, [*slave.held.spans], "it takes long")
    master.step()
    assert master.changes() == ([([1], [])], [])
    master.receive(messages.SlaveReady(2))
    for number, forgotten in (2, []), (3, [2]):
        task = master.submit(algorithm=by_value(number))
        assert master.changes()[0] == [([number], forgotten)]
        master.finish(task, slave=2)


def test_what_was_learned_of_a_forgotten_algorithm_is_forgotten_too(master: Master) -> None:
    """A late report of an agent about it is ignored. A number that was never defined is the agent's fault."""
    master.run(1)
    members = master.core.state.members
    agent, [slave] = members.agents["AGENT-0"], members.slaves.values()
    refuses = messages.AlgorithmFailed(1, 1, "no numpy", [], [], [])
    master.receive(refuses)
    assert (1 in members.pace, 1 in slave.pace, agent.refused) == (True, True, {1: "no numpy"})
    master.join(b"b")
    for number in (2, 3):
        master.submit(algorithm=by_value(number))
    assert 1 not in master.core.state.jar.algorithms.defined
    assert (1 in members.pace, 1 in slave.pace, agent.refused) == (False, False, {})
    master.receive(refuses)
    assert (slave.refused, agent.refused) == ({}, {})
    master.receive(replace(refuses, number=4))
    [dropped] = master.of(records.PeerDropped)
    assert "never defined" in dropped.reason
