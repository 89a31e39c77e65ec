"""One side of a session: what is kept, what is said about handled messages, and what is sent again."""

from __future__ import annotations

import pytest

from mwpy._core import session as module
from mwpy._core.session import Session
from mwpy._values import messages
from mwpy._values.errors import ProtocolError


def test_a_message_is_kept_until_the_other_side_has_handled_it() -> None:
    session = Session()
    for frames in ([b"1"], [b"22", b"3"], [b"4"]):
        session.keep(frames)
    assert session.kept_bytes == 5
    session.drop(2)
    assert (session.kept, session.kept_bytes) == ([[b"4"]], 1)


@pytest.mark.parametrize("count", [0, 3])
def test_more_messages_than_were_sent_or_fewer_than_before_cannot_be_handled(count: int) -> None:
    session = Session()
    session.keep([b"1"])
    session.keep([b"2"])
    session.drop(1)
    with pytest.raises(ProtocolError, match=f"handled {count} messages, not 1 to 2"):
        session.drop(count)


def test_nothing_is_said_while_nothing_is_handled() -> None:
    assert Session().say_at is None
    session = Session()
    session.note_handled([b"1"], 5.0)
    session.note_handled([b"2"], 5.9)
    assert session.say_at == 5.0 + module.SAY_S
    assert session.said() == messages.Handled(2)
    assert not session.say_at


def test_many_handled_messages_are_said_at_once() -> None:
    session = Session()
    for _ in range(module.SAY_MESSAGES - 1):
        session.note_handled([b"1"], 5.0)
    assert session.say_at == 5.0 + module.SAY_S
    session.note_handled([b"1"], 5.0)
    assert session.say_at == 5.0


def test_a_large_handled_message_is_said_at_once() -> None:
    session = Session()
    session.note_handled([bytes(module.SAY_BYTES)], 5.0)
    assert session.say_at == 5.0


def test_on_the_next_connection_only_what_was_not_handled_is_sent_again_in_its_order() -> None:
    session = Session()
    for frames in ([b"1"], [b"2"], [b"3"]):
        session.keep(frames)
    session.note_handled([b"x"], 1.0)
    assert session.go_on(1) == [[b"2"], [b"3"]]
    assert session.say_at is None  # the first message on the connection has said it


def test_a_peer_that_never_says_what_it_has_handled_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_MESSAGES", 2)
    session = Session()
    for _ in range(2):
        session.keep([b""])
    assert not session.is_full
    session.keep([b""])
    assert session.is_full
