"""Higher order: functions as arguments of tasks, made on the master and called on a slave.

    python examples/higher_order/higher_order.py                # here, a slave on each core

On several machines, the master first; the slaves read from its resource file where it is:

    python examples/higher_order/higher_order.py --mw-master --mw-resource-file horder.rsc
    python examples/higher_order/higher_order.py --mw-slave --mw-resource-file horder.rsc

A lambda or closure has no name under which a slave could find it, so its code travels; master and
slaves must then run the same minor version of Python.
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
    """Make a closure: the slave gets `factor` with it."""
    return lambda number: number * factor


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Send ten different functions, print what they return."""
    for number in range(TASKS):
        mw.submit(apply.task(multiplier(number), number))
    finished = 0
    while finished < TASKS:
        mw.loop()
        for result in mw.results():
            argument, value = result.value
            print(f"Got result from slave: {argument} times {argument} is {value}")
            finished += 1
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
