"""Submits tasks that ask how much time is left. Prints the results."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import mwpy

SOON_S = 100.0


@mwpy.task_algorithm
def watch(begun: str) -> list[float]:
    """Create a file, and wait until the end is near. Return how much time was left before and then."""
    first = mwpy.seconds_left()
    Path(begun).touch()
    while (left := mwpy.seconds_left()) > SOON_S:
        time.sleep(0.01)
    return [first, left]


@mwpy.task_algorithm
def step(begun: str, seconds: float) -> list[float]:
    """Sleep until the end is near in the first attempt, leave a state, and give up. Then return this state."""
    before: list[float] = mwpy.restored([])
    if not before:
        Path(begun).touch()
        try:
            with mwpy.warned(seconds):
                time.sleep(1000)
        except mwpy.EndIsNear:
            mwpy.checkpoint([mwpy.seconds_left()])
            raise
    return before


@mwpy.task_algorithm
def ask(_: int) -> bool:
    """Return whether no end is known."""
    return mwpy.seconds_left() == float("inf")


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """The arguments are the name of the task algorithm and its argument."""
    if argv[0] == "watch":
        print(json.dumps(list(mw.map(watch, [argv[1]]))))
    elif argv[0] == "step":
        [result] = mw.map_results(step, [argv[1]], [float(argv[2])], attempts_max=1)
        print(json.dumps([result.value, result.attempts]))
    else:
        results = mw.map_results(ask, range(3), seconds_expected=float(argv[1]))
        print(json.dumps([[result.value, result.attempts] for result in results]))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
