"""Submits tasks that each wait until a file exists, so that the test decides when they end.

    gated.py TASKS FILE

At its end, the master prints as JSON which results are right and which tasks were unrunnable.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import mwpy

LOOK_S = 0.05


@mwpy.task_algorithm
def wait(path: str, number: int) -> int:
    while not Path(path).exists():
        time.sleep(LOOK_S)
    return number * number


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    tasks, gate = int(argv[0]), str(Path(argv[1]).absolute())
    for number in range(tasks):
        mw.submit(wait.task(gate, number), tag=number)
    came: list[int] = []
    unrunnable: list[str] = []
    while len(came) + len(unrunnable) < tasks:
        mw.loop()
        for result in mw.results(unrunnable=False):
            assert result.value == result.tag**2, result
            came.append(result.tag)
        unrunnable += [str(task) for task in mw.unrunnable_tasks()]
    print(json.dumps({"came": sorted(came), "unrunnable": unrunnable}))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
