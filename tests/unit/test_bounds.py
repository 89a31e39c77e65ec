"""Texts that are too long for a message keep their beginning and their end."""

from __future__ import annotations

import pytest

from mwpy._values.bounds import MAX_REASON, shortened


@pytest.mark.parametrize("length", [0, 1, 100])
def test_a_short_text_stays_as_it_is(length: int) -> None:
    assert shortened("x" * length, 100) == "x" * length


@pytest.mark.parametrize("most", [100, 101, MAX_REASON])
def test_a_long_text_keeps_its_beginning_and_its_end(most: int) -> None:
    """The beginning says what happened, and the end of a traceback names the error."""
    text = shortened("begin" + "x" * 100_000 + "end", most)
    assert len(text) == most
    assert text.startswith("begin")
    assert text.endswith("end")
    assert " [... 100008 characters ...] " in text
