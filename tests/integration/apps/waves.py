"""A master that submits tasks when a test orders it. Each task ends when its file exists.

The argument is a folder. Each line that a test appends to `orders` in it is `tasks N NAME`, for N tasks that end when a
file NAME exists, `tasks N NAME CPUS`, for those that need so many processors, or `return CODE`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import mwpy


@mwpy.task_algorithm
def wait(file: str) -> None:
    while not Path(file).exists():
        time.sleep(0.02)


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Run the orders until one of them is `return`."""
    folder, done = Path(argv[0]), 0
    while True:
        orders = folder / "orders"
        lines = orders.read_text().split("\n")[:-1] if orders.exists() else []
        for line in lines[done:]:
            match line.split():
                case ["tasks", number, name, *cpus]:
                    policy: mwpy.Policies = {"cpus": int(cpus[0])} if cpus else {}
                    for _ in range(int(number)):
                        mw.submit(wait.task(str(folder / name)), **policy)
                case ["return", code]:
                    return int(code)
        done = len(lines)
        mw.loop_iterate(0.02)
        mw.results()


if __name__ == "__main__":
    sys.exit(mwpy.main())
