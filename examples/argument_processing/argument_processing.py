"""Argument processing: a task takes the same arguments as its function, and a type checker checks them.

    python examples/argument_processing/argument_processing.py  # this machine, one slave per core

On several machines, start the master first. The slaves find it through its resource file:

    python examples/argument_processing/argument_processing.py --mw-master --mw-resource-file args.rsc
    python examples/argument_processing/argument_processing.py --mw-slave --mw-resource-file args.rsc

mypy reports a wrong argument at the line that makes the task call. Without a type checker, the call fails
on the slave with a `TypeError`, as a direct call would, and the result contains this error.
"""

import sys

import mwpy


@mwpy.task_algorithm
def required(a: int, b: int, c: int) -> str:
    return f"required: {a} {b} {c}"


@mwpy.task_algorithm
def with_defaults(a: int, b: int, c: int, d: int | None = None, e: int = 42) -> str:
    return f"with defaults: {a} {b} {c} {d} {e}"


@mwpy.task_algorithm
def with_keywords(a: int, *, d: int = 100, e: int | None = None, f: int | None = None) -> str:
    return f"with keywords: {a} d={d} e={e} f={f}"


@mwpy.task_algorithm
def with_rest(a: int, *rest: int) -> str:
    return f"with rest: {a} {rest}"


@mwpy.task_algorithm
def with_any_keywords(a: int, **named: int) -> str:
    return f"with any keywords: {a} {named}"


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Submit one task for each way to pass arguments. Print the results in the order of submission."""
    calls = [
        required.task(1, 2, 3),
        required.task(1, c=3, b=2),
        with_defaults.task(4, 5, 6),
        with_defaults.task(4, 5, 6, 7),
        with_keywords.task(10, f=50, e=40),
        with_rest.task(100, 101, 102, 103),
        with_any_keywords.task(200, x=1, y=2),
    ]
    texts = {result.tag: result.value for result in mw.as_completed(calls)}
    for call in calls:
        print("Got result from slave:", texts[call])
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
