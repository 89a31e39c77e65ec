"""A master that runs orders: each line that a test appends to a file is a method of `mw` with its arguments."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mwpy


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Run the orders in the file until one of them is `return`."""
    for name, arguments in orders(Path(argv[0])):
        if name == "return":
            returned: int = arguments[0]
            return returned
        getattr(mw, name)(*arguments)
    raise AssertionError("orders never end")


def orders(file: Path) -> Iterator[tuple[str, list[Any]]]:
    """Yield each complete order of the file: its name and its arguments."""
    done = 0
    while True:
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        for name, *arguments in map(json.loads, lines[done:]):
            yield name, arguments
        done = len(lines)
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(mwpy.main())
