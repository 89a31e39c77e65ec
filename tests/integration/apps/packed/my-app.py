"""A script as users have them: a name with a dash, modules and a package beside it, an installed package, data.

python my-app.py [WORD ...]
"""

import sys

import sortedcontainers
import units
from shapes import area

import mwpy

try:
    import not_to_be_had
except ImportError:
    not_to_be_had = None


@mwpy.task_algorithm
def work(n: int) -> tuple[int, list[int], str]:
    """Use all that was packed; say where this runs."""
    ordered = sortedcontainers.SortedList([units.metres(n), area.square(n), area.side()])
    return n, list(ordered), sys.prefix


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Print what the tasks found, and the arguments."""
    found = [result.value for result in mw.map(work, range(4), ordered=True)]
    print([numbers for _, numbers, _ in found], argv)
    print("from", ", ".join(sorted({prefix for *_, prefix in found})))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
