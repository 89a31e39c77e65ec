"""Seeds the shared random generators while it is loaded, as many scripts do, and prints what each slave draws first."""

from __future__ import annotations

import json
import os
import random
import sys
import time

import numpy as np

import mwpy

random.seed(1)
np.random.seed(1)


@mwpy.task_algorithm
def draw() -> tuple[int, float, float]:
    """Return the process and its first numbers. Stay long enough for the other slaves to get a task."""
    time.sleep(0.05)
    return os.getpid(), random.random(), float(np.random.random())


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Print the first numbers of two slaves."""
    first: dict[int, tuple[float, float]] = {}
    while len(first) < 2:
        mw.submit(draw.task())
        if mw.loop(0.02).results:
            for result in mw.results():
                pid, *numbers = result.value
                first.setdefault(pid, tuple(numbers))
    print(json.dumps([*first.values()]))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
