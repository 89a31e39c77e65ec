"""A typical script: its name has a dash, and it uses modules, a package, an installed package and data.

python my-app.py [WORD ...]
"""

import os
import sys

import sortedcontainers
import units
from shapes import area

import mwpy

try:
    import not_available
except ImportError:
    not_available = None

LOADED_BY = os.getpid()
"""The process that has loaded this script: a fork is another one."""


@mwpy.task_algorithm
def work(n: int) -> tuple[int, list[int], str, bool]:
    """Use everything that was packed. Return the folder of the environment, too, and whether this slave is a fork."""
    ordered = sortedcontainers.SortedList([units.metres(n), area.square(n), area.side()])
    return n, list(ordered), sys.prefix, os.getpid() != LOADED_BY


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Print the values of the tasks and the arguments."""
    found = [*mw.map(work, range(4))]
    print([numbers for _, numbers, *_ in found], argv)
    print("started as", {"forks" if is_fork else "interpreters" for *_, is_fork in found})
    print("from", ", ".join(sorted({prefix for *_, prefix, _ in found})))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
