"""Functions, classes and methods: their names, and where they come from."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

from mwpy._values.sameness import homes
from mwpy._values.sameness.structure import COMPILED

__all__ = ["cells_of", "defaults_of", "home_of_thing", "library_name", "module_of", "shown_name", "wrapped_by_library"]


def module_of(thing: Any) -> str:
    """Return the name of the module that has the code of a function, or that defines a class."""
    if isinstance(thing, FunctionType):
        return str(thing.__globals__.get("__name__"))
    return str(getattr(thing, "__module__", None) or type(thing).__module__)


def home_of_thing(thing: Any) -> homes.Home:
    if isinstance(thing, BuiltinFunctionType | MethodType) and not isinstance(thing.__self__, ModuleType):
        thing = type(thing.__self__)
    return homes.home_of(module_of(thing))


def library_name(thing: Any) -> str | None:
    """Return the name of a compiled function, or of a method that a module offers as a function; None for others.

    `random.random` is a method of a hidden object, whose state does not count.
    """
    if type(thing).__name__ in COMPILED:
        return f"{thing.__module__}:{thing.__qualname__}"
    if not isinstance(thing, BuiltinFunctionType | MethodType):
        return None
    owner = thing.__self__
    if owner is None or isinstance(owner, ModuleType):
        return f"{thing.__module__}:{thing.__qualname__}"
    module = type(owner).__module__
    offered = vars(sys.modules[module]).get(thing.__name__) if module in sys.modules else None
    same = isinstance(offered, type(thing)) and offered.__self__ is owner
    return f"{module}:{thing.__name__}" if same else None


def shown_name(thing: Any) -> str:
    """Return the name by which people know a function or class."""
    name = thing.__code__.co_qualname if isinstance(thing, FunctionType) else getattr(thing, "__qualname__", "?")
    module = module_of(thing)
    return f"{homes.name_of_module(module)}.{name}" if module in sys.modules else str(name)


def wrapped_by_library(value: Any) -> Any:
    """Return the function that an object of a library stands for, such as that of `functools.cache`; None if none."""
    if isinstance(value, type) or home_of_thing(type(value)) == homes.OWN:
        return None
    state = getattr(value, "__dict__", None)
    wrapped = state.get("__wrapped__") if type(state) is dict else None
    return wrapped if isinstance(wrapped, FunctionType | MethodType | type) else None


def defaults_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the default arguments of a function."""
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    yield from zip(names, values, strict=False)
    yield from sorted((function.__kwdefaults__ or {}).items())


def cells_of(function: FunctionType) -> Iterator[tuple[str, CellType]]:
    """Yield the variables of the functions around a function, as far as they have values."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            _ = cell.cell_contents
        except ValueError:
            continue
        yield name, cell
