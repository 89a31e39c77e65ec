"""One side of a session: what is kept, what is said about handled messages, and what is sent again."""

from __future__ import annotations

import pytest

from mwpy._roles import sessions
from mwpy._roles.sessions import Session
from mwpy._values.errors import ProtocolError


@pytest.mark.parametrize("count", [0, 3])
def test_more_messages_than_were_sent_or_fewer_than_before_cannot_be_handled(count: int) -> None:
    session = Session()
    session.keep([b"1"])
    session.keep([b"2"])
    session.drop(1)
    with pytest.raises(ProtocolError, match=f"handled {count} messages, not 1 to 2"):
        session.drop(count)


def test_a_peer_that_never_says_what_it_has_handled_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "KEPT_MESSAGES", 2)
    session = Session()
    for _ in range(2):
        session.keep([b""])
    assert not session.is_full
    session.keep([b""])
    assert session.is_full
