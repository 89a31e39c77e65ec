"""Submits one task that records each of its starts in a file and runs until another file exists. Prints the outcome.

A task that is charged with the end of its slaves becomes unrunnable. A task that is not charged runs again each time.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import mwpy


@mwpy.task_algorithm
def stay(diary: str, enough: str) -> int:
    """Record a start, and run until the second file exists. Return the number of starts."""
    with Path(diary).open("a") as file:
        file.write("started\n")
    while not Path(enough).exists():
        time.sleep(0.05)
    return len(Path(diary).read_text().splitlines())


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Submit the task. Print how often it was started, or why it is unrunnable."""
    diary, enough = argv
    mw.submit(stay.task(diary, enough))
    mw.loop()
    starts = [result.value for result in mw.results(unrunnable=False)]
    print(json.dumps({"starts": starts, "unrunnable": [task.reason for task in mw.unrunnable_tasks()]}))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
