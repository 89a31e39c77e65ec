"""What functions are made of: code inside code, the names that it uses, default arguments, and variables around them.

Nothing here calls a function, or looks at what it reaches.
"""

from __future__ import annotations

import dis
from collections.abc import Collection, Iterator
from functools import lru_cache
from types import CellType, CodeType, FunctionType
from typing import Any

from msgspec import Struct


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield code, and all code inside it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes_in(each)


def cells_of(function: FunctionType) -> list[tuple[str, CellType]]:
    """Return the variables of the functions around a function that it uses, as far as they have values."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    return [(name, cell) for name, cell in cells if cell != CellType()]


def defaults_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the default arguments of a function."""
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    yield from zip(names, values, strict=False)
    yield from sorted((function.__kwdefaults__ or {}).items())


# The names that code uses: globals, with the attributes that are read of them, and imports inside functions.


_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")


class Import(Struct, frozen=True):
    """An import statement in a function."""

    module: str
    level: int
    """How many levels up a relative import begins; 0 for an absolute one."""
    names: tuple[str, ...]
    """What is imported from the module; empty if it is the module itself."""


def chains_in(code: CodeType, inner: bool = True) -> Iterator[tuple[str, ...]]:
    """Yield each global name that code uses, with the attributes that are read of it: `a.b.c` gives (a, b, c).

    Args:
        inner: whether the functions inside it count, too.
    """
    chain: list[str] = []
    for one in codes_in(code) if inner else (code,):
        for each in dis.get_instructions(one):
            if chain and each.opname in _ATTRIBUTE:
                chain.append(str(each.argval))
                continue
            if chain:
                yield tuple(chain)
            chain = [str(each.argval)] if each.opname in _GLOBAL else []


def imports_in(code: CodeType) -> Iterator[Import]:
    """Yield the import statements in code and in the functions inside it."""
    constants: list[object] = [0, None]
    for one in codes_in(code):
        for each in dis.get_instructions(one):
            if each.opname == "IMPORT_NAME":
                level, names = constants[-2:]
                level, names = level if isinstance(level, int) else 0, names if isinstance(names, tuple) else ()
                yield Import(str(each.argval), level, names)
            elif each.opname.startswith("LOAD_"):
                constants.append(each.argval)


def named_by(code: CodeType, operations: Collection[str]) -> Iterator[str]:
    """Yield the names in certain operations of code."""
    return (each.argval for each in dis.get_instructions(code) if each.opname in operations)


@lru_cache(maxsize=1000)
def names_of_globals(code: CodeType) -> frozenset[str]:
    """Return the names of the globals that code uses, with the code inside it."""
    used = {"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL"}
    return frozenset(name for each in codes_in(code) for name in named_by(each, used))


@lru_cache(maxsize=1000)
def names_assigned_in(code: CodeType) -> frozenset[str]:
    """Return the names of the globals that code assigns, with the code inside it."""
    return frozenset(name for each in codes_in(code) for name in named_by(each, {"STORE_GLOBAL"}))
