"""What a user does with results afterwards: run a failed task once more, or make a table of them."""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

from attrs import define

from mwpy._core.master.algorithms import KEPT_CALLS, FailedCalls
from mwpy._transport.codec import extras_of, loads_call, loads_function, loads_state, split_resumed
from mwpy._values import messages
from mwpy._values.algorithm import find
from mwpy._values.bounds import Buffer, TaskId
from mwpy._values.errors import UsageError
from mwpy._values.messagepack import decode
from mwpy._values.task import RUNNING, Result, UnrunnableTask

_newest: list[FailedCalls] = [FailedCalls()]
"""The calls of the newest master that failed lately. It is global because a user replays a task also after its master
has ended. Each master has its own, because each numbers its tasks from 1."""


def look_in(calls: FailedCalls) -> None:
    """From now on, `replay` looks for the calls of this master."""
    _newest[0] = calls


@define(eq=False, repr=False)
class _Replayed:
    """A task that runs again: its states and reports are ignored, because it has no next attempt and no master."""

    _task_id: TaskId
    _left: Sequence[Buffer]
    """The last state that the task left; empty if it left none."""

    def this_attempt(self) -> messages.Attempt:
        """Return which task runs."""
        return messages.Attempt(self._task_id, 0)

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
    before = RUNNING.seed, messages.RUNNING.task
    RUNNING.seed, messages.RUNNING.task = extras_of(entry)[0], _Replayed(TaskId(task_id), left)
    try:
        return function(*args, **kwargs)
    finally:
        RUNNING.seed, messages.RUNNING.task = before


# Results as a table of pandas.


FIXED = (
    "tag",
    "value",
    "error_type",
    "error",
    "task_id",
    "algorithm",
    "slave",
    "host",
    "attempts",
    "started",
    "finished",
    "compute_seconds",
)
"""The keys of `Result.to_dict`, in the order of the columns."""

SPREAD = ("tag", "value")
"""Those of them that may be several columns."""


def to_frame(results: Iterable[Result[Any] | UnrunnableTask]) -> Any:
    """Return a table of results as a `pandas.DataFrame`, with one row for each.

    The columns are the keys of `Result.to_dict()`: first `tag`, `value`, `error_type` and `error`. If tags (items of
    maps) are dicts or named tuples, each of their keys is a column in place of `tag`; likewise for values and `value`.
    A key that is the name of another column gets `tag.` or `value.` in front.

    Args:
        results: results of any kind, such as a map of results; tasks that are unrunnable, too.

    Raises:
        UsageError: pandas is not installed, something in `results` is no result, or they were read before; the
            caller's fault.

    Examples:
        >>> table = mwpy.to_frame(mw.map_results(simulate, settings))  # doctest: +SKIP
        >>> table.groupby("temperature").energy.mean()                 # doctest: +SKIP
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise UsageError(
            f"mwpy.to_frame needs pandas, which cannot be imported here ({error}): install it with `pip install "
            f"pandas`, or use [result.to_dict() for result in results]"
        ) from error
    if isinstance(results, Generator) and inspect.getgeneratorstate(results) == inspect.GEN_CLOSED:
        raise UsageError(
            "mwpy.to_frame: these results were read before, and a map gives each result once: keep the table, or a "
            "list of the results"
        )
    rows = [*map(_row, results)]
    columns: dict[str, list[Any]] = {}
    for name in SPREAD:
        columns.update(_spread(name, rows, {*columns, *FIXED}))
    columns |= {name: [row[name] for row in rows] for name in FIXED[len(SPREAD) :]}
    return pd.DataFrame(columns)


def _row(result: Result[Any] | UnrunnableTask) -> dict[str, Any]:
    if isinstance(result, UnrunnableTask):
        result = result.result()
    if not isinstance(result, Result):
        raise UsageError(
            f"mwpy.to_frame needs results, not a {type(result).__qualname__}: give it mw.results(), "
            f"mw.map_results(...) or mw.as_completed(...)"
        )
    row = result.to_dict()
    for name in SPREAD:
        if isinstance(row[name], tuple) and hasattr(row[name], "_asdict"):
            row[name] = row[name]._asdict()
    return row


def _spread(name: str, rows: list[dict[str, Any]], taken: set[str]) -> dict[str, list[Any]]:
    """The columns for the tags or for the values: one for each key of dicts, and one for everything else, if any."""
    objects = [row[name] for row in rows]
    keys = dict.fromkeys(key for each in objects if isinstance(each, Mapping) for key in each)
    columns: dict[str, list[Any]] = {}
    if not keys or any(each is not None and not isinstance(each, Mapping) for each in objects):
        columns[name] = [None if isinstance(each, Mapping) and keys else each for each in objects]
    for key in keys:
        column = str(key) if str(key) not in taken and str(key) not in columns else f"{name}.{key}"
        columns[column] = [each.get(key) if isinstance(each, Mapping) else None for each in objects]
    return columns
