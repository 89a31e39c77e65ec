"""What shows the progress of a map or of a computation, and the line of the terminal that is overwritten in place."""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from types import ModuleType, SimpleNamespace

import pytest
from tests.screen import Screen

from mwpy._roles.progress import (
    Figures,
    Meter,
    OpenProgress,
    Progress,
    careful,
    display_of,
    in_log,
    in_notebook,
    on_terminal,
    progress_of,
    to_function,
    total_of,
)
from mwpy._system import clock
from mwpy._system.live_line import LiveLine, undrawn, width_of
from mwpy._values.errors import UsageError


class _Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class _Shown:
    """Remembers what was shown."""

    def __init__(self) -> None:
        self.shown: list[int] = []
        self.last: list[int] = []

    def __call__(self, figures: Figures, is_last: bool) -> None:
        (self.last if is_last else self.shown).append(figures.done)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time on the clock, which the test sets."""
    time = [0.0]
    monkeypatch.setattr(clock, "monotonic", lambda: time[0])
    return time


def figures(done: int, total: int | None = 100, failed: int = 0, slaves: int = 2) -> Figures:
    return Figures(done, total, failed, slaves)


def test_the_figures_are_shown_at_most_ten_times_a_second_and_at_the_end(now: list[float]) -> None:
    """Before its beginning and after its end, nothing is shown."""
    shown, done = _Shown(), 0
    progress = Progress(shown)
    progress.update()
    progress.end()
    progress.begin(lambda: figures(done))
    for time, count in ((0.0, 1), (0.05, 2), (0.1, 3), (0.3, 3), (0.31, 4)):
        now[0], done = time, count
        progress.update()
    for _ in range(2):
        progress.end()
        progress.update()
    assert (shown.shown, shown.last) == ([1, 3, 3], [4])


def test_two_threads_do_not_show_the_same_at_once(now: list[float]) -> None:
    """The thread of an executor waits for nobody. What fails there concerns no task."""
    master, lines = OpenProgress(), list[int]()

    class Slow(_Shown):
        def __call__(self, figures: Figures, is_last: bool) -> None:
            other = threading.Thread(target=OpenProgress(master).update)
            other.start()
            other.join()
            lines.append(figures.done)

    class Broken(_Shown):
        def __call__(self, figures: Figures, is_last: bool) -> None:
            raise OSError(figures)

    master.begin(Progress(Slow(), is_shared=True), lambda: figures(1))
    master.update()
    assert lines == [1]
    master.begin(Progress(Broken(), is_shared=True), lambda: figures(1))
    OpenProgress(master).update()
    now[0] = 1.0
    with pytest.raises(OSError, match="Figures"):
        master.update()


def test_what_cannot_be_shown_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    """As in an executor, whose thread must go on."""
    called: list[int] = []

    def report(done: int, total: int | None) -> None:
        called.append(done)
        raise SystemExit(f"at {done} of {total}")

    show = careful(to_function(report))
    show(figures(1), False)
    show(figures(2), False)
    show(figures(3), True)
    assert called == [1]
    assert capsys.readouterr().err.endswith("showing it raised SystemExit: at 1 of 100\n")


def test_a_text_names_the_items_the_failures_the_slaves_the_rate_and_the_time_left(now: list[float]) -> None:
    """What is zero or unknown is left out. The time before the first slave does not count for the rate."""
    shown = Meter("square")
    assert shown.text(figures(0, None, slaves=0)) == "mwpy: square: 0 items in 0 s, 0 slaves"
    now[0] = 90.0
    assert shown.text(figures(0, slaves=1)) == "mwpy: square: 0 of 100 items in 90 s, 1 slave"
    now[0] = 100.0
    text = "mwpy: square: 20 of 100 items in 100 s, 3 failed, 8 slaves, 2/s, about 40 s left"
    assert shown.text(figures(20, failed=3, slaves=8)) == text
    now[0] = 110.0
    assert shown.text(figures(100, slaves=8)).endswith(", 8 slaves, 8/s")
    now[0] = 110.1
    assert shown.text(figures(100_000, None)).endswith(" slaves, 9899/s")


def test_what_the_run_database_answered_is_no_part_of_the_rate(now: list[float]) -> None:
    meter = Meter("tasks")
    now[0] += 10
    text = meter.text(Figures(510, 600, 0, 2, reused=500))
    assert text == "mwpy: tasks: 510 of 600 items in 10 s, 500 from the run database, 2 slaves, 1/s, about 90 s left"
    assert "510 of 600 items in 10 s, 2 slaves, 3/s, about 30 s left" in meter.text(Figures(510, 600, 0, 2, rate=3.0))


def test_a_terminal_shows_one_line_that_is_overwritten(now: list[float]) -> None:
    """After each drawing, the cursor is at the start of the line. Nothing is written before there is something."""
    stream = _Terminal()
    show = on_terminal(Meter("square"), stream)
    for time, done in ((10.0, 20), (20.0, 80)):
        now[0] = time
        show(figures(done), False)
    now[0] = 25.0
    show(figures(100), True)
    assert stream.getvalue() == (
        "\rmwpy: square:  20%|##        | 20 of 100, 2 slaves, 2/s, about 40 s left\x1b[K\r"
        "\rmwpy: square:  80%|########  | 80 of 100, 2 slaves, 6/s, about 3 s left\x1b[K\r"
        "\r\x1b[K\rmwpy: square: 100%|##########| 100 of 100, 2 slaves, 5.33/s\x1b[K\n"
    )
    on_terminal(Meter("square"), stream)(figures(0), True)


def test_a_narrow_terminal_shows_no_part_of_a_number(now: list[float]) -> None:
    """The name is shortened, then what is least important is left out."""
    meter = Meter("relax_the_lattice_of_one_crystal")
    now[0] = 100.0
    seen = Figures(412_345, 1_000_000, 12, 128, reused=4321, rate=1234.5)
    whole = meter.bar(seen, 200)
    parts = {*whole.split(", ")[1:]}
    assert parts == {"12 failed", "4321 from the run database", "128 slaves", "1234/s", "about 7 min 56 s left"}
    for width in range(200, 40, -1):
        line = meter.bar(seen, width)
        head, *others = line.replace("%|####      | ", "%, ").split(", ")
        assert len(line) <= width
        assert head.endswith(" 41%")
        assert {*others} <= parts | {"412345 of 1000000"}
        assert others[0] == "412345 of 1000000"
    assert meter.bar(seen, 79) == "mwpy: rel..tal:  41%, 412345 of 1000000, 12 failed, about 7 min 56 s left"


def test_a_log_gets_lines_at_growing_intervals_and_the_last_one(now: list[float]) -> None:
    stream = io.StringIO()
    show = in_log(Meter("square"), stream)
    for time in range(1, 101):
        now[0] = float(time)
        show(figures(2 * time, None), False)
    show(figures(200, None), True)
    show(figures(200, None), True)
    lines = [line.split(",")[0] for line in stream.getvalue().splitlines()]
    assert lines == [f"mwpy: square: {2 * s} items in {s} s" for s in (10, 20, 40, 80, 100)]


def test_a_pipe_that_nobody_reads_does_not_disturb_the_computation(now: list[float]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        show = in_log(Meter("square"), stream)
        now[0] = 20.0
        show(figures(50), False)
        show(figures(100), True)
        with suppress(OSError):  # what could not be written
            stream.close()


def test_a_notebook_shows_a_bar(now: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[dict[str, str]] = []
    ipython = ModuleType("IPython")

    def display(shown: dict[str, str], raw: bool, display_id: bool = False) -> SimpleNamespace:
        found.append(shown)
        return SimpleNamespace(update=display)

    ipython.display = SimpleNamespace(display=display)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    show = in_notebook(Meter("<lambda>"))
    now[0] = 10.0
    show(figures(20), False)
    show(figures(21, None), True)
    first, last = found
    assert "&lt;lambda&gt;: 20 of 100 items in 10 s, 2 slaves" in first["text/html"]
    assert '<progress value="20" max="100"' in first["text/html"]
    assert first["text/plain"].startswith("mwpy: <lambda>:")
    assert "<progress style" in last["text/html"]


@pytest.mark.parametrize("stream", [None, io.StringIO()])
def test_a_closed_standard_error_shows_nothing(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO | None) -> None:
    if stream is not None:
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    display_of("square", is_whole=True)(figures(100), True)


def test_a_terminal_that_overwrites_nothing_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stderr", stream := _Terminal())
    display_of("square", is_whole=True)(figures(100), True)
    assert stream.getvalue().startswith("mwpy: square: 100 of 100 items")


def test_the_iterables_tell_how_many_items_there_are() -> None:
    """The shortest one counts. If one of them has no length, the number is unknown, unless it is given."""
    for total, iterables, expected in (
        (None, ([1, 2, 3], "ab"), 2),
        (None, ([1, 2, 3], iter("ab")), None),
        (7, (iter("ab"),), 7),
    ):
        assert total_of(total, iterables) == expected
    assert progress_of(None, "square") is progress_of(False, "square") is None


def test_a_wrong_argument_is_named() -> None:
    with pytest.raises(UsageError, match="progress='bar'"):
        progress_of("bar", "square")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="total=-1"):
        total_of(-1)


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
