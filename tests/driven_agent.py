"""An agent's core that a test drives: what its master and its slaves send, and what the agent sends then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from mwpy._core.agent.child import AgentActions, AgentSettings, Heard, Outgoing, SlaveHeard
from mwpy._core.agent.core import AgentCore
from mwpy._transport import wire
from mwpy._values import groups, messages, records
from mwpy._values.bounds import Buffer

HELLO = messages.Hello("m", "g", "host", 1, "3.11", 1)
WELCOME = messages.Welcome("AGENT-0", 0, 1000, 30.0)
DEFINITION = messages.AlgorithmDefinition(0, "f", "m:f", "", "3.11")


def heard(message: messages.Message, *payload: Buffer) -> Heard:
    """A message of the master, as it arrives."""
    return Heard(message, wire.encode(message, payload))


def slave_heard(message: messages.Message, *payload: Buffer, slave: int = 1) -> SlaveHeard:
    """A message of a slave, as it arrives."""
    return SlaveHeard(slave, message, wire.encode(message, payload))


def tasks(*numbers: int, attempt: int = 1, slave: int = 1, **columns: Any) -> Heard:
    """A group of tasks for a slave, as it arrives."""
    firsts, counts, attempts = groups.spans_of(numbers, [attempt] * len(numbers))
    return heard(messages.Tasks(slave, firsts, counts, attempts, [0] * len(firsts), **columns), b"")


def results(first: int, count: int = 1, digits: str = "", slave: int = 1) -> SlaveHeard:
    """Results of `count` tasks from `first` on, as they arrive; each has a digit as its payload."""
    group = messages.Results(slave, [first], [count], [1], [0.1] * count, [])
    return slave_heard(group, payload(digits or "0" * count), slave=slave)


def payload(digits: str) -> bytes:
    """A group's first payload frame: a digit for each task."""
    return groups.payload(len(digits), [bytes(map(int, digits))])


def agent(welcome: messages.Welcome = WELCOME, hello: messages.Hello = HELLO, **settings: Any) -> AgentCore:
    """An agent whose slaves are ready and know an algorithm."""
    core = AgentCore(AgentSettings(hello, **settings))
    core.handle(heard(welcome), 0.0)
    core.handle(heard(messages.Algorithms([DEFINITION])), 0.0)
    for number in range(1, hello.slaves + 1):
        core.handle(slave_heard(messages.SlaveReady(number), slave=number), 0.0)
    core.take_actions()
    return core


def with_slaves(count: int) -> messages.Hello:
    """The first message of an agent with some slaves."""
    return replace(HELLO, slaves=count)


def decoded(outgoing: Outgoing) -> tuple[messages.Message, Sequence[Buffer]]:
    """Decode a message as its receiver does."""
    return wire.decode(outgoing.received or wire.encode(outgoing.message, outgoing.payload))


def to_master(actions: AgentActions) -> list[messages.Message]:
    """The messages to the master."""
    return [decoded(outgoing)[0] for outgoing in actions.to_master]


def to_slaves(actions: AgentActions) -> list[tuple[int, messages.Message]]:
    """The messages to slaves, each with the number of its slave."""
    return [(number, decoded(outgoing)[0]) for number, outgoing in actions.to_slaves]


def held(core: AgentCore, slave: int = 1) -> list[int]:
    """The tasks that a slave holds, in order."""
    return [span.first + at for span in core.children[slave].held for at in range(span.count)]


def said(actions: AgentActions) -> str:
    """The notices."""
    return "\n".join(record.text for record in actions.records if isinstance(record, records.Notice))
