"""What an interrupted map costs the next one: print a table, for quick tasks, for short and for long sleeps.

At random moments, a map is left by Ctrl-C or by `break`. It is measured how soon the call is back, how soon no task of
the map is left, and the rate of the next map, as a share of the rate of the map before. Long tasks do not end by
themselves, so their slaves are killed and replaced. Then the next map begins without slaves.

The arguments are the number of tasks of the next map, and the number of moments.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from statistics import median

import mwpy

LATEST_S = 0.3
"""The last moment of an interrupt, counted from the call of the map."""

KINDS: dict[str, tuple[Callable[..., object], Callable[[], Iterable[object]]]] = {
    "quick tasks": (abs, itertools.count),
    "sleeps of 1 ms": (time.sleep, lambda: itertools.repeat(0.001)),
    "sleeps of a minute": (time.sleep, lambda: itertools.repeat(60.0)),
}


def rate(mw: mwpy.Master, tasks: int) -> float:
    """Return the tasks per second of one map."""
    began = time.perf_counter()
    assert sum(mw.map(abs, range(tasks))) == tasks * (tasks - 1) // 2
    return tasks / (time.perf_counter() - began)


def leave(mw: mwpy.Master, kind: str, moment: float, by_break: bool) -> float:
    """Start a map, and leave it at a moment. Return the seconds from that moment until the call is back."""
    function, items = KINDS[kind]
    at = [0.0]

    def interrupt() -> None:
        at[0] = time.perf_counter()
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(moment, interrupt)
    until = time.perf_counter() + moment
    try:
        if not by_break:
            timer.start()
        for _ in mw.imap_unordered(function, items()):
            if by_break and time.perf_counter() > until:
                at[0] = time.perf_counter()
                break
    except KeyboardInterrupt:
        pass
    return time.perf_counter() - at[0]


def busiest_thread(seconds: float) -> float:
    """Return the largest share of a core that a thread of this process uses."""

    def used() -> dict[str, int]:
        stats = [path.read_text() for path in Path("/proc/self/task").glob("*/stat")]
        return {stat.split()[0]: sum(map(int, stat.rpartition(")")[2].split()[11:13])) for stat in stats}

    before = used()
    time.sleep(seconds)
    after = used()
    return max(after[thread] - before.get(thread, 0) for thread in after) / os.sysconf("SC_CLK_TCK") / seconds


def main() -> None:
    tasks, count = map(int, sys.argv[1:] or (1_000_000, 51))
    moments, seen = Random(7), {kind: list[tuple[float, float, float, float]]() for kind in KINDS}
    with mwpy.local_master(slaves=2) as mw:
        rate(mw, tasks)
        undisturbed = []
        for number in range(count):
            kind = [*KINDS][number % len(KINDS)]
            undisturbed.append(rate(mw, tasks))
            # a map of long tasks has no value after which it could be left
            back = leave(mw, kind, moments.uniform(0.001, LATEST_S), number % 2 == 0 and "minute" not in kind)
            began = time.perf_counter()
            while mw.num_runnable_tasks():
                mw.loop_iterate(0.001)
            gone = time.perf_counter() - began
            share = rate(mw, tasks) / undisturbed[-1]
            seen[kind].append((back, gone, share, busiest_thread(0.2)))
    usual = median(undisturbed)
    print(f"{usual:,.0f} tasks/s in an undisturbed map of {tasks / usual:.1f} s")
    print(f"{'left':20} {'back after':>12} {'no task after':>14} {'next map, median':>17} {'lowest':>7} {'thread':>7}")
    for kind, rows in seen.items():
        back, gone, share, busy = ([row[column] for row in rows] for column in range(4))
        shares = f"{median(share):17.0%} {min(share):7.0%}"
        print(f"{kind:20} {max(back):10.2f} s {max(gone):12.2f} s {shares} {max(busy):7.0%}")


if __name__ == "__main__":
    main()
