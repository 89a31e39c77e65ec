"""Unit tests of the sessions of a master, with connections that only note what was sent."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from attrs import define, field

from mwpy._roles.sessions import Sessions
from mwpy._transport import wire
from mwpy._values import messages
from mwpy._values.ids import Buffer


@define(eq=False)
class Connections:
    """The connections of a master."""

    sent: list[tuple[bytes, messages.Message]] = field(factory=list)
    ended: list[bytes] = field(factory=list)

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> None:
        self.sent.append((peer, wire.decode(frames, wire.FROM_MASTER)[0]))

    def disconnect(self, peer: bytes) -> None:
        self.ended.append(peer)


@define(eq=False)
class Door:
    """The sessions, and the peers that the master has accepted."""

    connections: Connections = field(factory=Connections)
    members: list[bytes] = field(factory=list)
    sessions: Sessions = field(init=False)

    @sessions.default
    def _of_connections(self) -> Sessions:
        return Sessions(self.connections, 30.0)  # type: ignore[arg-type]

    def accept(self, peer: bytes, session: str) -> None:
        hello = messages.Hello("m", "g", "host", 1, "3.11", 1, session=session, returns_s=100.0)
        assert not self.sessions.takes(peer, hello, [], 0.0)
        self.members.append(peer)
        self.sessions.send(peer, messages.Welcome(peer.decode(), 0, 100, 30.0), ())

    def come_back(self, connection: bytes, session: str, handled: int = 0) -> bytes:
        hello = messages.Hello("m", "g", "host", 1, "3.11", 1, session=session, returns_s=100.0, handled=handled)
        return self.sessions.goes_on(self.sessions.peer_of(connection), hello, self.members)


@pytest.fixture
def door() -> Door:
    """A master with the agents a and b."""
    door = Door()
    door.accept(b"a", "secret of a")
    door.accept(b"b", "secret of b")
    return door


def test_an_agent_comes_back_on_another_connection(door: Door) -> None:
    assert door.come_back(b"c", "secret of a") == b"a"
    assert (door.sessions.peer_of(b"c"), door.sessions.peer_of(b"a")) == (b"a", b"")
    assert door.connections.ended == [b"a"]


@pytest.mark.parametrize("connection", [b"b", b"c"])
def test_the_connection_of_a_member_is_not_given_to_another_session(door: Door, connection: bytes) -> None:
    """The agent of this connection would never be lost, because nobody would learn of its end."""
    door.come_back(b"c", "secret of a")
    door.accept(b"d", "secret of d")
    assert door.come_back(connection, "secret of d") == b""
    assert [door.sessions.peer_of(each) for each in (b"b", b"c")] == [b"b", b"a"]


def test_a_session_that_is_not_known_does_not_go_on(door: Door) -> None:
    assert door.come_back(b"c", "secret of nobody") == b""
    assert door.sessions.peer_of(b"c") == b"c"


def test_an_agent_that_comes_back_sends_again_what_is_not_in_the_file_and_it_is_handled_once(door: Door) -> None:
    """The master has handled three messages, and the first one is in the file."""
    results = messages.SlaveReady(1)
    for moment in (0.0, 1.0, 1.5):
        assert not door.sessions.takes(b"a", results, [], moment)
        said = door.sessions.due(2.0 + moment)
        if not moment:
            door.sessions.say(said)
    assert said == [(b"a", messages.Handled(3))]
    assert door.come_back(b"c", "secret of a") == b"a"
    [(_, welcome)] = [(peer, each) for peer, each in door.connections.sent if peer == b"c"]
    assert isinstance(welcome, messages.Welcome)
    assert welcome.handled == 1
    assert [door.sessions.takes(b"a", results, [], 5.0) for _ in range(3)] == [True, True, False]
    assert door.sessions.due(9.0) == [(b"a", messages.Handled(4))]


def test_what_was_handled_is_not_said_to_an_agent_that_is_away(door: Door) -> None:
    door.sessions.takes(b"a", messages.SlaveReady(1), [], 0.0)
    said, before = door.sessions.due(2.0), len(door.connections.sent)
    door.sessions.settle(b"a", is_away=True)
    door.sessions.say(said)
    assert len(door.connections.sent) == before
