"""A script for a queue: squares of numbers, with a table. It notes each task that runs, and may wait or fail.

Arguments: how many tasks, how long each of them waits in seconds, and `fails` for a failure at the end.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import mwpy


@mwpy.task_algorithm
def square(number: int, wait_s: float, ran: str) -> int:
    with Path(ran).open("a", encoding="utf-8") as file:
        file.write(f"{time.time()} {number} {os.getuid()}\n")
    time.sleep(wait_s)
    return number * number


@mwpy.master_algorithm
def squares(mw: mwpy.Master, arguments: list[str]) -> int:
    count, wait_s = int(arguments[0]), float(arguments[1])
    ran = str(Path("ran.txt").absolute())
    found = [*mw.map(square, range(count), [wait_s] * count, [ran] * count, chunksize=1)]
    Path("table.txt").write_text("".join(f"{each}\n" for each in found))
    if "fails" in arguments:
        raise ValueError("this study is wrong")
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
