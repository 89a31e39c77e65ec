"""Maps numbers to their squares again and again, until a file exists. It fails at the first wrong value.

Arguments: the file.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path

import mwpy

NUMBERS = 200
"""How many numbers a map has."""


def square(number: int) -> int:
    """Take some time, so that most kills meet a task that runs."""
    time.sleep(0.003)
    return number * number


if __name__ == "__main__":
    with mwpy.local_master(slaves=3, attempts_max=100_000) as mw:
        for first in itertools.count(0, NUMBERS):
            numbers = range(first, first + NUMBERS)
            if (values := list(mw.map(square, numbers))) != [number * number for number in numbers]:
                sys.exit(f"the squares of {numbers} are not {values}")
            if Path(sys.argv[1]).exists():
                print(json.dumps(numbers.stop))
                break
