"""Computes squares, wrongly on one host. `SAYS_HOST` is the host that a process claims to be on."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import mwpy

platform.node = lambda: os.environ.get("SAYS_HOST", "host-of-master")


@mwpy.task_algorithm
def square(number: int) -> dict[str, Any]:
    """Return a number and its square; on the host `wrong`, another number."""
    time.sleep(0.02)
    squared = number * number + (os.environ.get("SAYS_HOST") == "wrong")
    return {"number": number, "square": squared, "factors": {number, -number}}


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Run tasks. The arguments are their number, and a file that exists when all slaves are ready."""
    while not Path(argv[1]).exists():
        mw.loop(0.05)
    results = list(mw.map_results(square, range(int(argv[0]))))
    wrong = [each.task_id for each in results if each.value["square"] != each.value["number"] ** 2]
    print(json.dumps({"tasks": len(results), "wrong": wrong}))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
