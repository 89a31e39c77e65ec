"""The line of the terminal that is overwritten in place: other output does not break it."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest
from tests.screen import Screen

from mwpy._system.live_line import LiveLine, undrawn, width_of


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def terminal() -> Iterator[_Terminal]:
    """A terminal that is standard output and error of this process."""
    stream = _Terminal()
    with redirect_stdout(stream), redirect_stderr(stream):
        yield stream
    assert "write" not in stream.__dict__, "the stream has not its own method again"


@pytest.fixture(autouse=True)
def _usual_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TERM", raising=False)


def seen(stream: io.StringIO) -> list[str]:
    return Screen().feed(stream.getvalue()).lines


def test_prints_and_logging_appear_above_the_line() -> None:
    with terminal() as screen:
        handler = logging.StreamHandler(screen)
        logger = logging.getLogger("test_live_line")
        logger.addHandler(handler)
        logger.propagate = False
        line = LiveLine(screen)
        line.draw("1 of 3 items, and more that a short line does not cover")
        print("first")
        line.draw("2 of 3 items")
        logger.warning("second")
        assert seen(screen) == ["first", "second"]
        line.draw("2 of 3 items")
        assert seen(screen) == ["first", "second", "2 of 3 items"]
        line.end("3 of 3 items")
        print("third")
        assert seen(screen) == ["first", "second", "3 of 3 items", "third"]


def test_the_parts_of_a_line_are_written_together() -> None:
    """Otherwise an agent on this terminal could write between them. The end of the progress writes what is there."""
    raw = io.BytesIO()
    raw.isatty = lambda: True  # type: ignore[method-assign]
    stream = io.TextIOWrapper(raw, line_buffering=True)
    with redirect_stdout(stream), redirect_stderr(stream):
        line = LiveLine(stream)
        print("value", 7, end="")
        assert raw.getvalue() == b""
        print()
        assert raw.getvalue() == b"value 7\n"
        print("more", end="")
        line.end("1 of 1")
    assert raw.getvalue().startswith(b"value 7\nmore\n1 of 1")


def test_an_incomplete_line_is_not_overwritten() -> None:
    with terminal() as screen:
        line = LiveLine(screen)
        line.draw("1 of 3 items")
        print("a question? ", end="")
        sys.stdout.write("")
        line.draw("2 of 3 items")
        assert seen(screen) == ["a question? "]
        line.end("3 of 3 items")
        assert seen(screen) == ["a question? ", "3 of 3 items"]


def test_output_that_passes_by_the_streams_removes_the_line() -> None:
    with terminal() as screen:
        with undrawn():
            screen.write("before\n")
        line = LiveLine(screen)
        line.draw("1 of 3 items")
        with undrawn():
            io.StringIO.write(screen, "notice\n")
        line.draw("2 of 3 items")
        line.end("")
        assert seen(screen) == ["before", "notice"]


def test_only_the_newest_of_several_lines_is_shown() -> None:
    """When it ends, it stays, and the one before goes on below it."""
    with terminal() as screen:
        outer, inner = LiveLine(screen), LiveLine(screen)
        inner.draw("inner 1")
        outer.draw("outer 1")
        inner.end("inner 2")
        outer.draw("outer 2")
        outer.end("outer 3")
        assert seen(screen) == ["inner 2", "outer 3"]


def test_a_stream_that_somebody_replaced_meanwhile_is_left_alone() -> None:
    with terminal() as screen:
        line = LiveLine(screen)
        own = screen.__dict__["write"] = screen.__dict__["write"].__call__
        line.end("the end")
        assert screen.__dict__.pop("write") is own


def test_a_terminal_that_is_gone_disturbs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = _Terminal()
    monkeypatch.setattr(sys, "stderr", None)
    line = LiveLine(stream)
    stream.close()
    line.draw("1 of 3 items")
    line.end("3 of 3 items")


def test_a_forked_process_leaves_the_line_to_its_parent() -> None:
    """It writes nothing into it, and its output is its own."""
    with terminal() as screen:
        line = LiveLine(screen)
        line.draw("1 of 3 items")
        before = len(screen.getvalue())
        pid = os.fork()
        if not pid:
            try:
                line.draw("2 of 3 items")
                print("child")
                line.end("")
                with undrawn():
                    os._exit(0 if screen.getvalue()[before:] == "child\n" else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        line.end("")


def test_a_line_is_never_wider_than_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that does not know its width, or says 0, counts as 80 characters wide."""
    with terminal() as screen:
        assert width_of(screen) == 80
        size = os.terminal_size((20, 0))
        monkeypatch.setattr(os, "get_terminal_size", lambda fd: size)
        monkeypatch.setattr(screen, "fileno", lambda: 2)
        line = LiveLine(screen)
        line.draw("1234567890123456789012345")
        assert seen(screen) == ["1234567890123456789"]
        line.end("")
        size = os.terminal_size((0, 0))
        assert width_of(screen) == 80
