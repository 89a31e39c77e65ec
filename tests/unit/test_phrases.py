"""Phrases about numbers and lists, and what is shown of the last words of a slave."""

from __future__ import annotations

import pytest

from mwpy._values.bounds import SlaveId
from mwpy._values.causes import Cause
from mwpy._values.last_words import NO_WORDS, Death, LastWords, story_of
from mwpy._values.phrases import amount, duration


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (300 << 20, "300.0 MiB"), (5 << 60, "5242880.0 TiB")],
)
def test_an_amount_of_memory_as_a_text_for_people(count: int, text: str) -> None:
    assert amount(count) == text


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


TRACE = "Fatal Python error: Segmentation fault\n\nCurrent thread\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (LastWords("out", "Traceback\n  File\nKeyError: 1\n\n", TRACE), "Fatal Python error: Segmentation fault"),
        (LastWords("out", "Traceback\n  File\nKeyError: 1\n\n"), "KeyError: 1"),
        (LastWords("out"), ""),
        (LastWords(stderr="x" * 1000), "x" * 200),
    ],
)
def test_the_headline_is_the_most_useful_line(words: LastWords, line: str) -> None:
    assert words.headline == line


def test_the_shown_text_has_the_names_of_the_streams_and_the_ends_of_long_texts() -> None:
    words = LastWords("".join(f"{n}\n" for n in range(30)), "no end of line", TRACE)
    assert words.shown(2) == (
        "fault, the last 2 of 3 lines:\n\nCurrent thread\nstderr:\nno end of line\n"
        "stdout, the last 2 of 30 lines:\n28\n29"
    )
    assert words.shown(None) == f"fault:\n{TRACE}stderr:\nno end of line\nstdout:\n{words.stdout}".rstrip()
    assert NO_WORDS.shown() == ""


def test_a_long_text_loses_its_beginning() -> None:
    cut = LastWords("abc", "def", "ghi", 1).cut(2)
    assert cut == LastWords("bc", "ef", "hi", 1)
    assert cut.size == 6
    assert cut.cut(2) == cut


def test_a_story_shows_the_last_words_of_the_last_slave_that_died_alone() -> None:
    """A slave that was lost with its agent left no words."""
    died = Death(SlaveId("SLAVE-0"), 1, Cause.CRASH, "killed", LastWords("out"))
    lost = Death(SlaveId("SLAVE-1"), 2, Cause.AGENT_LOST, "lost")
    assert story_of([died, lost]) == "The last words of SLAVE-0:\nstdout:\nout"
    assert story_of([lost]) == ""
