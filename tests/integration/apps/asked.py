"""Submits a task that fails, one that runs until the file `go` exists, and others that wait behind it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import mwpy


@mwpy.task_algorithm
def fail() -> None:
    raise ValueError("no such\x1b[31m setting")


@mwpy.task_algorithm
def wait() -> None:
    while not Path("go").exists():
        time.sleep(0.02)


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Wait for all tasks."""
    mw.submit(fail.task())
    for _ in range(3):
        mw.submit(wait.task())
    while mw.num_runnable_tasks():
        mw.loop(1.0)
        mw.results()
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
