"""Runs numbered tasks. At its end, it prints which results arrived, which arrived twice and which are missing."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from itertools import repeat
from pathlib import Path
from typing import Any

import mwpy

AHEAD = 5000
"""Limit of the waiting tasks in the master, for tasks that take no time."""

AHEAD_MS = 500
"""Limit of the waiting work in the master, in milliseconds, for tasks that take time."""

FOREVER_S = 600.0

OBJECT_ITEMS = 100_000
"""How many numbers the object has that the tasks share."""

MADE_ITEMS = 251
"""How many numbers the object has that one task makes for others."""


@mwpy.task_algorithm
def work(number: int, milliseconds: float) -> tuple[int, int]:
    """Take some time. Return the number and the process id of the slave."""
    if milliseconds:
        time.sleep(milliseconds / 1000)
    return number, os.getpid()


@mwpy.task_algorithm
def work_together(number: int, milliseconds: float) -> int:
    """Do the same, but return only the number, so that a map sends many values at once."""
    return work(number, milliseconds)[0]


@mwpy.task_algorithm
def make() -> bytes:
    """Make an object to which other tasks refer."""
    return bytes(range(MADE_ITEMS))


@mwpy.task_algorithm
def look_up(number: int, milliseconds: float, table: list[int], made: bytes) -> tuple[int, int]:
    """Do the same, but return a wrong number if one of the objects is wrong."""
    at, place = number % OBJECT_ITEMS, number % MADE_ITEMS
    return work(number if (table[at], made[place]) == (-at, place) else -1, milliseconds)


@mwpy.task_algorithm
def linger(number: int, mark: str) -> tuple[int, int]:
    """Run forever the first time, and return at once the second time."""
    if not Path(mark).exists():
        Path(mark).touch()
        time.sleep(FOREVER_S)
    return number, os.getpid()


def submit(mw: mwpy.Master, numbers: range, milliseconds: float, table: list[int] | None) -> Iterable[tuple[int, int]]:
    """Submit tasks. If there is a shared object, a third of the tasks use it, and another third is a map.

    Returns:
        The numbers and the values of the map, as they arrive.
    """
    for number in numbers[:: 1 if table is None else 3]:
        mw.submit(work.task(number, milliseconds), tag=number)
    if table is None:
        return ()
    made = mwpy.result(mw.submit(make.task()))
    for number in numbers[1::3]:
        mw.submit(look_up.task(number, milliseconds, table, made), tag=number)
    return zip(numbers[2::3], mw.map(work_together, numbers[2::3], repeat(milliseconds)), strict=True)


def numbered(mw: mwpy.Master) -> list[mwpy.Result[Any]]:
    """Fetch the results of numbered tasks."""
    return [result for result in mw.results(unrunnable=False) if result.tag is not None]


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Keep the slaves busy until the number or the time is reached, then wait for the missing results."""
    asked = parse(argv)
    mw.allocate_slaves(1000)
    mw.set_target_number(max(10, int(AHEAD_MS / asked.milliseconds)) if asked.milliseconds else AHEAD)
    while asked.after and not Path(asked.after).exists():
        mw.loop(0.05)
    came: Counter[int] = Counter()
    wrong: list[str] = []
    unrunnable: list[str] = []
    submitted = 0
    if asked.linger:
        mw.submit(linger.task(0, asked.linger), tag=0)
        submitted = 1
    table = mw.share([-number for number in range(OBJECT_ITEMS)]) if asked.share else None
    end = time.monotonic() + asked.seconds
    while True:
        enough = time.monotonic() >= end or (asked.until and Path(asked.until).exists())
        more = submitted < asked.tasks and not enough
        if more:
            numbers = range(submitted, min(asked.tasks, submitted + mw.upto_target_number()))
            submitted += len(numbers)
            for number, value in submit(mw, numbers, asked.milliseconds, table):
                came[number] += 1
                wrong += [f"{number}: {value}"] * (value != number)
        elif len(came) + len(unrunnable) >= submitted:
            break
        mw.loop(1.0)
        for result in numbered(mw):
            came[result.tag] += 1
            if not result.ok or result.value[0] != result.tag:
                wrong.append(f"{result.tag}: {result.error or result.value}")
        unrunnable += [f"{task.tag}: {task.reason}" for task in mw.unrunnable_tasks()]
    mw.loop(asked.listen)
    came.update(result.tag for result in numbered(mw))
    report = {
        "submitted": submitted,
        "came": len(came),
        "twice": [number for number, times in came.items() if times > 1],
        "wrong": wrong,
        "unrunnable": unrunnable,
    }
    print(json.dumps(report))
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=1 << 40, help="how many tasks at most")
    parser.add_argument("--seconds", type=float, default=1e9, help="for how long tasks are submitted")
    parser.add_argument("--until", default="", help="a file that ends this sooner")
    parser.add_argument("--milliseconds", type=float, default=0.0, help="how long each takes")
    parser.add_argument("--after", default="", help="a file that must be there before the first task")
    parser.add_argument("--linger", default="", help="the file by which a task sees that it was tried before")
    parser.add_argument("--share", action="store_true", help="also run maps, and tasks that share objects")
    parser.add_argument("--listen", type=float, default=0.0, help="seconds in which to hear of a second result")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(mwpy.main())
