"""States that tasks leave, in the agent: when it sends them to the master, and which of them nobody needs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mwpy._core.agent.child import (
    AgentActions,
    AgentSettings,
    Heard,
    SlaveExited,
    SlaveHeard,
    Terminated,
)
from mwpy._core.agent.core import AgentCore
from mwpy._core.agent.traffic import NEWEST_S
from mwpy._transport import wire
from mwpy._transport.codec import Codec
from mwpy._values import groups, messages
from mwpy._values.bounds import Buffer
from mwpy._values.last_words import NO_WORDS

FAILURE = Codec().dumps_failure(OSError("busy"))
DUE = NEWEST_S + 1.0
"""A moment at which a state may be sent that was left at 1.0, after another one."""


def heard(message: messages.Message, *payload: Buffer) -> Heard:
    return Heard(message, wire.encode(message, payload))


def left(state: bytes, task: int = 1, attempt: int = 1) -> SlaveHeard:
    """A state of a task of slave 1, as it arrives."""
    message = messages.Checkpoint(1, task, attempt)
    return SlaveHeard(1, message, wire.encode(message, [state, b"large"]))


def results(task: int, failed: Sequence[int] = (), again: Sequence[int] = ()) -> messages.Results:
    return messages.Results(1, [task], [1], [1], [0.1], [*failed], again=[*again])


def ended(group: messages.Results) -> SlaveHeard:
    """The result of one task, as it arrives."""
    entry = FAILURE if group.failed else b"\x00"
    return SlaveHeard(1, group, wire.encode(group, [groups.payload(1, [entry])]))


def exited() -> SlaveExited:
    return SlaveExited(1, "killed by signal 11", NO_WORDS, 1)


def do(core: AgentCore, now: float, *happened: Heard | SlaveHeard | SlaveExited | Terminated) -> list[str | bytes]:
    """Let something happen, and decide. Return the states that are sent to the master, and the names of other
    messages."""
    for event in happened:
        core.handle(event, now)
    core.decide(now)
    return shown(core.take_actions())


def shown(actions: AgentActions) -> list[str | bytes]:
    found: list[str | bytes] = []
    for outgoing in actions.to_master:
        message, payload = wire.decode(outgoing.received or wire.encode(outgoing.message), wire.FROM_AGENT)
        if isinstance(message, messages.Checkpoint):
            assert bytes(payload[1]) == b"large"
            found.append(bytes(payload[0]))
        else:
            found.append(type(message).__name__)
    return found


@pytest.fixture
def core() -> AgentCore:
    """An agent with one slave, which holds the tasks 1 to 3."""
    core = AgentCore(AgentSettings(messages.Hello("m", "g", "host", 1, "3.11", 1)))
    core.handle(heard(messages.Welcome("AGENT-0", 0, 1000, 30.0)), 0.0)
    core.handle(SlaveHeard(1, messages.SlaveReady(1), wire.encode(messages.SlaveReady(1))), 0.0)
    core.handle(heard(messages.Tasks(1, [1], [3], [1], [0]), groups.payload(3, [b"\x00"] * 3)), 0.0)
    core.take_actions()
    return core


READ = heard(messages.CheckpointRead(1))


def test_the_first_state_leaves_at_once_and_the_newest_later_one_a_second_later(core: AgentCore) -> None:
    assert do(core, 1.0, left(b"a")) == [b"a"]
    assert do(core, 1.1, READ) == []
    assert do(core, 1.2, left(b"b"), left(b"c")) == []
    assert do(core, 1.5) == []
    assert core.next_deadline() == DUE
    assert do(core, DUE) == [b"c"]
    assert do(core, 5.0) == []


def test_no_state_leaves_until_the_master_has_read_the_last_one(core: AgentCore) -> None:
    """So a slow network does not fill the memory of the agent. There is no deadline before the answer."""
    assert do(core, 1.0, left(b"a")) == [b"a"]
    assert do(core, 9.0, left(b"b")) == []
    core.decide(9.5)
    core.take_actions()
    assert core.next_deadline() is None
    assert do(core, 9.5, READ) == [b"b"]


@pytest.mark.parametrize("again", [[], [0]])
def test_the_state_of_a_task_that_failed_leaves_before_its_result(core: AgentCore, again: list[int]) -> None:
    """It may be tried again, or replayed."""
    do(core, 1.0, left(b"a"))
    assert do(core, 1.1, left(b"b"), ended(results(1, [0], again))) == [b"b", "Results"]
    assert do(core, DUE, READ) == []


def test_the_newest_state_leaves_before_the_death_of_its_slave(core: AgentCore) -> None:
    """The master need not have read the last one."""
    do(core, 1.0, left(b"a"))
    assert do(core, 1.1, left(b"b"), exited()) == [b"b", "SlaveDied"]
