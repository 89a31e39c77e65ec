"""Phrases about numbers and lists."""

from __future__ import annotations

import pytest

from mwpy._values.phrases import amount, counted, first_of


def test_a_noun_is_plural_unless_it_is_one() -> None:
    assert [counted(count, "job") for count in (0, 1, 2)] == ["0 jobs", "1 job", "2 jobs"]


def test_of_a_long_list_only_the_first_are_named() -> None:
    assert first_of("abcde", 5) == "a, b, c, d, e"
    assert first_of("abcdefg", 7) == "a, b, c, d, e and 2 more"
    assert first_of("", 0) == ""


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (300 << 20, "300.0 MiB"), (5 << 60, "5242880.0 TiB")],
)
def test_an_amount_of_memory_as_a_text_for_people(count: int, text: str) -> None:
    assert amount(count) == text
