"""One task that is longer than any agent lives. It goes on from its last step. Prints its result and its attempts."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import mwpy

STEP_S = 0.1


@mwpy.task_algorithm
def walk(steps: int, log: str) -> int:
    """Take the steps that are left, one after the other. Write down the first step of this attempt."""
    step: int = mwpy.restored(0)
    with Path(log).open("a") as file:
        file.write(f"{step}\n")
    while step < steps:
        time.sleep(STEP_S)
        step += 1
        mwpy.checkpoint(step)
    return step


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Run the task. The arguments are the number of steps and the name of the log."""
    [result] = mw.map_results(walk, [int(argv[0])], [argv[1]])
    print(json.dumps({"value": result.value, "attempts": result.attempts}))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
