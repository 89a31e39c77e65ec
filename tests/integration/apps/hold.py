"""Submits quick tasks, and one task that holds the GIL in C for the given time; prints when each result arrived."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path

import mwpy

WARM_UP = 50
"""After this many tasks, the master knows that they are quick."""


@mwpy.task_algorithm
def sleep(seconds: int) -> int:
    """Sleep in C without releasing the GIL. Create a file that shows that the long sleep begins."""
    if seconds:
        Path("holds").touch()
        ctypes.PyDLL(None).sleep(seconds)
    return os.getpid()


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """After a warm-up, submit two quick tasks, the long task, and another quick task behind it."""
    pids = {*mw.map(sleep, [0] * WARM_UP)}
    for tag, seconds in (("first", 0), ("second", 0), ("long", int(argv[0])), ("last", 0)):
        mw.submit(sleep.task(seconds), tag=tag)
    came: dict[str, float] = {}
    began = time.monotonic()
    while len(came) < 4:
        mw.loop()
        for result in mw.results():
            pids.add(result.value)
            came[result.tag] = time.monotonic() - began
    print(json.dumps({"came": came, "slaves": len(pids)}))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
