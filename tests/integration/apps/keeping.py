"""A value that stays at its agent is used at two agents, lost, computed again and released. Prints what was seen.

The argument is the number of elements of the value.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import mwpy


@mwpy.task_algorithm(keep=True)
def make(size: int) -> tuple[int, Any]:
    """Return the agent that has the value, and the value."""
    return os.getppid(), np.arange(float(size))


@mwpy.task_algorithm
def use(made: tuple[int, Any], users: int) -> tuple[int, int, float]:
    """Wait until this many tasks have begun. Return the agent, the agent of the first task, and the sum."""
    Path(f"user-{os.getpid()}").touch()
    while len([*Path().glob("user-*")]) < users:
        time.sleep(0.01)
    return os.getppid(), made[0], float(made[1].sum())


def results(mw: mwpy.Master, count: int) -> list[Any]:
    """Wait for some results."""
    found: list[Any] = []
    while len(found) < count:
        mw.loop()
        found += mw.results()
    return found


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Use the value twice at a time, kill its agent, use it again, and release it."""
    value = mw.submit(make.task(int(argv[0])))
    [made] = results(mw, 1)
    try:
        stays = made.value is None
    except mwpy.UsageError:
        stays = True
    for _ in range(2):
        mw.submit(use.task(mwpy.result(value), 2))
    first = [result.value for result in results(mw, 2)]
    os.kill(first[0][1], signal.SIGKILL)
    mw.submit(use.task(mwpy.result(value), 1))
    [again] = results(mw, 1)
    mw.release([value])
    try:
        mw.submit(use.task(mwpy.result(value), 1))
    except mwpy.UsageError as error:
        refused = str(error)
    mw.loop(0.1)
    print(json.dumps({"stays": stays, "first": first, "again": again.value, "refused": refused}))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
