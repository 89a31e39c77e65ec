"""Leaks memory in each task, and prints which processes ran tasks, and how large they were at most."""

from __future__ import annotations

import json
import sys
import time

import mwpy
from mwpy._system.memory import resident_bytes

LEAK: list[bytes] = []


@mwpy.task_algorithm
def leak(size: int, seconds: float) -> int:
    """Keep some memory. Return how large this process is."""
    LEAK.append(b"x" * size)
    time.sleep(seconds)
    return resident_bytes()


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Run tasks. The arguments are their number, how many bytes each leaks, and how many seconds each takes."""
    tasks, size, seconds = int(argv[0]), int(argv[1]), float(argv[2])
    results = list(mw.map_results(leak, [size] * tasks, [seconds] * tasks))
    assert all(result.attempts >= 1 for result in results)
    values = [result.value for result in results]
    report = {
        "tasks": len(values),
        "largest": max(values),
        "slaves": len({result.sid for result in results}),
    }
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
