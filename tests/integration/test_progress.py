"""What a computation shows of itself: on a terminal, in a pipe, in a notebook, and when a master is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.integration.apps.stage import PATIENCE_S, SOURCES, until
from tests.screen import Screen

import mwpy

MAP = """
import logging
import sys
import mwpy

def double(number):
    print("task", number)
    return 2 * number

with mwpy.local_master(slaves=2) as mw:
    for value in mw.map(double, range(20), progress=True):
        sys.stdout.write(f"value {value}\\n")  # at once, also where Python does not buffer
        if value == 10:
            logging.warning("ten")
"""


def on_terminal(script: Path, *arguments: str) -> str:
    """Run a script on a terminal. Return everything that was written there."""
    terminal, side = os.openpty()
    environment = os.environ | {"PYTHONPATH": str(SOURCES), "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, str(script), *arguments], env=environment, stdin=side, stdout=side, stderr=side
    )
    os.close(side)
    written = b""
    try:
        while chunk := os.read(terminal, 65536):
            written += chunk
    except OSError:  # the last process has closed it
        pass
    finally:
        os.close(terminal)
        if process.poll() is None:
            process.wait(PATIENCE_S)
    assert process.returncode == 0, written.decode()
    return written.decode()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "computation.py"
    path.write_text(MAP)
    return path


def test_prints_of_tasks_and_of_the_master_do_not_break_the_line(script: Path) -> None:
    """Each of them is a line of its own. The last line has the last figures. The width of this terminal is 0.

    On a busy machine, one slave has done everything before the other connects, or the master says that it waits.
    """
    written = on_terminal(script)
    *lines, last = Screen().feed(written).lines
    expected = [*(f"task {x}" for x in range(20)), *(f"value {2 * x}" for x in range(20)), "WARNING:root:ten"]
    assert sorted(line for line in lines if not line.startswith("mwpy: nothing has")) == sorted(expected), written
    assert last.startswith("mwpy: double: 100%|"), written
    assert re.search(r"\| 20 of 20, [12] slaves?", last), last


FUTURES = """
import sys
import time
import mwpy

@mwpy.master_algorithm
def master(mw, argv):
    executor = mw.executor()
    futures = [executor.submit(time.sleep, 0.05) for _ in range(40)]
    for future in futures:
        future.result()
    return 0

if __name__ == "__main__":
    sys.exit(mwpy.main())
"""


def test_the_progress_of_all_tasks_is_shown_while_the_algorithm_waits_for_futures(script: Path) -> None:
    """The tasks in the queue of the executor count from the beginning."""
    script.write_text(FUTURES)
    written = on_terminal(script, "--mw-local", "1", "--mw-progress")
    shown = re.findall(r"\| (\d+) of (\d+), 1 slave", written)
    assert shown[-1] == ("40", "40"), written
    assert len({*shown}) > 2, written
    assert {total for _, total in shown} == {"40"}


def in_pipe(script: Path, *arguments: str) -> str:
    """Run a script in pipes. Return what it wrote to standard error."""
    environment = os.environ | {"PYTHONPATH": str(SOURCES)}
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr


MANY = """
import sys
import mwpy

@mwpy.master_algorithm
def master(mw, argv):
    for _ in range(100):
        sum(mw.map(abs, range(10), progress=True))
    return 0

sys.exit(mwpy.main())
"""


def test_a_pipe_gets_lines_of_a_whole_computation_and_not_of_its_short_maps(script: Path) -> None:
    script.write_text(MANY)
    assert "mwpy: abs" not in in_pipe(script, "--mw-local", "0")
    written = in_pipe(script, "--mw-local", "0", "--mw-progress")
    [line] = [line for line in written.splitlines() if line.startswith("mwpy: tasks: ")]
    assert line.startswith("mwpy: tasks: 1000 of 1000 items in ")
    assert "mwpy: abs" not in written


def test_the_progress_of_all_tasks_counts_every_map_and_every_submitted_task() -> None:
    """A later call replaces an earlier one. The summary names failures by kind."""
    reports: list[tuple[int, int | None]] = []
    never: list[tuple[int, int | None]] = []
    with mwpy.local_master(slaves=0) as mw:
        mw.progress(lambda done, total: never.append((done, total)))
        mw.progress(lambda done, total: reports.append((done, total)))
        values = mw.map(abs, range(50))
        for text in ("7", "seven"):
            mw.submit(mwpy.task(int, text))
        assert sum(values) == sum(range(50))
        fetched = 0
        while fetched < 2:
            mw.loop()
            fetched += len(mw.results())
        assert ": 1 ValueError" in mw.summary()
    assert reports[-1] == (52, 52)
    assert not never


def test_progress_that_is_switched_off_is_shown_no_longer() -> None:
    reports: list[tuple[int, int | None]] = []
    with mwpy.local_master(slaves=0) as mw:
        mw.progress(lambda done, total: reports.append((done, total)), total=9)
        assert list(mw.map(abs, [-1, 2])) == [1, 2]
        mw.progress(False)
        assert reports[-1] == (2, 9)
        assert list(mw.map(abs, [-1, 2])) == [1, 2]
    assert reports[-1] == (2, 9)


def test_a_function_that_raises_at_the_end_leaves_no_thread() -> None:
    """Nor a slave: the master ends in spite of it."""
    before = {*threading.enumerate()}

    def fail(done: int, total: int | None) -> None:
        raise LookupError(f"{done} of {total}")

    mw = mwpy.local_master(slaves=1)
    started = {*threading.enumerate()} - before
    mw.progress(fail)
    mw.submit(mwpy.task(abs, -1))
    until(lambda: " 1 done" in repr(mw), "the end of the task, for which nobody waits")
    with pytest.raises(LookupError, match="1 of 1"):
        mw.close()
    until(lambda: not any(each.name == "mwpy-io" and each.is_alive() for each in started), "the end of the thread")


def invert(x: float) -> float:
    return 1 / x


def test_open_is_another_name_of_local_master() -> None:
    """It replaces no builtin for a user of `from mwpy import *`."""
    assert mwpy.open is mwpy.local_master
    assert "open" not in mwpy.__all__
    assert "open" in dir(mwpy)


def test_a_master_shows_how_many_tasks_ended_how() -> None:
    """A cancelled task is neither done nor failed."""
    with mwpy.open(slaves=0) as mw:
        list(mw.map_results(invert, [1.0, 0.0, 2.0]))
        cancelled = [mw.submit(mwpy.task(invert, 1.0)) for _ in range(5)]
        mw.cancel(cancelled)
        numbers = "0 waiting, 0 running, 2 done, 1 failed, 5 cancelled"
        assert f"<mwpy: 1 slave; tasks: {numbers}" in repr(mw)
    assert repr(mw).startswith(f"<mwpy: closed; tasks: {numbers}")


def test_a_master_shows_its_last_failure_and_its_rate() -> None:
    """After the end, nothing has a rate."""
    with mwpy.open(slaves=0) as mw:
        list(mw.map_results(int, ["1", "<b>", "2"], ordered=True))
        assert re.search(r"cancelled, \d\S* per second; last failure: task 2 \(int\) on \S+: ValueError: ", repr(mw))
    assert "cancelled, 0 per second; last failure: task 2" in repr(mw)
