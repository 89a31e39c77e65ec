"""Squares many numbers: a third as single tasks, and the others as items of a map.

Each execution of a task writes one line of a fixed length to `executions` when it has ended. The master algorithm
writes a line to `lives` when it begins, and for each result that it gets, its life and the number to `got`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import repeat
from pathlib import Path

import mwpy

FOLDER = Path(os.environ.get("CHAOS_FOLDER", "."))

AHEAD = 2000
"""Limit of the single tasks that wait."""

opened: dict[int, int] = {}
"""The open file of this process, by its process id: a forked slave opens its own."""


def record(line: str) -> None:
    """Add a line to the file of executions, at once and as a whole."""
    pid = os.getpid()
    if pid not in opened:
        opened[pid] = os.open(FOLDER / "executions", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(opened[pid], line.encode())


@mwpy.task_algorithm
def square(number: int, seconds: float) -> int:
    """Take some time, and return the square."""
    began = time.monotonic()
    time.sleep(seconds)
    record(f"{number:>8} {began:>16.6f} {time.monotonic():>16.6f} {os.getpid():>8}\n")
    return number * number


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Square all numbers, and print the sum and how many results came."""
    with (FOLDER / "lives").open("a+") as lives:
        lives.seek(0)
        life = len(lives.readlines()) + 1
        lives.write(f"{time.monotonic():.6f}\n")
    got = (FOLDER / "got").open("a", buffering=1)
    count, seconds = int(argv[0]), float(argv[1])
    singles, came, total = count // 3, 0, 0
    mw.set_target_number(AHEAD)
    submitted = ended = 0
    while ended < singles:
        for number in range(submitted, min(singles, submitted + mw.upto_target_number())):
            mw.submit(square.task(number, seconds), tag=number)
            submitted = number + 1
        mw.loop()
        for result in mw.results():
            got.write(f"{life} {result.tag}\n")
            total += result.value
            ended += 1
    came = ended
    for number, value in enumerate(mw.map(square, range(singles, count), repeat(seconds, count - singles)), singles):
        got.write(f"{life} {number}\n")
        total += value
        came += 1
    print(json.dumps({"came": came, "total": total}))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
