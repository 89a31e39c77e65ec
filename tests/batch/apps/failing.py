"""Runs some tasks on a slave of its own. Then it ends as the file `end` says: it fails, it is killed, or it succeeds.

The file `starts` records the starts of the master algorithm, and the file `ran` the executions of tasks.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import mwpy

TASKS = 20


def record(number: int) -> int:
    with Path("ran").open("a") as file:
        file.write(f"{number}\n")
    return number


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    with Path("starts").open("a") as file:
        file.write("started\n")
    print(sum(mw.map(record, range(TASKS))))
    end = Path("end").read_text()
    if end == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    assert end == "well", "this computation ends badly"
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
