"""Runs tasks of a function that the first slaves cannot load, because memory is missing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mwpy

TASKS = 40


def load(folder: Path, failures: int) -> Callable[[int], int]:
    """Load the function. The first calls fail, in any process: each makes one more file."""
    for number in range(failures):
        try:
            os.close(os.open(folder / f"failure-{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        raise MemoryError("no memory for the table")
    return abs


class Fragile:
    """A function that needs much memory when it is loaded."""

    def __init__(self, *where: object) -> None:
        self.where = where

    def __reduce__(self) -> tuple[Any, ...]:
        return load, self.where

    def __call__(self, number: int) -> int:
        raise NotImplementedError("it runs only in slaves")


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Print the results."""
    fragile = Fragile(Path(argv[0]), int(argv[1]))
    for number in range(TASKS):
        mw.submit(mwpy.task(fragile, -number))
    came: list[int] = []
    while len(came) < TASKS:
        mw.loop()
        came += [result.value for result in mw.results()]
    print(json.dumps(sorted(came)))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
