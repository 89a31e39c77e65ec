"""Checkpoints: a task leaves a state, and its next attempt goes on from there.

The state travels to the master at once, because nobody knows when the attempt will be lost. The master never unpickles
it.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

from mwpy._values.errors import UsageError

__all__ = ["RUNNING", "RunningTask", "checkpoint", "restored", "running_task"]


class RunningTask(Protocol):
    """The task that runs, for the functions below and for `reports.report`."""

    def leave(self, state: object) -> None:
        """Leave a state for the next attempt."""

    def restored(self, default: object) -> object:
        """Return the state that an earlier attempt left, or a default."""

    def report(self, values: dict[str, object]) -> None:
        """Send interim values to the master."""


class _Running(threading.local):
    """The task that runs in this thread. A thread that a task started may outlive the task, so it has none."""

    task: RunningTask | None = None
    """None if no task runs."""


RUNNING = _Running()
"""It is global for the same reason as `seeds.RUNNING`."""


def checkpoint(state: object) -> None:
    """Leave the state of the task that calls this, so that its next attempt can go on from there.

    If this attempt is lost, for any reason, the next attempt gets the state from `mwpy.restored()`. A new state
    replaces the one before. The state is pickled at once, so it may change afterwards. The agent sends the newest state
    to the master at most once a second, and before it ends.

    Args:
        state: any object that can be pickled, up to the size of a result (`--mw-max-read-buffer-size`).

    Raises:
        UsageError: no task runs in this thread, or the state is too large; the caller's fault.
        ArgumentNotPicklable: the state cannot be pickled; the caller's fault.

    Examples:
        >>> def count(limit):                                  # doctest: +SKIP
        ...     number = mwpy.restored(0)
        ...     while number < limit:
        ...         number += 1
        ...         mwpy.checkpoint(number)
    """
    running_task("mwpy.checkpoint()").leave(state)


def restored(default: Any = None) -> Any:
    """Return the state that an earlier attempt of the task that calls this left with `mwpy.checkpoint`.

    Args:
        default: what to return if there is none, as in the first attempt.

    Returns:
        The newest state that reached the master. During an attempt, it is always the same object.

    Raises:
        UsageError: no task runs in this thread; the caller's fault.
        Exception: the state cannot be unpickled here, for example because a module is not installed.

    Examples:
        >>> def count(limit):                                  # doctest: +SKIP
        ...     for number in range(mwpy.restored(0), limit):
        ...         mwpy.checkpoint(number)
    """
    return running_task("mwpy.restored()").restored(default)


def running_task(call: str) -> RunningTask:
    """Return the task that runs in this thread.

    Args:
        call: what the user has called.

    Raises:
        UsageError: no task runs in this thread; the caller's fault.
    """
    if RUNNING.task is None:
        raise UsageError(
            f"{call} works only in a task, in the thread that runs the task: call it in the function that is submitted "
            f"or mapped"
        )
    return RUNNING.task
