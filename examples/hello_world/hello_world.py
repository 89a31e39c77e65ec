"""Hello, world: ten tasks, and their results as they arrive.

    python examples/hello_world/hello_world.py                  # here, a slave on each core
    python examples/hello_world/hello_world.py --mw-local 2     # here, two slaves

On several machines, the master first; the slaves read from its resource file where it is:

    python examples/hello_world/hello_world.py --mw-master --mw-resource-file hello.rsc
    python examples/hello_world/hello_world.py --mw-slave --mw-resource-file hello.rsc
"""

import sys

import mwpy

TASKS = 10


@mwpy.task_algorithm
def hello(text: str) -> str:
    """Say hello. This runs on a slave."""
    return f"Hello World: {text}"


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Submit all tasks, then print every result."""
    for number in range(TASKS):
        mw.submit(hello.task(f"Task {number}"))
    finished = 0
    while finished < TASKS:
        mw.loop()
        for result in mw.results():
            print("Got result from slave:", result.value)
            finished += 1
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
