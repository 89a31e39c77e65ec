"""Reports of tasks, in the agent: when it sends them to the master, and which of them nobody needs."""

from __future__ import annotations

from tests.unit import test_agent_checkpoints
from tests.unit.test_agent_checkpoints import heard

from mwpy._core.agent.child import SlaveHeard
from mwpy._core.agent.core import AgentCore
from mwpy._core.agent.traffic import NEWEST_S
from mwpy._transport import wire
from mwpy._values import messages

READ = heard(messages.ReportRead(1))
DUE = NEWEST_S + 1.0
"""A moment at which a report may be sent that was made at 1.0 or later, after another one."""


core = test_agent_checkpoints.core
"""An agent with one slave, which holds the tasks 1 to 3."""


def reported(task: int = 1, attempt: int = 1, payload: bytes = b"x") -> SlaveHeard:
    message = messages.Reported(1, task, attempt, 0.5)
    return SlaveHeard(1, message, wire.encode(message, [payload]))


def payloads(core: AgentCore, now: float) -> list[bytes]:
    """The reports that are sent to the master when it is time."""
    core.decide(now)
    return [bytes((outgoing.received or ())[1]) for outgoing in core.take_actions().to_master]


def test_the_first_report_leaves_at_once_and_the_newest_later_one_a_second_later(core: AgentCore) -> None:
    core.handle(reported(payload=b"a"), 1.0)
    assert payloads(core, 1.0) == [b"a"]
    core.handle(READ, 1.1)
    core.handle(reported(payload=b"b"), 1.2)
    core.handle(reported(payload=b"c"), 1.2)
    assert payloads(core, 1.2) == []
    assert core.next_deadline() == DUE
    assert payloads(core, DUE) == [b"c"]
    assert payloads(core, 9.0) == []


def test_a_report_of_another_slave_is_nonsense(core: AgentCore) -> None:
    message = messages.Reported(2, 1, 1, 0.5)
    core.handle(SlaveHeard(1, message, wire.encode(message, [b"x"])), 1.0)
    assert core.children[1].condemned
