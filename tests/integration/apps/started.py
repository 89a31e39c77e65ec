"""Shows what slaves have from their start: numbers, seeds, what the slave algorithm made, and what they leave."""

from __future__ import annotations

import atexit
import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import mwpy

print("loaded", end=" ")  # without a line feed, this waits in a buffer

STATE: dict[str, int] = {}
LEFT = Path(sys.argv[1])


@atexit.register
def leave() -> None:
    """Append a line for each process that ends regularly."""
    with LEFT.open("a") as file:
        file.write(f"{os.getpid()}\n")


@mwpy.task_algorithm(seed=7)
def draw(_number: int) -> dict[str, object]:
    """Return what this process is and draws."""
    seeded = random.Random(mwpy.task_seed()).random()
    return {
        "pid": os.getpid(),
        "session": os.getsid(0),
        "made": STATE["made"],
        "seeded": seeded,
        "drawn": [random.random(), float(np.random.random())],
    }


@mwpy.task_algorithm(retry=False)
def crash() -> None:
    """End the slave in native code."""
    print("last words", end="", flush=True)
    os.abort()


@mwpy.slave_algorithm
def slave(mw: mwpy.Slave, argv: list[str]) -> int:
    """Make something for all tasks of this slave."""
    STATE["made"] = os.getpid()
    return mw.loop_simple()


def each(mw: mwpy.Master) -> Iterator[dict[str, object]]:
    """Draw, let the slaves crash, and draw again."""
    yield from mw.map(draw, range(20))
    for _ in range(2):
        mw.submit(crash.task())
    for result in mw.results():
        assert isinstance(result.error, mwpy.TaskUnrunnable)
    yield from mw.map(draw, range(20))


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Write everything to a file."""
    LEFT.with_suffix(".json").write_text(json.dumps([*each(mw)]))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
