"""Prints as JSON how many threads the numeric libraries of each slave would start, by the job of the slave.

    threads.py SLAVES

It ends when this many slaves have run a task.
"""

from __future__ import annotations

import json
import os
import sys

import mwpy


@mwpy.task_algorithm
def look() -> tuple[str, int, str]:
    return os.environ["MWPY_JOB"], os.getpid(), os.environ["OMP_NUM_THREADS"]


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    seen: set[tuple[str, int, str]] = set()
    mw.submit(look.task())
    while len(seen) < int(argv[0]):
        mw.loop()
        seen.update(result.value for result in mw.results())
        mw.submit(look.task())
    print(json.dumps({"threads": sorted((job, threads) for job, _, threads in seen)}))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
