"""A master with enough tasks for many slaves, until a file exists. Each task appends its number to a file.

The argument is a name: the files are NAME.ran and NAME.enough. It prints how many tasks it has submitted, and whether
each result was exact.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import mwpy

WAITING = 40
"""How many tasks have no result yet, until there are enough."""


@mwpy.task_algorithm
def cube(number: int, ran: str) -> int:
    with Path(ran).open("a") as file:
        file.write(f"{number}\n")
    time.sleep(0.2)
    return number**3


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Submit tasks until there are enough."""
    ran, enough = Path(f"{argv[0]}.ran").absolute(), Path(f"{argv[0]}.enough")
    submitted, results = 0, dict[int, int]()
    while not enough.exists() or len(results) < submitted:
        while not enough.exists() and submitted - len(results) < WAITING:
            mw.submit(cube.task(submitted, str(ran)), tag=submitted)
            submitted += 1
        mw.loop_iterate(0.1)
        results |= {result.tag: result.value for result in mw.results()}
    exact = all(results[number] == number**3 for number in range(submitted))
    print(json.dumps({"tasks": submitted, "exact": exact}))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
