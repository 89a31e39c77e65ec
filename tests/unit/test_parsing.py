"""Sources that are parsed while other threads parse."""

import ast
import gc
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from mwpy._values.phrases import parsed

SOURCE = "\n".join(f"x{number} = (({number} + a) * [b, (c, d)])" for number in range(100))


class LetsOthersRun:
    """Lets another thread run when the garbage collector ends it."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        time.sleep(0.0001)


@contextmanager
def others_that_parse() -> Iterator[None]:
    """Let a thread that knows nothing of mwpy parse all the time."""
    ended = threading.Event()

    def parse() -> None:
        while not ended.is_set():
            try:
                ast.parse(SOURCE)
            except SystemError:
                continue

    thread = threading.Thread(target=parse)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_threads_can_parse_at_the_same_time() -> None:
    """Python 3.11 fails now and then in `ast.parse` here: "AST constructor recursion depth mismatch"."""
    expected = ast.dump(ast.parse(SOURCE))
    found: list[str] = []

    def parse() -> None:
        for _ in range(8):
            LetsOthersRun()
            found.append(ast.dump(parsed(SOURCE)))

    threads = [threading.Thread(target=parse) for _ in range(3)]
    with others_that_parse():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 24
    assert {*found} == {expected}
    assert gc.isenabled()


def test_a_parsed_source_gives_no_warnings() -> None:
    """Python gave them when it loaded the source, and the user's filters are as before."""
    before = [*warnings.filters]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parsed("'\\d'")
    assert [*warnings.filters] == before
