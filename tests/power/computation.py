"""A computation with a run database whose disk loses its power.

Arguments: the number of tasks, and a file. This gets a line for each result that the master algorithm gets, in their
order, and a line `tick` four times a second. So the ticks say how old a result was when the power was lost, also on a
machine that is so busy that all threads are late. `PACE_S` in the environment is how long a task takes, in seconds.
With `LOG_PAGES`, the log is copied into the file when it has this number of pages.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from itertools import islice

import mwpy
from mwpy._database import opening

TICK_S = 0.25

LARGE_BYTES = 300_000
"""A value of this size is a file of its own beside the run database."""


@mwpy.task_algorithm
def work(number: int) -> object:
    """Return a value that is small, medium or large, or fail."""
    time.sleep(float(os.environ.get("PACE_S", "0")))
    if number % 10 == 7:
        raise ValueError(f"no value of {number}")
    return value_of(number)


def value_of(number: int) -> object:
    """The value of a task that does not fail."""
    if number % 50 == 3:
        return bytes([number % 251]) * LARGE_BYTES
    return str(number) * 2000 if number % 10 == 5 else number * number


def append(path: str, line: str) -> None:
    """Add a line to a file."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{line}\n".encode())
    os.close(file)


def tick(path: str) -> None:
    """Write ticks until the process ends."""
    while True:
        append(path, "tick")
        time.sleep(TICK_S)


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Submit tasks a few at a time, and check each result."""
    count, path = int(argv[0]), argv[1]
    numbers, ended, failed = iter(range(count)), 0, 0
    mw.set_target_number(10)
    while ended < count:
        for number in islice(numbers, mw.upto_target_number()):
            mw.submit(work.task(number), tag=number)
        mw.loop()
        for result in mw.results():
            if not ended:
                threading.Thread(target=tick, args=(path,), daemon=True).start()
            append(path, f"{result.task_id} {result.tag}")
            ended += 1
            failed += not result.ok
            assert not result.ok or result.value == value_of(result.tag)
    print(ended, failed)
    return 0


if __name__ == "__main__":
    opening.CHECKPOINT_PAGES = int(os.environ.get("LOG_PAGES", opening.CHECKPOINT_PAGES))
    sys.exit(mwpy.main())
