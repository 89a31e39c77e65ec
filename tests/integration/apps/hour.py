"""Has a slave finish a quick task right before one that goes on and on; tells how long each quick result was under way.

What is measured is a result that the slave gathers: one that is finished so soon after the slave last sent results that
it is not sent at once. So a task that takes longer than results are gathered goes ahead of each, and a try in which
the quick task was not that quick counts for nothing.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import mwpy
from mwpy.slave import GATHER_S

TRIES = 10

HOUR_S = 2.0
"""As good as an hour against what is measured; the task ends before if nobody waits for it any more."""


@mwpy.task_algorithm
def moment(seconds: float) -> float:
    """Say when it was done, on the clock that all processes of this machine share."""
    time.sleep(seconds)
    return time.monotonic()


@mwpy.task_algorithm
def hour(enough: str) -> None:
    """Go on until somebody says that it is enough."""
    end = time.monotonic() + HOUR_S
    while time.monotonic() < end and not Path(enough).exists():
        time.sleep(0.002)


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Try until enough quick results were gathered behind another."""
    under_way: list[float] = []
    while len(under_way) < TRIES:
        enough = Path("enough")
        enough.unlink(missing_ok=True)
        mw.submit(moment.task(2 * GATHER_S), tag="before")
        mw.submit(moment.task(0.0), tag="quick")
        mw.submit(hour.task(str(enough)), tag="hour")
        done: dict[str, float] = {}
        while "hour" not in done:
            mw.loop()
            for result in mw.results():
                done[result.tag] = result.value or 0.0
                if result.tag == "quick":
                    arrived = time.monotonic()
                    enough.touch()
        if done["quick"] - done["before"] < GATHER_S:
            under_way.append(arrived - done["quick"])
    print(json.dumps(under_way))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
