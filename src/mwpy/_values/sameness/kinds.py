"""The parts of objects that say different things to pickle in different versions of Python or of their library, or that
refer to memory instead of values.

The libraries are not imported here: an object of theirs exists only if they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from enum import Enum
from fractions import Fraction
from logging import Logger
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

__all__ = ["parts_of"]

Parts = Sequence[Any]


def parts_of(value: Any) -> Parts | None:
    """Return what an object consists of, beside its class; None if this is what it says to pickle."""
    for kind, parts in _KINDS:
        if isinstance(value, kind):
            return parts(value)
    pandas: Any = sys.modules.get("pandas")
    if pandas is not None and str(type(value).__module__).partition(".")[0] == "pandas":
        return _of_pandas(value, pandas)
    return None


_KINDS: tuple[tuple[type, Callable[[Any], Parts]], ...] = (
    (Enum, lambda value: (value.value,)),
    (PurePath, lambda value: (str(value),)),
    (Fraction, lambda value: (value.numerator, value.denominator)),
    (MappingProxyType, lambda value: (dict(value),)),
    (Logger, lambda _: ()),
)
"""A logger counts by its class alone: its name can be that of a module, and this is another one in the script."""


def _of_pandas(value: Any, pandas: Any) -> Parts | None:
    """Return the parts of an object of pandas. How its columns lie together in memory does not count."""
    if isinstance(value, pandas.DataFrame):
        columns = [value.iloc[:, place].array for place in range(value.shape[1])]
        return (value.index, value.columns, columns, value.attrs)
    if isinstance(value, pandas.Series):
        return (value.index, value.name, value.array, value.attrs)
    if isinstance(value, pandas.RangeIndex):
        return (value.start, value.stop, value.step, value.name)
    if isinstance(value, pandas.MultiIndex):
        return ([*value.names], [value.get_level_values(level).array for level in range(value.nlevels)])
    if isinstance(value, pandas.Index):
        return (value.name, value.array)
    if isinstance(value, pandas.api.extensions.ExtensionArray):
        return (str(value.dtype), *_of_array(value, pandas))
    return None


def _of_array(value: Any, pandas: Any) -> Parts:
    if isinstance(value, pandas.Categorical):
        return (value.codes, value.categories, value.ordered)
    if hasattr(value, "asi8"):
        return (value.asi8,)
    return (value.to_numpy(),)
