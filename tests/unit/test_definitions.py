"""Definitions: what agents are sent, what they must forget, what the master forgets, and what that costs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from tests.spans import defined, span

from mwpy._core.master.algorithms import OVERHEAD_BYTES
from mwpy._core.master.core import MasterCore
from mwpy._core.master.state import MasterSettings, Received
from mwpy._values import messages, records
from mwpy._values.errors import ProtocolError
from mwpy._values.groups import payload
from mwpy._values.messages import Results

SIZE = OVERHEAD_BYTES + 1


def by_value(number: int) -> records.AlgorithmDefined:
    """A function by value with a pickle of one byte."""
    return defined(number, "f", reference="", function=bytes([number % 256]))


@pytest.fixture
def core() -> MasterCore:
    """A master with room for two functions by value, and an agent with one slave."""
    core = MasterCore(MasterSettings("m", "g", max_definition_bytes=2 * SIZE))
    connect(core)
    return core


def connect(core: MasterCore, peer: bytes = b"a") -> None:
    receive(core, messages.Hello("m", "g", "host", 1, "3.11", 1), peer)
    receive(core, messages.SlaveReady(1), peer)


def receive(core: MasterCore, message: messages.Message, peer: bytes = b"a", *frames: bytes) -> None:
    core.handle(Received(peer, "here", message, frames), 0.0)


def decide(core: MasterCore) -> tuple[list[tuple[list[int], list[int]]], list[int]]:
    """Decide. Return which definitions were sent and had to be forgotten, and what the master itself forgot."""
    core.decide(0.0)
    core.check()
    actions = core.take_actions()
    sent = [
        ([each.number for each in send.message.definitions], send.message.forgotten)
        for send in actions.sends
        if isinstance(send.message, messages.Algorithms)
    ]
    forgotten = [each.numbers for each in actions.records if isinstance(each, records.AlgorithmsForgotten)]
    return sent, [number for numbers in forgotten for number in numbers]


def run(core: MasterCore, task: int, number: int) -> tuple[list[tuple[list[int], list[int]]], list[int]]:
    """Submit a task of a function by value, and let the slave run it. Return what `decide` returned."""
    core.submit([span(task, by_value(number))])
    sent, forgotten = decide(core)
    finish(core, task)
    return sent, forgotten + decide(core)[1]


def finish(core: MasterCore, task: int) -> None:
    receive(core, Results(1, [task], [1], [1], [0.1], []), b"a", payload(1, [b"\x07"]))


def test_the_least_recently_used_functions_are_forgotten_at_agents_and_in_the_master(core: MasterCore) -> None:
    """Functions by name are kept. A function that was forgotten is defined and sent again."""
    core.submit([span(1, defined(100, "max"))])
    assert decide(core) == ([([100], [])], [])
    finish(core, 1)
    assert run(core, 2, 1) == ([([1], [])], [])
    assert run(core, 3, 2) == ([([2], [])], [])
    assert run(core, 4, 1) == ([], [])
    assert run(core, 5, 3) == ([([3], [2])], [2])
    assert run(core, 6, 1) == ([], [])
    assert run(core, 7, 2) == ([([2], [3])], [3])
    assert [*core.state.jar.algorithms.defined] == [100, 1, 2]
    assert [*core.state.members.agents["AGENT-0"].known] == [100, 1, 2]


def test_what_tasks_need_is_kept_even_if_it_is_too_large(core: MasterCore) -> None:
    """The master keeps what pending tasks need, and an agent what its slaves need for the tasks that they hold."""
    core.submit([span(number, by_value(number)) for number in (1, 2, 3, 4)])
    assert decide(core) == ([([1], [])], [])
    finish(core, 1)
    assert decide(core) == ([([2], [])], [1])
    core.state.settings = replace(core.state.settings, max_definition_bytes=SIZE)
    core.state.members.pace |= {3: 0.001, 4: 0.001}
    finish(core, 2)
    assert decide(core) == ([([3], [1, 2]), ([4], [])], [2])
    assert core.state.members.agents["AGENT-0"].bytes_by_value == core.state.jar.algorithms.size == 2 * SIZE
    finish(core, 3)
    assert decide(core) == ([], [3])


def test_an_agent_keeps_what_a_slave_needs_for_a_task_that_was_given_to_another_agent() -> None:
    core = MasterCore(MasterSettings("m", "g", max_definition_bytes=2 * SIZE))
    receive(core, messages.Hello("m", "g", "host", 1, "3.11", 2))
    receive(core, messages.SlaveReady(1))
    core.submit([span(1, by_value(1))])
    decide(core)
    connect(core, b"b")
    [slave, _] = core.state.members.slaves.values()
    core.state.give_away(slave, [*slave.held.spans], "it takes long")
    assert decide(core) == ([([1], [])], [])
    receive(core, messages.SlaveReady(2))
    for task, number, forgotten in (2, 2, []), (3, 3, [2]):
        core.submit([span(task, by_value(number))])
        assert decide(core)[0] == [([number], forgotten)]
        receive(core, Results(2, [task], [1], [1], [0.1], []), b"a", payload(1, [b"\x07"]))
        decide(core)


def test_what_was_learned_of_a_forgotten_algorithm_is_forgotten_too(core: MasterCore) -> None:
    """A late report of an agent about it is ignored. A number that was never defined is the agent's fault."""
    run(core, 1, 1)
    members = core.state.members
    receive(core, messages.AlgorithmFailed(1, 1, "no numpy", [], [], []))
    assert (1 in members.pace, 1 in members.slaves[next(iter(members.slaves))].pace) == (True, True)
    assert members.agents["AGENT-0"].refused == {1: "no numpy"}
    connect(core, b"b")
    for task, number in ((2, 2), (3, 3)):
        core.submit([span(task, by_value(number))])
    core.decide(0.0)
    assert 1 not in core.state.jar.algorithms.defined
    assert (1 in members.pace, members.agents["AGENT-0"].refused) == (False, {})
    assert not any(1 in slave.pace for slave in members.slaves.values())
    slave = next(iter(members.slaves.values()))
    core.admission.algorithm_failed(slave, messages.AlgorithmFailed(1, 1, "no numpy", [], [], []))
    assert (slave.refused, members.agents["AGENT-0"].refused) == ({}, {})
    with pytest.raises(ProtocolError, match="never defined"):
        core.admission.algorithm_failed(slave, messages.AlgorithmFailed(1, 4, "no numpy", [], [], []))


