"""Runs a task that failed once more, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from mwpy._core.master.failed_calls import KEPT_CALLS, FailedCalls
from mwpy._transport.call_parts import seed_of, split_resumed
from mwpy._transport.codec import loads_call, loads_function, loads_state
from mwpy._values import checkpoints
from mwpy._values.algorithm import find
from mwpy._values.errors import UsageError
from mwpy._values.ids import Buffer
from mwpy._values.messagepack import decode
from mwpy._values.seeds import RUNNING

__all__ = ["calls_of_newest_master", "replay"]

_newest: list[FailedCalls] = [FailedCalls()]
"""The calls of the newest master that failed lately. It is global because a user replays a task also after its master
has ended. Each master has its own, because each numbers its tasks from 1."""


def calls_of_newest_master() -> FailedCalls:
    """Return where a new master keeps its calls. From now on, `replay` looks there."""
    _newest[0] = FailedCalls()
    return _newest[0]


class _Replayed(Struct, eq=False):
    """A task that runs again: its states and reports are ignored, because it has no next attempt and no master."""

    _left: Sequence[Buffer]
    """The last state that the task left; empty if it left none."""

    def leave(self, state: object) -> None:
        """Ignore a state."""

    def report(self, values: dict[str, object]) -> None:
        """Ignore a report: no master algorithm waits for it."""

    def restored(self, default: object) -> object:
        """Return the last state that the task left."""
        return loads_state(self._left) if self._left else default


def replay(task_id: int) -> Any:
    """Run a failed task again, in this process and thread: for a debugger, or to see whether a correction helps.

    The arguments and the seed are those of the task. A function that travels by name is taken as it is here now. A
    function by value is the one that failed, with its variables. The newest failed tasks of the newest master are kept:
    up to 1000, with up to 64 MiB of arguments. `mwpy.restored()` returns the last state that the task left before it
    failed.

    Args:
        task_id: the id of the task, which the text of its `TaskFailed` shows.

    Returns:
        The value of the task.

    Raises:
        UsageError: no task with this id has failed, or it is not kept any more; the caller's fault.
        Exception: what the task raises. The traceback shows the frames of the task.

    Examples:
        >>> import pdb                                         # doctest: +SKIP
        >>> pdb.runcall(mwpy.replay, 17)                       # doctest: +SKIP
    """
    call = _newest[0].get(task_id)
    if call is None:
        raise UsageError(
            f"task {task_id!r} cannot run again here: it is not among the last {KEPT_CALLS} tasks of the newest master "
            f"that failed with an exception, or its arguments were too large to be kept; submit it again"
        )
    definition = call.algorithm.definition
    # if the user has corrected the function, the new one is called
    function = find(definition.reference) if definition.reference else loads_function(call.algorithm.packed)
    entry, buffers, left = split_resumed(decode(call.payload), [bytearray(buffer) for buffer in call.buffers])
    args, kwargs = loads_call(entry, buffers)
    before = RUNNING.seed, checkpoints.RUNNING.task
    RUNNING.seed, checkpoints.RUNNING.task = seed_of(entry), _Replayed(left)
    try:
        return function(*args, **kwargs)
    finally:
        RUNNING.seed, checkpoints.RUNNING.task = before
