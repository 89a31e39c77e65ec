"""With task policy: make a function that submits tasks with one tag and one policy, and use it with `map`.

    python examples/with_task_policy/with_task_policy.py        # this machine, one slave per core

On several machines, start the master first. The slaves find it through its resource file:

    python examples/with_task_policy/with_task_policy.py --mw-master --mw-resource-file policy.rsc
    python examples/with_task_policy/with_task_policy.py --mw-slave --mw-resource-file policy.rsc
"""

import sys

import mwpy

TASKS = 100


@mwpy.task_algorithm
def times10(number: int) -> int:
    """Multiply by ten. This runs on a slave."""
    return number * 10


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Submit a hundred tasks that run at most once. The tag returns with each result."""
    submit_times10 = mw.with_task_policy(times10, tag="a times10 task", retry=False)
    task_ids = list(map(submit_times10, range(1, TASKS + 1)))
    ended = total = 0
    while ended < len(task_ids):
        mw.loop()
        for result in mw.results():
            ended += 1
            if result.ok:
                print(f"Got result from slave: {result.value} ({result.tag})")
                total += result.value
            else:
                print(f"No value for {result.tag}: {result.error}")
    print(f"The {ended} tasks add up to {total}.")
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
