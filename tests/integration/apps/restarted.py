"""A computation that can be killed and started again. Files in its folder say what ran and what the master has seen."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path

import mwpy


def append(name: str, line: object) -> None:
    """Add a line to a file, at once and as a whole."""
    handle = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{line}\n".encode())
    os.close(handle)


@mwpy.task_algorithm
def work(number: int, milliseconds: float) -> int:
    """Return the square, and fail for some numbers."""
    append("ran", number)
    time.sleep(milliseconds / 1000)
    if number % 10 == 7:
        raise ValueError(f"no square of {number}")
    return number * number


@mwpy.task_algorithm
def size_of(text: str) -> int:
    """A task for a map, whose items travel together."""
    append("ran", text)
    return len(text)


@mwpy.task_algorithm
def add(left: int, right: int) -> int:
    """A task that refers to results of others."""
    append("ran", f"{left} + {right}")
    return left + right


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Submit tasks in a random order. Write each result that arrives to a file."""
    count, milliseconds = int(argv[0]), float(argv[1])
    numbers = [*range(count)]
    random.shuffle(numbers)
    for number in numbers:
        mw.submit(work.task(number, milliseconds), tag=number)
    values: dict[int, int | None] = {}
    while len(values) < count:
        mw.loop()
        for result in mw.results():
            append("seen", result.tag)
            values[result.tag] = result.value if result.ok else None
    sizes = sum(mw.map(size_of, (f"{number:07}" for number in range(count))))
    one, two = mw.submit(work.task(1, 0)), mw.submit(work.task(2, 0))
    last = mw.submit(add.task(mwpy.result(one), mwpy.result(two)), tag="sum")
    sums: dict[object, int] = {}
    while last not in sums:
        mw.loop()
        sums.update((result.task_id, result.value) for result in mw.results())
    failed = sum(value is None for value in values.values())
    total = sum(value for value in values.values() if value is not None)
    runs = Path("ran").read_text().split("\n") if Path("ran").exists() else []
    print(json.dumps({"total": total, "failed": failed, "sizes": sizes, "sum": sums[last], "ran": len(runs) - 1}))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
