"""The names that code uses: globals, with the attributes that are read of them, and imports inside functions."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType

from msgspec import Struct

__all__ = ["Import", "chains_in", "imports_in"]

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
    for each in dis.get_instructions(code):
        if chain and each.opname in _ATTRIBUTE:
            chain.append(str(each.argval))
            continue
        if chain:
            yield tuple(chain)
        chain = [str(each.argval)] if each.opname in _GLOBAL else []
    if inner:
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from chains_in(constant)


def imports_in(code: CodeType) -> Iterator[Import]:
    """Yield the import statements in code and in the functions inside it."""
    constants: list[object] = [0, None]
    for each in dis.get_instructions(code):
        if each.opname == "IMPORT_NAME":
            level, names = constants[-2:]
            yield Import(
                str(each.argval), level if isinstance(level, int) else 0, names if isinstance(names, tuple) else ()
            )
        elif each.opname.startswith("LOAD_"):
            constants.append(each.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from imports_in(constant)
