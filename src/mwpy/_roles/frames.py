"""Results as a table of pandas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mwpy._values.errors import UsageError
from mwpy._values.task import Result, UnrunnableTask

__all__ = ["to_frame"]

FIXED = (
    "task_id",
    "algorithm",
    "tag",
    "value",
    "error_type",
    "error",
    "slave",
    "host",
    "attempts",
    "started",
    "finished",
    "compute_seconds",
)
"""The keys of `Result.to_dict`."""


def to_frame(results: Iterable[Result[Any] | UnrunnableTask]) -> Any:
    """Return a table of results as a `pandas.DataFrame`, with one row for each.

    The columns are the keys of `Result.to_dict()`. If tags (the items of a map) are dicts, each of their keys is a
    column in place of `tag`; likewise for values and `value`. A key that is the name of another column gets `tag.` or
    `value.` in front.

    Args:
        results: results of any kind, such as a map of results; tasks that are unrunnable, too.

    Raises:
        UsageError: pandas is not installed, or something in `results` is no result; the caller's fault.

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
    rows = [*map(_row, results)]
    columns = {name: [row[name] for row in rows] for name in FIXED[:2]}
    for name in ("tag", "value"):
        columns.update(_spread(name, rows, {*columns, *FIXED}))
    columns |= {name: [row[name] for row in rows] for name in FIXED[4:]}
    return pd.DataFrame(columns)


def _row(result: Result[Any] | UnrunnableTask) -> dict[str, Any]:
    if isinstance(result, UnrunnableTask):
        result = result.result()
    if not isinstance(result, Result):
        raise UsageError(
            f"mwpy.to_frame needs results, not a {type(result).__qualname__}: give it mw.results(), "
            f"mw.map_results(...) or mw.as_completed(...)"
        )
    return result.to_dict()


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
