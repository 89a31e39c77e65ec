"""Whether what a function reaches is still what it was a moment ago.

To follow a function takes a millisecond, and a master may submit a hundred thousand tasks one by one. So the result is
kept, with everything that it depends on in this process: the code of functions, and the variables with their values.
Functions, classes and plain values are compared by identity. Other values can change in place, so their digests are
compared. They are not kept themselves, because they may be large.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from msgspec import Struct, field

from mwpy._values.messagepack import PLAIN
from mwpy._values.plain import hash_of
from mwpy._values.references import Reference
from mwpy._values.sameness.structure import digest_of
from mwpy._values.sameness.things import library_name

__all__ = ["Watch"]

_GONE = object()

_THINGS = (type, FunctionType, ModuleType, Reference)

Owner = Mapping[str, Any] | CellType


class Watch(Struct, eq=False):
    """What the code of one function depends on."""

    _codes: list[tuple[FunctionType, CodeType, Any]] = field(default_factory=list)
    """Functions, with their code and their default arguments."""
    _same: list[tuple[Owner, str, Any]] = field(default_factory=list)
    """Variables whose values must be the same objects."""
    _equal: list[tuple[Owner, str, bytes | None]] = field(default_factory=list)
    """Variables whose values must have the same digests; None if they have none."""

    def add_function(self, function: FunctionType) -> None:
        """The code of a function counts."""
        self._codes.append((function, function.__code__, function.__defaults__))

    def add_variable(self, owner: Owner, name: str = "") -> None:
        """The value of a variable counts.

        Args:
            owner: the globals of a module, the attributes of a class, or the cell of a closure.
        """
        value = _value(owner, name)
        if type(value) in PLAIN or isinstance(value, _THINGS):
            self._same.append((owner, name, value))
        else:
            self._equal.append((owner, name, _digest(value)))

    def is_unchanged(self) -> bool:
        """Whether nothing has changed since it was added."""
        return (
            all(each.__code__ is code and each.__defaults__ is defaults for each, code, defaults in self._codes)
            and all(_value(owner, name) is value for owner, name, value in self._same)
            and all(_digest(_value(owner, name)) == digest for owner, name, digest in self._equal)
        )


def _value(owner: Owner, name: str) -> Any:
    if not isinstance(owner, CellType):
        return owner.get(name, _GONE)
    try:
        return owner.cell_contents
    except ValueError:
        return _GONE


def _digest(value: Any) -> bytes | None:
    try:
        return digest_of(value, _by_identity)
    except Exception:  # also one of the user's own methods
        return None


def _by_identity(thing: Any) -> bytes | None:
    """Say that functions and classes count by what they are in this process."""
    if isinstance(thing, _THINGS):
        return hash_of(b"identity", str(id(thing)).encode())
    name = library_name(thing)
    return None if name is None else hash_of(b"name", name.encode())
