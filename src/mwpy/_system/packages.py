"""The installed packages that the code of a task algorithm imports, and their versions.

The master looks at the modules that are already imported, and imports nothing itself. It sends the names of the
packages to the agents, and each agent looks up only these packages: to look up one version takes a millisecond, but to
find the packages of all modules takes long in a large environment. A script that imports only mwpy and the standard
library needs neither.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from mwpy._system.modules import OWN
from mwpy._values.installed import package_of, versions

__all__ = ["imported", "imported_inside", "modules_of", "used_by", "versions"]


def used_by(function: Callable[..., Any], by_value: bool) -> dict[str, str]:
    """Return the packages that a function's code imports, and their versions.

    Args:
        by_value: whether the function travels by value. If not, the slave also imports everything that its module
            imports.

    Returns:
        The versions by name. Packages that are imported through modules that belong to no package are included.
        Packages with an unknown version are left out.
    """
    packages = [package for _, package in _reached(function, by_value) if package]
    return {name: version for name, version in versions(packages).items() if version}


def modules_of(function: Callable[..., Any], by_value: bool) -> list[str]:
    """Return the modules of the user that a function's code imports, directly or through each other."""
    return [name for name, package in _reached(function, by_value) if not package]


def _reached(function: Callable[..., Any], by_value: bool) -> Iterator[tuple[str, str]]:
    """Yield each module that a function's code imports, with its package.

    Modules without a package are yielded together with everything that they import.
    """
    done: set[str] = set()
    waiting = deque(_roots_by_value(function) if by_value else _roots(inspect.unwrap(function)))
    while waiting:
        name = waiting.popleft()
        top = name.partition(".")[0]
        if name in done or top in OWN or top in sys.stdlib_module_names:
            continue
        done.add(name)
        package = package_of(top)
        yield name, package
        if not package and name in sys.modules:
            waiting.extend(_homes(vars(sys.modules[name]).values()))


def imported() -> dict[str, str]:
    """Return the packages that this process has imported, and their versions."""
    tops = {name.partition(".")[0] for name in list(sys.modules)}.difference(sys.stdlib_module_names, OWN)
    return versions(sorted({package for top in tops if (package := package_of(top))}))


def _roots(function: Callable[..., Any]) -> Iterator[str]:
    """Yield the modules that are imported with a function that travels by name."""
    code = getattr(function, "__code__", None)
    if isinstance(code, types.CodeType):
        yield from imported_inside(code)
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    yield from _homes(vars(module).values()) if module else ()


def _roots_by_value(function: Callable[..., Any]) -> Iterator[str]:
    """Yield the modules that a function by value uses, and those of the functions of `__main__` that it uses."""
    done: set[int] = set()
    waiting: list[Any] = [function]
    while waiting:
        each = waiting.pop()
        if isinstance(each, functools.partial):
            waiting.append(each.func)
            continue
        each = inspect.unwrap(getattr(each, "__func__", each))
        if isinstance(each, types.FunctionType) and id(each) not in done:
            done.add(id(each))
            yield from imported_inside(each.__code__)
            values = [*_bound(each)]
            yield from _homes(values)
            waiting += [value for value in values if getattr(value, "__module__", "") == "__main__"]


def _bound(function: types.FunctionType) -> Iterator[object]:
    """Yield the objects to which a function refers by global names, and those in its closure."""
    scope = function.__globals__
    yield from [scope[name] for name in function.__code__.co_names if name in scope]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is empty
            yield cell.cell_contents


def imported_inside(code: types.CodeType) -> Iterator[str]:
    """Yield the modules that import statements inside a function import."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from imported_inside(constant)


def _homes(values: Iterable[object]) -> Iterator[str]:
    """Yield a module for each value: the value itself if it is a module, else the module that defines it."""
    for value in values:
        if isinstance(value, types.ModuleType):
            yield value.__name__
        else:
            owner = value if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType) else type(value)
            if isinstance(owner.__module__, str):
                yield owner.__module__
