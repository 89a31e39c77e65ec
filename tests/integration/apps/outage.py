"""Runs tasks that write a line when they start, and end when a file exists."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import mwpy


@mwpy.task_algorithm
def wait(number: int, folder: str) -> int:
    """Note the start, wait for the file `enough`, and return the process id of the slave."""
    with Path(folder, "starts").open("a") as starts:
        starts.write(f"{number} {os.getpid()}\n")
    while not Path(folder, "enough").exists():
        time.sleep(0.02)
    return os.getpid()


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Print the process ids of the slaves that ran the tasks."""
    print(json.dumps(list(mw.map(wait, range(int(argv[0])), [str(Path.cwd())] * int(argv[0]), chunksize=1))))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
