"""What shows the progress of a map."""

from __future__ import annotations

import io
import sys

import pytest

from mwpy._roles.progress import Line, Progress, progress_of
from mwpy._system import clock


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time on the clock, which the test sets."""
    time = [0.0]
    monkeypatch.setattr(clock, "monotonic", lambda: time[0])
    return time


def test_a_report_comes_at_most_ten_times_a_second_and_at_the_end(now: list[float]) -> None:
    """Nothing is reported twice."""
    reports: list[tuple[int, int | None]] = []
    progress = Progress(lambda done, total: reports.append((done, total)), 10, due=0.0)
    for time, done in ((0.0, 0), (0.0, 1), (0.05, 2), (0.1, 3), (0.3, 3), (0.31, 4)):
        now[0] = time
        progress.update(done)
    assert reports == [(1, 10), (3, 10), (4, 10)]
    progress.end(4)
    assert len(reports) == 3
    progress.end(5)
    assert reports[3:] == [(5, 10)]


def test_a_terminal_shows_one_line_that_is_overwritten(now: list[float]) -> None:
    stream = _Terminal()
    line = Line("square", stream, began=0.0)
    for time, done in ((10.0, 20), (20.0, 80), (25.0, 100)):
        now[0] = time
        line.write(done, 100)
    line.end()
    assert stream.getvalue() == (
        "\rmwpy: square: 20 of 100 items in 10 s, about 40 s left\x1b[K"
        "\rmwpy: square: 80 of 100 items in 20 s, about 5 s left\x1b[K"
        "\rmwpy: square: 100 of 100 items in 25 s\x1b[K\n"
    )


def test_a_file_gets_lines_at_growing_intervals_and_the_last_one(now: list[float]) -> None:
    """The number of all items may be unknown."""
    stream = io.StringIO()
    line = Line("square", stream, began=0.0)
    for time in range(1, 101):
        now[0] = float(time)
        line.write(2 * time, None)
    line.end()
    assert stream.getvalue().splitlines() == [f"mwpy: square: {2 * s} items in {s} s" for s in (10, 20, 40, 80, 100)]


def test_a_short_map_writes_one_line_into_a_file_and_a_map_without_items_none() -> None:
    for counts, written in (([3], "mwpy: square: 3 of 3 items in 0 s\n"), ([], "")):
        stream = io.StringIO()
        line = Line("square", stream)
        for done in counts:
            line.write(done, 3)
        line.end()
        assert stream.getvalue() == written


def test_the_iterables_tell_how_many_items_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shortest one counts. If one of them has no length, the number is unknown, unless it is given."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    for total, iterables, expected in (
        (None, ([1, 2, 3], "ab"), 2),
        (None, ([1, 2, 3], iter("ab")), None),
        (7, (iter("ab"),), 7),
    ):
        progress = progress_of(True, total, iterables, "square")
        assert progress is not None
        assert progress.total == expected
        progress.end(1)
    assert [line.split(" in ")[0] for line in stream.getvalue().splitlines()] == [
        "mwpy: square: 1 of 2 items",
        "mwpy: square: 1 items",
        "mwpy: square: 1 of 7 items",
    ]
    assert progress_of(None, 3, (), "square") is progress_of(False, None, (), "square") is None
