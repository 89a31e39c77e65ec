"""Submits tasks until the time of the master is nearly over, and does not catch `mwpy.OutOfTime`."""

from __future__ import annotations

import sys
import time

import mwpy


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    for _ in mw.map(time.sleep, [0.05] * 10**6):
        pass
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
