"""Higher order: pass functions as arguments of tasks. The master creates them, and a slave calls them.

    python examples/higher_order/higher_order.py                # this machine, one slave per core

On several machines, start the master first. The slaves find it through its resource file:

    python examples/higher_order/higher_order.py --mw-master --mw-resource-file horder.rsc
    python examples/higher_order/higher_order.py --mw-slave --mw-resource-file horder.rsc

A slave cannot import a lambda or closure by name, so its code is sent by value. The master and the slaves
must then run the same minor version of Python.
"""

import sys
from collections.abc import Callable

import mwpy

TASKS = 10


@mwpy.task_algorithm
def apply(function: Callable[[int], int], argument: int) -> tuple[int, int]:
    """Call a function. This runs on a slave."""
    return argument, function(argument)


def multiplier(factor: int) -> Callable[[int], int]:
    """Return a closure. Its `factor` is sent to the slave with it."""
    return lambda number: number * factor


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Call ten different functions on slaves and print the values."""
    numbers = range(TASKS)
    for argument, value in mw.map(apply, map(multiplier, numbers), numbers):
        print(f"Got result from slave: {argument} times {argument} is {value}")
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
