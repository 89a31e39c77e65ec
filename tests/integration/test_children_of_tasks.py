"""What a task starts has the signals of a fresh process: forked children, pools, and programs."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess

import pytest

import mwpy

CHILDREN = 100
"""How many children each of two tasks ends."""

FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module", params=[2, 0], ids=["slaves", "own process"])
def mw(request: pytest.FixtureRequest) -> Iterator[mwpy.Master]:
    with mwpy.local_master(slaves=request.param) as mw:
        yield mw


def sleep_until_a_signal() -> None:
    """Sleep in short pieces. Python handles a signal that arrives just before a sleep only after it."""
    for _ in range(2000):
        time.sleep(0.05)


def ended(child: BaseProcess) -> int | None:
    child.join(60)
    code = child.exitcode
    child.kill()
    return code


def test_a_child_that_is_terminated_at_once_ends(mw: mwpy.Master) -> None:
    """The signal may come before the child has run a line of Python."""

    def end_children(_: int) -> list[int | None]:
        codes = []
        for _ in range(CHILDREN):
            child = FORK.Process(target=time.sleep, args=(100,))
            child.start()
            child.terminate()
            codes.append(ended(child))
        return codes

    assert list(mw.map(end_children, range(2))) == [[-signal.SIGTERM] * CHILDREN] * 2


def test_a_pool_whose_task_fails_ends(mw: mwpy.Master) -> None:
    def use_a_pool(number: int) -> str:
        try:
            with FORK.Pool(2) as pool:
                return str(pool.map(int, ["1", "two"]))
        except ValueError as error:
            return f"{number} {error}"

    assert list(mw.map(use_a_pool, [1])) == ["1 invalid literal for int() with base 10: 'two'"]


def test_ctrl_c_ends_a_child_as_in_a_plain_script(mw: mwpy.Master) -> None:
    def interrupt(_: int) -> int | None:
        def wait(ready: int) -> None:
            try:
                os.write(ready, b"x")
                sleep_until_a_signal()
            except KeyboardInterrupt:
                os._exit(77)

        reading, writing = os.pipe()
        child = FORK.Process(target=wait, args=(writing,))
        child.start()
        os.read(reading, 1)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGINT)
        return ended(child)

    assert list(mw.map(interrupt, [1])) == [77]


def test_a_program_ignores_and_blocks_no_signal(mw: mwpy.Master) -> None:
    def masks(_: int) -> list[str]:
        done = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True)
        return re.findall(r"^Sig(?:Blk|Ign):\s*(\w+)$", done.stdout, re.MULTILINE)

    assert list(mw.map(masks, [1])) == [masks(1)]


def test_a_handler_that_a_task_has_set_stays_in_its_children(mw: mwpy.Master) -> None:
    def handle(_: int) -> int | None:
        def wait() -> None:
            os.write(writing, b"x")
            sleep_until_a_signal()

        reading, writing = os.pipe()
        before = signal.signal(signal.SIGTERM, lambda *_: os._exit(78))
        try:
            child = FORK.Process(target=wait)
            child.start()
        finally:
            signal.signal(signal.SIGTERM, before)
        os.read(reading, 1)
        child.terminate()
        return ended(child)

    assert list(mw.map(handle, [1])) == [78]
