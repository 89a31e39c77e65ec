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
    """Run tasks. The arguments are their number, a file that exists when all slaves are ready, and perhaps another
    file: then as many tasks run again and again until this file exists, and results in doubt are corrected."""
    while not Path(argv[1]).exists():
        mw.loop(0.05)
    results = list(mw.map_results(square, range(int(argv[0]))))
    while argv[2:] and not Path(argv[2]).exists():
        results += mw.map_results(square, range(int(argv[0])))
    report: dict[str, Any] = {"tasks": len(results), "wrong": [each.task_id for each in results if is_wrong(each)]}
    if argv[2:]:
        items = {each.task_id: each.tag for each in results}
        second = mw.corrections()
        report["corrected"] = [each.task_id for each in second]
        report["wrong again"] = [each.task_id for each in second if is_wrong(each) or each.host == "wrong"]
        report["misnamed"] = [each.task_id for each in second if items[each.task_id] != each.tag]
        report["later"] = len(mw.corrections())
    print(json.dumps(report))
    return 0


def is_wrong(result: mwpy.Result[dict[str, Any]]) -> bool:
    """Whether a result is not the square of its item."""
    return (result.value["number"], result.value["square"]) != (result.tag, result.tag**2)


if __name__ == "__main__":
    sys.exit(mwpy.main())
