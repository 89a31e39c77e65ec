"""Lets a slave finish a quick task right before a long one. Prints which results arrived, in their order.

The long task ends only when the result of the quick task has arrived. The quick result must be one that the slave
gathers. A slave gathers a result if it sent other results shortly before. Therefore a task that takes longer than the
gathering time runs before each quick task. An attempt in which the quick task took too long does not count.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import mwpy
from mwpy._roles.runner import GATHER_S

ATTEMPTS = 10

HOUR_S = 3600.0
"""The longest duration of the long task: longer than a test waits. The file ends it earlier."""


@mwpy.task_algorithm
def moment(seconds: float) -> float:
    """Return when the task ended, on the clock that all processes of this machine share."""
    time.sleep(seconds)
    return time.monotonic()


@mwpy.task_algorithm
def hour(enough: str) -> None:
    """Run until the file exists."""
    end = time.monotonic() + HOUR_S
    while time.monotonic() < end and not Path(enough).exists():
        time.sleep(0.002)


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Repeat until enough quick results were gathered."""
    arrived: list[list[str]] = []
    while len(arrived) < ATTEMPTS:
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
                    enough.touch()
        if done["quick"] - done["before"] < GATHER_S:
            arrived.append([*done])
    print(json.dumps(arrived))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
