"""Two maps. One task of the second map hangs in its first attempt. Prints the values, and how often this task was sent.

The argument is the policy `speculate` of the map, as JSON, or `null` for none.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import mwpy

HANGS = 7
"""The item whose first attempt hangs."""


@mwpy.task_algorithm
def double(number: int) -> int:
    """Hang in the first attempt of one item, and say in a file which process hangs."""
    if number == HANGS:
        try:
            Path("begun").touch(exist_ok=False)
        except FileExistsError:
            return 2 * number
        Path("pid.new").write_text(str(os.getpid()))
        Path("pid.new").rename("pid")
        while True:
            time.sleep(0.1)
    return 2 * number


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Run the maps, and wait until the test has seen enough."""
    speculate = json.loads(argv[0])
    policy = mwpy.Policies() if speculate is None else mwpy.Policies(speculate=speculate)
    results = [*mw.map_results(double, range(HANGS), ordered=True, **policy)]
    results += mw.map_results(double, range(HANGS, 20), ordered=True, **policy)
    Path("complete").touch()
    while not Path("enough").exists():
        mw.loop(0.1)
    print(json.dumps({"values": [result.value for result in results], "attempts": results[HANGS].attempts}))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
