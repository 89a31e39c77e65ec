"""How long the task that runs in this process may go on."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from attrs import define

from mwpy._system import clock

__all__ = ["RUNNING", "RunningTime", "seconds_left"]


@define(eq=False)
class RunningTime:
    """The time of the task that runs in this process."""

    end_at: Callable[[], float] | None = None
    """Returns when the task must end, on the monotonic clock, as far as this is known now. None if no task runs, or if
    nobody would end it."""


RUNNING = RunningTime()
"""It is global because a process runs one task at a time, and `seconds_left` has no other way to find the task."""


def seconds_left() -> float:
    """Return how long the task that calls this may still run.

    The time ends with the policy `seconds_max` of the task, and with the time of its agent: its lifetime, the time
    limit of its job, or the grace period after SIGTERM. So the number can shrink suddenly. When it is 0, the task is
    killed.

    Returns:
        Seconds; `math.inf` if no end is known, or if no task runs. In the process of the master (`slaves=0` and
        `mwpy.replay`), nobody ends a task, so it is `math.inf` there.

    Example:
        >>> def search(space):                                 # doctest: +SKIP
        ...     while mwpy.seconds_left() > 60:
        ...         space.improve()
        ...     return space.best
    """
    return inf if RUNNING.end_at is None else max(0.0, RUNNING.end_at() - clock.monotonic())
