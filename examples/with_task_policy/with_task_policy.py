"""With task policy: submit with the same tag and policy each time, by a function that can be mapped.

    python examples/with_task_policy/with_task_policy.py        # here, a slave on each core

On several machines, the master first; the slaves read from its resource file where it is:

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
    """Submit a hundred tasks at most once each; whatever becomes of a task, its tag says which it is."""
    submit_times10 = mw.with_task_policy(times10, tag="a times10 task", retry=False)
    task_ids = list(map(submit_times10, range(1, TASKS + 1)))
    ended = total = 0
    while ended < len(task_ids):
        mw.loop()
        for result in mw.results():
            print(f"Got result from slave: {result.value} ({result.tag})")
            ended += 1
            total += result.value
        for task in mw.unrunnable_tasks():
            print(f"Not tried again, as its policy says: {task.tag}: {task.reason}")
            ended += 1
    print(f"The {ended} tasks add up to {total}.")
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
