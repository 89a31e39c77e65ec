"""One task that notes each of its starts in a file and stays until it may go; what became of it is said at the end.

A task that was charged with the end of the slaves in which it ran is not tried for ever; one that was not charged is.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import mwpy


@mwpy.task_algorithm
def stay(diary: str, enough: str) -> int:
    """Note a start, and stay until the second file is there; the number of starts."""
    with Path(diary).open("a") as file:
        file.write("started\n")
    while not Path(enough).exists():
        time.sleep(0.05)
    return len(Path(diary).read_text().splitlines())


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Submit it and say how often it was started, or why it could not be run."""
    diary, enough = argv
    mw.submit(stay.task(diary, enough))
    mw.loop()
    starts = [result.value for result in mw.results()]
    print(json.dumps({"starts": starts, "unrunnable": [task.reason for task in mw.unrunnable_tasks()]}))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