class _Walked(OrderedDict[Any, Any]):
    """A dictionary that counts the entries over which it is iterated."""

    steps = 0

    def __iter__(self) -> Iterator[Any]:
        for key in super().__iter__():
            _Walked.steps += 1
            yield key

    def keys(self) -> Any:
        return iter(self)

    def values(self) -> Any:
        return (self[key] for key in self)

    def items(self) -> Any:
        return ((key, self[key]) for key in self)


def test_an_iteration_walks_no_table_of_algorithms(core: MasterCore) -> None:
    """The work of an iteration does not grow with the algorithms that were ever seen, nor with those that wait."""
    core.state.settings = replace(core.state.settings, max_definition_bytes=1 << 30)
    jar = core.state.jar
    for task in range(1, 101):
        run(core, task, task)
    core.submit([span(task, by_value(task)) for task in range(101, 301)])
    decide(core)
    pending = jar.pending
    jar.algorithms.defined, jar.algorithms.idle = _Walked(jar.algorithms.defined), _Walked(jar.algorithms.idle)
    pending.queues = _Walked(pending.queues)
    [agent] = core.state.members.agents.values()
    agent.known = _Walked(agent.known)
    for task in range(101, 111):
        finish(core, task)
        core.decide(0.0)
        core.take_actions()
    assert [*jar.held["SLAVE-0"].load] == [111]  # type: ignore[index]
    assert 10 <= _Walked.steps <= 50  # a few steps for each task: which queue has the turn, and what to forget
