"""Submits quick tasks, and one task that holds the GIL in C. Prints in which order the results arrived.

The long task holds the GIL for the given time, and until the results of the quick tasks before it have arrived.
"""

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


RELEASE = "release"
"""A named pipe. A byte in it ends the long task."""


@mwpy.task_algorithm
def hold(pipe: str) -> int:
    """Read a byte from a pipe in C, without releasing the GIL. Create a file that shows that the wait begins."""
    if pipe:
        end = os.open(pipe, os.O_RDWR)
        Path("holds").touch()
        ctypes.PyDLL(None).read(end, ctypes.create_string_buffer(1), 1)
    return os.getpid()


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """After a warm-up, submit two quick tasks, the long task, and another quick task behind it."""
    os.mkfifo(RELEASE)
    release = os.open(RELEASE, os.O_RDWR)
    pids = {*mw.map(hold, [""] * WARM_UP)}
    for tag, pipe in (("first", ""), ("second", ""), ("long", RELEASE), ("last", "")):
        mw.submit(hold.task(pipe), tag=tag)
    came: list[str] = []
    ends_at = time.monotonic() + float(argv[0])
    is_held = True
    while len(came) < 4:
        mw.loop(timeout=0.1)
        for result in mw.results():
            pids.add(result.value)
            came.append(result.tag)
        if is_held and len(came) == 2 and time.monotonic() >= ends_at:
            is_held = False
            os.write(release, b"x")
    print(json.dumps({"came": came, "slaves": len(pids)}))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
