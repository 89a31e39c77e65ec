"""Submits a task that ends when a file exists, and then other tasks. Prints the results as they arrive."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import mwpy

OTHERS = 19
FOREVER_S = 60.0


@mwpy.task_algorithm
def stay(begun: str, enough: str) -> None:
    """Create one file at the start, and end when the other file exists."""
    Path(begun).touch()
    end = time.monotonic() + FOREVER_S
    while time.monotonic() < end and not Path(enough).exists():
        time.sleep(0.01)


@mwpy.task_algorithm
def pass_by() -> None:
    """Return at once."""


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Wait for all tasks. The arguments are the two files of the waiting task."""
    mw.submit(stay.task(*argv), tag="long")
    for number in range(OTHERS):
        mw.submit(pass_by.task(), tag=number)
    finished: list[tuple[object, str | None]] = []
    while len(finished) <= OTHERS:
        mw.loop()
        finished += [(result.tag, result.sid) for result in mw.results() if result.error is None]
    print(json.dumps(finished))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
