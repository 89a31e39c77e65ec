"""The banned words are found in prose and in identifiers."""

from __future__ import annotations

import pytest
from tests.wording import banned_words


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("the agent is told to end", "told"),
        ("Whoever reads this", "Whoever"),
        ("def f(_told_it: bool) -> None:", "told"),
        ("TOLD = 1", "TOLD"),
        ("# a peer of\n# whose keys", "of\n# whose"),
        ("it waits for\n    ever", "for\n    ever"),
    ],
)
def test_a_banned_word_is_found(text: str, word: str) -> None:
    """A word is found in upper and lower case, in a part of an identifier, and over a line break."""
    assert [(line, found) for line, found, _ in banned_words(text)] == [(1, word)]


def test_the_line_of_a_banned_word_is_given() -> None:
    """The advice is given, too."""
    [(line, word, advice)] = banned_words("one\ntwo\nit is told")
    assert (line, word) == (3, "told")
    assert "what happens" in advice


@pytest.mark.parametrize("text", ["an untold number", "retold stories", "a password", "a trying day", "forever"])
def test_a_longer_word_is_allowed(text: str) -> None:
    """A banned word inside a longer word is another word."""
    assert not list(banned_words(text))
