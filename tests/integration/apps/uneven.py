"""Runs tasks of one algorithm that need little memory, then some that need much. Prints their results."""

from __future__ import annotations

import json
import sys
import time

import mwpy

SMALL, LARGE = 5, 150
"""What a task needs, in MiB."""

NUM_SMALL, NUM_LARGE = 40, 6


@mwpy.task_algorithm(memory_max="400 MiB", attempts_max=1)
def hold(size: int) -> int:
    """Use memory for long enough to be measured."""
    kept = b"x" * (size << 20)
    time.sleep(0.6 if size == SMALL else 1.5)
    return len(kept) >> 20


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """The small tasks come first, and fit into the memory of the job."""
    small = list(mw.map(hold, [SMALL] * NUM_SMALL))
    results = list(mw.map_results(hold, [LARGE] * NUM_LARGE))
    large = [result.value if result.ok else str(result.error) for result in results]
    print(json.dumps({"small": small, "large": large, "attempts": [result.attempts for result in results]}))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
