"""Tasks that end when the test wants them to: each waits until a file is there.

    gated.py TASKS FILE

The master says at its end, as JSON, which came back right and what could not be run.
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
        for result in mw.results():
            assert result.value == result.tag**2, result
            came.append(result.tag)
        unrunnable += [str(task) for task in mw.unrunnable_tasks()]
    print(json.dumps({"came": sorted(came), "unrunnable": unrunnable}))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
