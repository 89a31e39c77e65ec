"""The benchmark: print a table of what a task costs, with the ratio to the bare loop of `bare.py`.

Machines differ, and the speed of many machines varies by half from one second to the next. Therefore mwpy and the bare
loop are measured alternately. The table shows the medians and the range of the ratios.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

import mwpy

BARE = Path(__file__).with_name("bare.py")
TASKS = 100_000
ROUNDS = 7


@mwpy.task_algorithm
def nothing(number: int) -> int:
    return number


@mwpy.task_algorithm
def same(array: np.ndarray) -> np.ndarray:
    return array


def submitted_singly(mw: mwpy.Master) -> float:
    """Return tasks per second. Each task is submitted alone, with a tag."""
    mw.set_target_number(10_000)
    began = time.perf_counter()
    submitted = finished = 0
    while finished < TASKS:
        for _ in range(min(TASKS - submitted, mw.upto_target_number())):
            mw.submit(nothing.task(submitted), tag=submitted)
            submitted += 1
        mw.loop()
        finished += sum(result.value == result.tag for result in mw.results())
    return TASKS / (time.perf_counter() - began)


def mapped(mw: mwpy.Master) -> float:
    """Return items per second through `mw.map`."""
    began = time.perf_counter()
    finished = sum(1 for _ in mw.map(nothing, range(TASKS)))
    return finished / (time.perf_counter() - began)


def round_trip(mw: mwpy.Master) -> float:
    """Return the milliseconds from a submission to its result, as the mean of 500 tasks in sequence."""
    began = time.perf_counter()
    for number in range(500):
        mw.submit(nothing.task(number))
        mw.loop()
        mw.results()
    return (time.perf_counter() - began) / 500 * 1000


def arrays(mw: mwpy.Master) -> float:
    """Return megabytes per second for arrays of 1 MB that are sent to a slave and returned."""
    array = np.zeros(1 << 17)
    count = 200
    began = time.perf_counter()
    total = sum(value.nbytes for value in mw.map(same, (array for _ in range(count))))
    return 2 * total / (time.perf_counter() - began) / 1e6


def bytes_queued(mw: mwpy.Master) -> float:
    """Return the resident bytes of one waiting task in the master."""
    mw.allocate_slaves(2, "ordered")  # ordered slaves do not take these tasks, so they wait
    time.sleep(0.5)
    gc.collect()
    before = _resident()
    count = 5 * TASKS  # with this many tasks, memory that was free before hardly counts
    for number in range(count):
        mw.submit(nothing.task(number))
    time.sleep(0.5)
    return (_resident() - before) / count


def _resident() -> int:
    statm = Path("/proc/self/statm").read_text(encoding="ascii")
    return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")


def bare_rate() -> float:
    """Return the tasks per second of the bare loop."""
    return TASKS / _bare_seconds(TASKS)


def bare_round_trip() -> float:
    """Return the milliseconds of a round trip of the bare loop."""
    return _bare_seconds(500, 1) / 500 * 1000


def _bare_seconds(*arguments: int) -> float:
    """Run the bare loop in its own process, so that it does not slow down the measurement of mwpy."""
    run = subprocess.run([sys.executable, BARE, *map(str, arguments)], check=True, capture_output=True, text=True)
    return float(run.stdout)


TABLE: tuple[tuple[str, Callable[[mwpy.Master], float], str, Callable[[], float] | None], ...] = (
    ("no-op tasks submitted singly, with tags", submitted_singly, "tasks/s", bare_rate),
    ("no-op items by mw.map", mapped, "items/s", bare_rate),
    ("round trip of one task", round_trip, "ms", bare_round_trip),
    ("1 MB arrays there and back", arrays, "MB/s", None),
    ("a task that waits", bytes_queued, "bytes", None),
)


@mwpy.master_algorithm
def master(mw: mwpy.Master, _argv: list[str]) -> int:
    list(mw.map(nothing, range(1000)))  # wait until all slaves run
    for name, measure, unit, comparator in TABLE:
        reached: list[float] = []
        ratios: list[float] = []
        repeat = measure is not bytes_queued  # after bytes_queued, no slave takes tasks
        for _ in range(ROUNDS if repeat else 1):
            if repeat:
                measure(mw)  # warm up, as the bare loop does: an idle machine speeds up slowly
            reached.append(measure(mw))
            if comparator is not None:
                ratios.append(reached[-1] / comparator())
        ratio = f"  {median(ratios):.2f} of the bare loop ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else ""
        print(f"{name:40s} {median(reached):12,.2f} {unit:8s}{ratio}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main([*sys.argv[1:], "--mw-local", "2"]))
