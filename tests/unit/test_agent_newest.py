"""States and reports of tasks, in the agent: when it sends them to the master, and which of them nobody needs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.driven_agent import agent, heard, slave_heard, tasks

from mwpy._core.agent.child import AgentEvent, SlaveExited, SlaveHeard
from mwpy._core.agent.core import AgentCore
from mwpy._core.agent.traffic import NEWEST_S
from mwpy._transport import wire
from mwpy._transport.codec import Codec
from mwpy._values import groups, messages
from mwpy._values.last_words import NO_WORDS

DUE = NEWEST_S + 1.0
"""A moment at which something may be sent that came at 1.0, after another one."""

READ = heard(messages.CheckpointRead(1))


def left(state: bytes) -> SlaveHeard:
    """A state of task 1, as it arrives."""
    return slave_heard(messages.Checkpoint(1, 1, 1), state, b"large")


def reported(values: bytes) -> SlaveHeard:
    """A report of task 1, as it arrives."""
    return slave_heard(messages.Reported(1, 1, 1, 0.5), values)


KINDS = pytest.mark.parametrize(
    ("new", "read"), [(left, READ), (reported, heard(messages.ReportRead(1)))], ids=["states", "reports"]
)


def do(core: AgentCore, now: float, *happened: AgentEvent) -> list[str | bytes]:
    """Let something happen, and decide. Return the states and reports that are sent to the master, and the names of
    other messages."""
    for event in happened:
        core.handle(event, now)
    core.decide(now)
    found: list[str | bytes] = []
    for outgoing in core.take_actions().to_master:
        message, payload = wire.decode(outgoing.received or wire.encode(outgoing.message), wire.FROM_AGENT)
        is_newest = isinstance(message, (messages.Checkpoint, messages.Reported))
        found.append(bytes(payload[0]) if is_newest else type(message).__name__)
    return found


@pytest.fixture
def core() -> AgentCore:
    """An agent with one slave, which holds the tasks 1 to 3."""
    core = agent()
    core.handle(tasks(1, 2, 3), 0.0)
    core.take_actions()
    return core


@KINDS
def test_the_first_one_leaves_at_once_and_the_newest_later_one_a_second_later(
    core: AgentCore, new: Callable[[bytes], SlaveHeard], read: AgentEvent
) -> None:
    assert do(core, 1.0, new(b"a")) == [b"a"]
    assert do(core, 1.1, read) == []
    assert do(core, 1.2, new(b"b"), new(b"c")) == []
    assert core.next_deadline() == DUE
    assert do(core, DUE) == [b"c"]
    assert do(core, 9.0) == []


@KINDS
def test_none_leaves_until_the_master_has_read_the_last_one(
    core: AgentCore, new: Callable[[bytes], SlaveHeard], read: AgentEvent
) -> None:
    """So a slow network does not fill the memory of the agent. There is no deadline before the answer."""
    assert do(core, 1.0, new(b"a")) == [b"a"]
    assert do(core, 9.0, new(b"b")) == []
    assert do(core, 9.5) == []
    assert core.next_deadline() is None
    assert do(core, 9.5, read) == [b"b"]


@pytest.mark.parametrize("again", [[], [0]])
def test_the_state_of_a_task_that_failed_leaves_before_its_result(core: AgentCore, again: list[int]) -> None:
    """It may be tried again, or replayed."""
    do(core, 1.0, left(b"a"))
    failed = messages.Results(1, [1], [1], [1], [0.1], [0], again=again)
    frame = groups.payload(1, [Codec().dumps_failure(OSError("busy"))])
    assert do(core, 1.1, left(b"b"), slave_heard(failed, frame)) == [b"b", "Results"]
    assert do(core, DUE, READ) == []


def test_the_newest_state_leaves_before_the_death_of_its_slave(core: AgentCore) -> None:
    """The master need not have read the last one."""
    do(core, 1.0, left(b"a"))
    died = SlaveExited(1, "killed by signal 11", NO_WORDS, 1)
    assert do(core, 1.1, left(b"b"), died) == [b"b", "SlaveDied"]
