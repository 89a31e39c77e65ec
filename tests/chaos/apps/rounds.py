"""A computation of a chaos run: rounds of many kinds of tasks, whose results are known.

It goes on with rounds until the file `enough` exists. The file `rounds` says how many rounds earlier lives of the
master have begun, and each life does at least these. Each execution of a task writes a line to `executions` when it
starts and when it ends. The master algorithm writes a line to `came` for each result, with the number of its life.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mwpy

FOLDER = Path(os.environ.get("CHAOS_FOLDER", "."))

SINGLE, LOOKUPS, SUMS, LARGE, ONCE, ITEMS = 60, 15, 15, 3, 5, 200
"""How many tasks of each kind are in a round."""

FAILING = 10
"""Every tenth single task raises an exception: a failure is a result, too."""

LARGE_BYTES = 100_000

LOOP_S = 60.0
"""Limit of one wait for results."""


def append(name: str, text: str) -> None:
    """Add lines to a file, at once and as a whole."""
    handle = os.open(FOLDER / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, text.encode())
    os.close(handle)


@contextmanager
def execution(name: str) -> Iterator[None]:
    """Record the start and the end of an execution. The clock is the same in all processes of the machine."""
    host = os.uname().nodename
    append("executions", f"+ {name} {time.monotonic():.6f} {host} {os.getpid()}\n")
    try:
        yield
    finally:
        append("executions", f"- {name} {time.monotonic():.6f} {host} {os.getpid()}\n")


def digest(name: str) -> int:
    """The value that a task with this name has to return."""
    return zlib.crc32(name.encode())


@mwpy.task_algorithm
def single(name: str, seconds: float, fails: bool) -> int:
    """Take some time. Return the digest of the name, or fail."""
    with execution(name):
        time.sleep(seconds)
        if fails:
            raise ValueError(name)
    return digest(name)


@mwpy.task_algorithm
def look_up(name: str, table: list[str], place: int) -> int:
    """Use a shared object."""
    with execution(name):
        return digest(table[place])


@mwpy.task_algorithm
def add(name: str, left: int, right: int) -> int:
    """Use results of other tasks."""
    with execution(name):
        return left + right


@mwpy.task_algorithm
def large(name: str) -> bytes:
    """Return a value that does not fit into a row of the run database."""
    with execution(name):
        return digest(name).to_bytes(4, "big") * (LARGE_BYTES // 4)


@mwpy.task_algorithm
def item(name: str) -> int:
    """Be an item of a map. Items travel together."""
    with execution(name):
        time.sleep(0.001)
    return digest(name)


def names_of(number: int) -> dict[str, int | bytes | None]:
    """The names of all tasks of a round, and their values; None for a failure."""
    singles = [f"{number}/single/{each}" for each in range(SINGLE)]
    expected: dict[str, int | bytes | None] = {
        name: None if each % FAILING == FAILING - 1 else digest(name) for each, name in enumerate(singles)
    }
    expected |= {f"{number}/look_up/{each}": digest(f"{number}:{each}") for each in range(LOOKUPS)}
    for each in range(SUMS):
        left, right = pair(number, each)
        expected[f"{number}/add/{each}"] = digest(left) + digest(right)
    for each in range(LARGE):
        name = f"{number}/large/{each}"
        expected[name] = digest(name).to_bytes(4, "big") * (LARGE_BYTES // 4)
    for kind, count in (("once", ONCE), ("item", ITEMS)):
        expected |= {f"{number}/{kind}/{each}": digest(f"{number}/{kind}/{each}") for each in range(count)}
    return expected


def pair(number: int, each: int) -> tuple[str, str]:
    """The names of the two tasks whose results a sum adds. Neither fails."""
    return f"{number}/single/{2 * each // FAILING * FAILING}", f"{number}/single/{each % (FAILING - 1)}"


class Came:
    """What came to the master algorithm in this life."""

    def __init__(self, life: int) -> None:
        self._life = life
        self._seen: set[str] = set()
        self.wrong: list[str] = []
        self.twice: list[str] = []
        self.unrunnable: list[str] = []
        self.results = 0

    def note(self, name: str, value: object, error: BaseException | None, expected: int | bytes | None) -> None:
        """Record one result, and compare it with what it should be."""
        is_unrunnable = "/once/" in name and isinstance(error, mwpy.TaskUnrunnable)
        append("came", f"{self._life} {name} {time.monotonic():.6f} {'unrunnable' if is_unrunnable else 'ended'}\n")
        self.results += 1
        if name in self._seen:
            self.twice.append(name)
        self._seen.add(name)
        if is_unrunnable:
            self.unrunnable.append(name)
        elif (error is not None) != (expected is None) or (error is None and value != expected):
            self.wrong.append(f"{name}: {error!r}" if error else f"{name}: {str(value)[:50]}")
        elif error is not None and "ValueError" not in str(error):
            self.wrong.append(f"{name}: {error!r}")

    def missing(self, expected: dict[str, int | bytes | None]) -> list[str]:
        return [name for name in expected if name not in self._seen]


def submit(mw: mwpy.Master, number: int, dice: random.Random) -> dict[mwpy.TaskId, str]:
    """Submit the single tasks of a round in random order. Return their names by their ids."""
    table = mw.share([f"{number}:{each}" for each in range(20_000)])
    ids: dict[str, mwpy.TaskId] = {}
    for each in dice.sample(range(SINGLE), SINGLE):
        name = f"{number}/single/{each}"
        ids[name] = mw.submit(single.task(name, each % 7 * 0.004, each % FAILING == FAILING - 1))
    for each in range(LOOKUPS):
        name = f"{number}/look_up/{each}"
        ids[name] = mw.submit(look_up.task(name, table, each))
    for each in range(SUMS):
        name, (left, right) = f"{number}/add/{each}", pair(number, each)
        ids[name] = mw.submit(add.task(name, mwpy.result(ids[left]), mwpy.result(ids[right])))
    for each in range(LARGE):
        name = f"{number}/large/{each}"
        ids[name] = mw.submit(large.task(name))
    for each in range(ONCE):
        name = f"{number}/once/{each}"
        ids[name] = mw.submit(single.task(name, 0.01, False), retry=False)
    return {task: name for name, task in ids.items()}


def one_round(mw: mwpy.Master, number: int, came: Came, dice: random.Random) -> list[str]:
    """Run all tasks of a round. Return the names of those that did not come."""
    expected = names_of(number)
    waiting = submit(mw, number, dice)
    items = [name for name in expected if "/item/" in name]
    for name, value in zip(items, mw.map(item, items), strict=True):
        came.note(name, value, None, expected[name])
    while waiting:
        mw.loop(LOOP_S)
        for result in mw.results():
            name = waiting.pop(result.task_id)
            came.note(name, result.value if result.ok else None, result.error, expected[name])
    return came.missing(expected)


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Do rounds until it is enough, and print what came."""
    begun = FOLDER / "rounds"
    append("lives", f"{time.monotonic():.6f}\n")
    came = Came(len((FOLDER / "lives").read_text().splitlines()))
    dice, number, missing = random.Random(), 0, list[str]()
    while True:
        done_before = len(begun.read_text()) if begun.exists() else 0
        if number >= done_before:
            if number and (FOLDER / "enough").exists():
                break
            append("rounds", "x")
        missing += one_round(mw, number, came, dice)
        number += 1
    report = {"rounds": number, "results": came.results, "missing": missing, "wrong": came.wrong, "twice": came.twice}
    print(json.dumps({**report, "unrunnable": came.unrunnable}))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
