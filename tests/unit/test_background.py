"""Work in the background."""

from __future__ import annotations

import threading

from mwpy._system.process import MOST_CHARACTERS, Background, TextWriter


def test_items_are_done_in_their_order() -> None:
    done: list[int] = []
    background = Background(done.append, "test")
    for number in range(100):
        background.give(number)
    assert background.close(60.0)
    assert (done, background.waiting) == ([*range(100)], 0)


def test_a_function_that_hangs_is_abandoned() -> None:
    """The caller neither waits for it nor believes that it is done."""
    never = threading.Event()

    def hang(_: int) -> None:
        never.wait()

    background = Background(hang, "test")
    background.give(1)
    background.give(2)
    assert not background.close(0.0)
    assert background.waiting == 2
    never.set()


def test_without_items_there_is_nothing_to_wait_for() -> None:
    assert Background(print, "test").close(60.0)


def test_lines_without_room_are_left_out_and_counted() -> None:
    """The next line that has room says how many lines are missing."""
    may_write = threading.Semaphore(0)
    written: list[str] = []

    def put(text: str) -> None:
        may_write.acquire()
        written.append(text)

    writer = TextWriter(put, "{} are missing\n".format, "test")
    full = "x" * (MOST_CHARACTERS - 1) + "\n"
    writer.write(full)
    writer.write("a\nb\n")
    writer.write("c\n")
    may_write.release(1_000_000)
    given = 0
    while len(written) < 2:
        writer.write("d\n")
        given += 1
    assert writer.close(60.0)
    assert written[0] == full
    missing = 3 + given - "".join(written).count("d\n")
    assert written[1] == f"{missing} are missing\nd\n"


def test_a_text_that_is_larger_than_the_bound_is_written_if_nothing_waits() -> None:
    written: list[str] = []
    writer = TextWriter(written.append, str, "test")
    writer.write("x" * (MOST_CHARACTERS + 1))
    assert writer.close(60.0)
    assert len(written) == 1
