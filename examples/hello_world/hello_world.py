"""Hello, world: run ten tasks and print their values.

    python examples/hello_world/hello_world.py                  # this machine, one slave per core
    python examples/hello_world/hello_world.py --mw-local 2     # this machine, two slaves

On several machines, start the master first. The slaves find it through its resource file:

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
    """Print the value of each task, in the order of the tasks."""
    for text in mw.map(hello, (f"Task {number}" for number in range(TASKS))):
        print("Got result from slave:", text)
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
