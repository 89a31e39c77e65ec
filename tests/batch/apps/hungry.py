"""Submits tasks that need more and more memory until they have enough. Prints the outcome of each task.

Arguments: how many MiB each task needs, separated by commas; and their limit of memory, if they have one.
"""

from __future__ import annotations

import json
import sys
import time

import mwpy

MIB_PER_S = 25


@mwpy.task_algorithm
def grow(size: int) -> int:
    """Use a little more memory from time to time, up to `size` MiB."""
    kept: list[bytes] = []
    while len(kept) < size:
        kept.append(b"x" * (1 << 20))
        time.sleep(1 / MIB_PER_S)
    return len(kept)


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Submit the tasks. Print the results, and the causes of the deaths of all other tasks."""
    sizes, *limit = argv
    for size in map(int, sizes.split(",")):
        mw.submit(grow.task(size), memory_max=limit[0] if limit else None, attempts_max=1 if limit else 3)
    came: list[int] = []
    unrunnable: list[list[str]] = []
    while len(came) + len(unrunnable) < len(sizes.split(",")):
        mw.loop()
        came += [result.value for result in mw.results(unrunnable=False)]
        unrunnable += [[str(death) for death in task.deaths] for task in mw.unrunnable_tasks()]
    print(json.dumps({"came": came, "unrunnable": unrunnable}))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
