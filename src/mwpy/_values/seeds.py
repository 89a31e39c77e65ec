"""Seeds of tasks: the same numbers for the same task, with any number of slaves, attempts and restarts.

The seed of a task is made from two numbers: the `seed` of its policy, which the user chooses, and the position of the
task. In a map, this is the position of the item. Otherwise it says how many tasks were submitted with the same `seed`
before. It is not the task id: other tasks, which may be submitted at any time, change the ids.

The master makes the seed at submission. It travels with the arguments, so each attempt of the task has the same seed.
"""

from __future__ import annotations

from operator import index
from typing import SupportsIndex

from msgspec import Struct, field

from mwpy._values.errors import UsageError

__all__ = ["RUNNING", "SEED_BYTES", "RunningSeed", "Seeds", "seed_at", "task_seed"]

SEED_BYTES = 16
"""The size of a task's seed: as many bits as the state that NumPy makes from a seed."""


def seed_at(seed: SupportsIndex, position: int) -> int:
    """The seed of the task at a position. A digest makes it, so that neighbours have nothing in common."""
    import hashlib  # only here, because it loads OpenSSL, and the start of a local agent would wait for that

    return int.from_bytes(hashlib.sha256(f"{index(seed)} {position}".encode()).digest()[:SEED_BYTES], "big")


class Seeds(Struct, eq=False):
    """How often each seed was used by the tasks that a master submitted one by one."""

    _uses: dict[int, int] = field(default_factory=dict)

    def next(self, seed: SupportsIndex) -> int:
        """Return the seed of the next task that is submitted with `seed`."""
        number = index(seed)
        position = self._uses.get(number, 0)
        self._uses[number] = position + 1
        return seed_at(seed, position)


class RunningSeed(Struct, eq=False):
    """The seed of the task that runs in this process."""

    seed: int | None = None
    """None if no task runs, or if its policy has no seed."""


RUNNING = RunningSeed()
"""It is global because a process runs one task at a time, and `task_seed` has no other way to find the task."""


def task_seed() -> int:
    """Return the seed of the task that calls this: a random number that is always the same for the same task.

    It depends on the `seed` of the task's policy and on the position of the task: of its item in a map, or among the
    tasks that were submitted one by one with the same `seed`. It does not depend on slaves, attempts and restarts.

    Returns:
        A number of 128 bits, for `random.Random`, `numpy.random.default_rng` and the like.

    Raises:
        UsageError: no task runs in this process, or the policy of the task has no `seed`; the caller's fault.

    Examples:
        >>> def sample(size):                                  # doctest: +SKIP
        ...     return numpy.random.default_rng(mwpy.task_seed()).normal(size=size)
        >>> list(mw.map(sample, [3, 3, 3], seed=1))            # doctest: +SKIP
    """
    if RUNNING.seed is None:
        raise UsageError(
            "mwpy.task_seed() works only in a task with a seed: submit the task with seed=1 (any whole number), as in "
            "mw.map(f, items, seed=1), or mark its function with @mwpy.task_algorithm(seed=1)"
        )
    return RUNNING.seed
