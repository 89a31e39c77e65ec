"""Phrases about numbers and lists."""

from __future__ import annotations

import pytest

from mwpy._values.phrases import amount, bytes_in, duration


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (300 << 20, "300.0 MiB"), (5 << 60, "5242880.0 TiB")],
)
def test_an_amount_of_memory_as_a_text_for_people(count: int, text: str) -> None:
    assert amount(count) == text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("5", 5),
        ("4 GB", 4 << 30),
        ("1.5g", 3 << 29),
        ("80MiB", 80 << 20),
        (" 2 kb ", 2048),
        ("1T", 1 << 40),
        ("9 B", 9),
    ],
)
def test_an_amount_of_memory_as_people_write_it(text: str, count: int) -> None:
    """A unit has 1024 of the smaller unit."""
    assert bytes_in(text) == count


@pytest.mark.parametrize("text", ["", "GB", "4 XB", "-1", "4  GB", "1e9", "four"])
def test_a_text_that_is_no_amount_of_memory_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="must be a number of bytes, such as 4000000000, 512 MB or 4 GB"):
        bytes_in(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (-1.0, "0 s"),
        (0.0, "0 s"),
        (2e-6, "2 µs"),
        (0.0354, "35.4 ms"),
        (0.9996, "1 s"),
        (12.34, "12.3 s"),
        (119.4, "119 s"),
        (119.6, "2 min"),
        (320.0, "5 min 20 s"),
        (599.6, "10 min"),
        (3569.0, "59 min"),
        (3599.0, "1 h 00 min"),
        (7500.0, "2 h 05 min"),
        (47.4 * 3600, "47 h 24 min"),
        (76 * 3600.0, "3 days 4 h"),
        (46.8 * 86400, "47 days"),
    ],
)
def test_a_time_as_a_text_for_people(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
