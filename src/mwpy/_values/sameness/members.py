"""What a class of the user consists of: its source, its functions and its plain attributes.

The source of the functions is left out of the source of the class, because they count alone: so a change is reported
where it is. Functions that a decorator has generated, as that of dataclasses, follow from the source and do not count.
Without source, everything in the class counts as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cached_property, partialmethod
from pathlib import PurePath
from types import CodeType, FunctionType
from typing import Any

from msgspec import Struct

from mwpy._values.messagepack import PLAIN
from mwpy._values.plain import hash_of
from mwpy._values.sameness.normal import normal_digest
from mwpy._values.sameness.sources import SOURCES

__all__ = ["Members", "members_of"]

_DATA = (*PLAIN, complex, tuple, list, dict, set, frozenset, range, bytearray, date, timedelta, Decimal, Fraction)
"""The types of attributes that count by their value. Others count by the source that makes them."""


class Members(Struct, frozen=True):
    """The members of a class."""

    content: bytes
    """The digest of its source, without its functions; or of its name if it has no source."""
    code: CodeType | None
    """The code of its body, if it has a source."""
    functions: list[tuple[str, Any]]
    data: list[tuple[str, Any]]
    space: dict[str, Any]
    """The globals of its module."""


def members_of(kind: type) -> Members:
    """Return the members of a class."""
    space = vars(sys.modules[kind.__module__]) if kind.__module__ in sys.modules else {}
    functions = [(name, each) for name, value in vars(kind).items() for each in _functions(value)]
    codes = [each.__code__ for _, each in functions if _is_inside(each, kind)]
    file = str(space.get("__file__") or (codes[0].co_filename if codes else ""))
    source = SOURCES.of_class(file, kind.__qualname__, [each for each in codes if each.co_filename == file])
    if source is None:
        content, code = hash_of(b"class", kind.__qualname__.encode()), None
    else:
        inside = frozenset(name for name, each in functions if _is_inside(each, kind))
        content, code = normal_digest(source[0], without=inside), source[1]
        functions = [(name, each) for name, each in functions if not _is_generated(each, file)]
    return Members(content, code, functions, [*_data(kind)], space)


def _is_inside(function: FunctionType, kind: type) -> bool:
    """Whether a function is defined in the body of a class."""
    return function.__code__.co_qualname.startswith(f"{kind.__qualname__}.")


def _is_generated(function: FunctionType, file: str) -> bool:
    """Whether a function was made from a text. Its name may be that of a function around it."""
    while isinstance(wrapped := vars(function).get("__wrapped__"), FunctionType):
        function = wrapped
    name = function.__code__.co_filename
    return name.startswith("<") and name != file


def _functions(value: Any) -> Iterator[FunctionType]:
    """Yield the functions in an attribute of a class."""
    if isinstance(value, FunctionType):
        yield value
    elif isinstance(value, classmethod | staticmethod):
        yield from _functions(value.__func__)
    elif isinstance(value, property):
        for each in (value.fget, value.fset, value.fdel):
            yield from _functions(each)
    elif isinstance(value, cached_property | partialmethod):
        yield from _functions(value.func)


def _data(kind: type) -> Iterator[tuple[str, Any]]:
    if issubclass(kind, Enum):
        yield "members", {name: each.value for name, each in kind.__members__.items()}
        return
    for name, value in vars(kind).items():
        hidden = name.startswith("__") and name.endswith("__")
        if not hidden and (type(value) in _DATA or isinstance(value, PurePath)):
            yield name, value
