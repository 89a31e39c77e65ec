"""Notices: which of them the user sees."""

from __future__ import annotations

from mwpy._core.master.notices import KEYS_KEPT, NOTICES_A_MINUTE, Notices


def test_a_notice_with_the_same_key_is_shown_once_until_its_key_is_forgotten() -> None:
    notices = Notices()
    assert notices.chosen("first", "key", 0.0) == ["first"]
    for number in range(KEYS_KEPT):
        assert notices.chosen("another", "key", 60.0 * number) == []
        assert notices.chosen("other", f"{number}", 60.0 * number) == ["other"]
    assert notices.chosen("again", "key", 1e6) == ["again"]


def test_a_member_that_sends_ever_new_texts_does_not_flood_the_screen() -> None:
    """What the master itself has to say is always shown."""
    notices = Notices()
    shown = [text for number in range(1000) for text in notices.chosen("new", f"{number}", number / 1000)]
    assert shown == ["new"] * NOTICES_A_MINUTE
    assert notices.chosen("nothing progresses", "", 1.0) == ["nothing progresses"]
    assert notices.chosen("late", "late", 59.0) == []
    assert notices.chosen("later", "later", 60.0) == [
        "901 messages more came within a minute, and were left out",
        "later",
    ]
    assert notices.chosen("last", "last", 61.0) == ["last"]
