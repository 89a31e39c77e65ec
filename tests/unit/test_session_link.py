"""What an agent brings to the next generation of its master."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field
from msgspec.structs import replace

from mwpy._core.agent.core import AgentCore
from mwpy._core.agent.events import AgentSettings, Heard
from mwpy._roles.agent import again_of
from mwpy._roles.session_link import SessionLink
from mwpy._transport import wire
from mwpy._transport.happened import Broken, Connected
from mwpy._values import groups, messages
from mwpy._values.causes import Cause
from mwpy._values.ids import Buffer, SlaveId
from mwpy._values.last_words import NO_WORDS

HELLO = messages.Hello("m", "g1", "host", 1, "3.11", 1, session="s", returns_s=300.0)
WELCOME = messages.Welcome("AGENT-0", 0, 1 << 20, 30.0)
RESULTS = messages.Results(1, [7], [1], [2], [0.5], [])
VALUE = groups.payload(1, [b"\x07"])


@define
class Wire:
    """A connection that takes messages."""

    sent: list[messages.Message] = field(factory=list)

    def watch(self, fd: int, writable: bool = False, readable: bool = True) -> None: ...
    def unwatch(self, fd: int) -> None: ...
    def poll(self, timeout_s: float | None) -> tuple[list[Connected | Broken], list[list[Buffer]], list[int]]:
        return [], [], []

    def send(self, frames: Sequence[Buffer]) -> None:
        self.sent.append(wire.decode(frames)[0])

    def close(self, linger_s: float) -> None: ...


def _joined(brought: Sequence[Sequence[Buffer]] = ()) -> tuple[SessionLink, Wire]:
    """An agent that the master has accepted, with a slave that has its name."""
    connection = Wire()
    link = SessionLink(connection, None, brought)
    link.greet(HELLO)
    for message in (WELCOME, messages.SlaveNamed(1, SlaveId("SLAVE-3"))):
        link.takes(message, wire.encode(message), 1.0)
    return link, connection


def test_a_refusal_by_another_master_does_not_count_in_the_session() -> None:
    """The agent may pass this master over, and go on with its session at its own one."""
    link, connection = _joined()
    link.end()
    refused = messages.Refused("another generation", again=True, generation="g0")
    assert not link.takes(refused, wire.encode(refused), 2.0)
    link.greet(HELLO)
    greeting = connection.sent[-1]
    assert isinstance(greeting, messages.Hello)
    assert greeting.handled == 1


def test_an_agent_that_joins_again_brings_results_of_the_generation_that_it_had_joined_last() -> None:
    """Under the name of its first generation, they would be results of other tasks with the same ids."""
    link, _ = _joined()
    link.send(wire.encode(RESULTS, [VALUE]))
    core = AgentCore(AgentSettings(HELLO))
    assert again_of(core, link, [[b"brought"]]) == ("", [[b"brought"]])
    core.handle(Heard(replace(WELCOME, generation="g2")), 0.0)
    [frames] = again_of(core, link, ()).brought
    message, _ = wire.decode(frames, wire.FROM_AGENT)
    assert isinstance(message, messages.Handover)
    assert message.generation == "g2"


def test_results_that_the_master_has_not_handled_are_handed_over() -> None:
    link, _ = _joined()
    link.send(wire.encode(messages.SlaveReady(1)))
    link.send(wire.encode(RESULTS, [VALUE]))
    link.end()
    link.send(wire.encode(RESULTS, [VALUE]))
    handled = messages.Handled(2)
    link.takes(handled, wire.encode(handled), 2.0)
    [frames] = link.handovers("g1")
    assert wire.decode(frames, wire.FROM_AGENT) == (messages.Handover("g1", "SLAVE-3", RESULTS), [VALUE])


def test_a_dead_slave_is_forgotten_when_the_master_has_handled_its_last_message() -> None:
    """A slave that runs one task for each process must not make an agent grow."""
    link, _ = _joined()
    died = messages.SlaveDied(1, 0, Cause.CRASH, "", NO_WORDS)
    for frames in (wire.encode(RESULTS, [VALUE]), wire.encode(died)):
        link.send(frames)
    for count, known in ((1, {1: "SLAVE-3"}), (2, {})):
        handled = messages.Handled(count)
        link.takes(handled, wire.encode(handled), 2.0)
        assert link.sids == known


def test_what_is_brought_is_sent_to_the_next_master_and_kept_until_it_has_handled_it() -> None:
    brought = wire.encode(messages.Handover("g0", "SLAVE-9", RESULTS), [VALUE])
    link, connection = _joined([brought])
    assert [type(message) for message in connection.sent] == [messages.Hello, messages.Handover]
    assert link.handovers("g1") == [brought]


def test_an_agent_without_a_session_brings_nothing() -> None:
    assert SessionLink(Wire(), None).handovers("g1") == []
