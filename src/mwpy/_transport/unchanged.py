"""Functions by value that are unchanged: their pickles would be the same as before.

A function by value is whatever its pickle contains, and to pickle it takes 60 µs. To compare everything that the pickle
contains takes one or two. This is possible because few objects matter:

- of a function: its code, defaults, names, annotations and attributes, the content of its closure, and the globals
  that its code may read; and the same of each function by value that is found there;
- constants, which cannot change: numbers, texts, bytes, code, and tuples and frozen sets of constants;
- modules, and functions and classes of modules: they travel by name, as long as they are found under this name.

A function that reaches anything else, such as a list, an instance or a class of `__main__`, has no snapshot, and is
pickled at each use.

A *snapshot* has the ids of all these objects, in the order of the places where they were. It keeps the constants, so no
other object gets their ids. It refers only weakly to functions, because it must not keep them. As long as they exist,
no other object has their ids.

cloudpickle also writes the imported submodules of a package that the code may use. They can only change with the table
of all modules.
"""

from __future__ import annotations

import sys
import types
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any, Optional
from weakref import ref

import cloudpickle
from msgspec import Struct, field

from mwpy._values.algorithm import Algorithm

__all__ = ["Snapshot", "snapshot_of"]

CONSTANTS = frozenset(map(type, (None, True, 1, 1.0, 1j, "", b"", ..., NotImplemented, Optional)))
"""The types of objects that cannot change."""

FIXED_MODULES = ("builtins", "mwpy")
"""What these modules define is always found there."""

NAMES = ("__package__", "__name__", "__path__", "__file__")
"""Globals that cloudpickle writes for each function."""

MOST_OBJECTS = 1000
"""A function that reaches more objects has no snapshot."""

_GAP: Any = object()
"""Stands where there is no object."""

_Look = Callable[[Any, tuple[str, ...]], Iterable[object]]
"""Lists the content of an object. The names are those of the globals that count."""

_Place = tuple[ref[Any], _Look, tuple[str, ...], list[int]]
"""An object, how its content is listed, and the ids of the content."""


class _Changing(Exception):
    """The function reaches an object that may change."""


class Snapshot(Struct, eq=False):
    """What the pickle of a function contained."""

    _places: list[_Place]
    _constants: list[object]
    """Nothing reads them."""
    _num_modules: int = field(default_factory=lambda: len(sys.modules))
    _last_module: str = field(default_factory=lambda: next(reversed(sys.modules)))

    def is_current(self) -> bool:
        """Whether everything is still as it was."""
        if len(sys.modules) != self._num_modules or next(reversed(sys.modules)) != self._last_module:
            return False
        if cloudpickle.list_registry_pickle_by_value():
            return False
        try:
            for place, look, names, ids in self._places:
                owner = place()
                if owner is None or [*map(id, look(owner, names))] != ids:
                    return False
        except (ValueError, NameError):  # a cell of a closure is empty now
            return False
        return True


def snapshot_of(function: types.FunctionType) -> Snapshot | None:
    """Return what the pickle of a function will contain; None if it reaches an object that may change.

    Another thread may change the function at the same time. So make the snapshot before the pickle, and ask whether it
    is current after that.
    """
    walk = _Walk()
    try:
        walk.visit(function)
        return Snapshot(walk.finished(), walk.constants)
    except (_Changing, ValueError, NameError):
        return None


class _Walk(Struct, eq=False):
    """Finds what a function reaches."""

    constants: list[object] = field(default_factory=list)
    _places: list[_Place] = field(default_factory=list)
    _visited: set[int] = field(default_factory=set)
    _homes: defaultdict[types.ModuleType, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The modules that are reached, and what must be found there."""

    def visit(self, function: types.FunctionType) -> None:
        waiting: list[Any] = [function]
        while waiting:
            owner = waiting.pop()
            if id(owner) in self._visited:
                continue
            self._visited.add(id(owner))
            look, names = _looks(owner)
            found = [*look(owner, names)]
            self._places.append((ref(owner), look, names, [*map(id, found)]))
            if len(self._places) + len(found) + len(self.constants) > MOST_OBJECTS:
                raise _Changing
            for each in found:
                if type(each) in _LOOKS and not self._has_name(each):
                    waiting.append(each)
                else:
                    self._keep(each)

    def finished(self) -> list[_Place]:
        """The places, with those where modules have what travels by name."""
        for module, found in self._homes.items():
            names = ("__name__", *found)
            self._places.append((ref(module), _in_module, names, [*map(id, _in_module(module, names))]))
        return self._places

    def _keep(self, value: object) -> None:
        """Refer to a constant, or to what travels by name."""
        self.constants.append(value)
        self._check(value)

    def _check(self, value: Any) -> None:
        kind = type(value)
        if kind in CONSTANTS or value is _GAP:
            return
        if kind is tuple or kind is frozenset:
            items = value
        elif kind is types.CodeType:
            items = value.co_consts
        elif kind is slice:
            items = (value.start, value.stop, value.step)
        elif kind is types.UnionType:
            items = value.__args__
        elif kind is types.GenericAlias or (kind.__module__ == "typing" and hasattr(value, "__origin__")):
            items = (value.__origin__, *value.__args__)
        elif isinstance(value, types.ModuleType):
            if sys.modules.get(value.__name__) is not value:
                raise _Changing
            self._homes[value].update(())
            return
        elif self._has_name(value):
            return
        else:
            raise _Changing
        for each in items:
            self._check(each)

    def _has_name(self, value: Any) -> bool:
        """Whether a function or class travels by name."""
        if not isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
            return False
        module, name = value.__module__, value.__qualname__
        if type(module) is not str or module == "__main__":
            return False
        if module.partition(".")[0] in FIXED_MODULES:
            return "<" not in name
        home = sys.modules.get(module)
        if not isinstance(home, types.ModuleType) or vars(home).get(name) is not value:
            return False
        self._homes[home].add(name)
        return True


# ---- what each object contains -----------------------------------------------------------------------------------


def _in_function(function: types.FunctionType, names: tuple[str, ...]) -> list[object]:
    own, annotations, defaults = function.__dict__, function.__annotations__, function.__kwdefaults__ or {}
    return [
        function.__code__,
        function.__defaults__,
        function.__name__,
        function.__qualname__,
        function.__module__,
        function.__doc__,
        *own,
        *own.values(),
        _GAP,
        *annotations,
        *annotations.values(),
        _GAP,
        *defaults,
        *defaults.values(),
        _GAP,
        *map(function.__globals__.get, names, repeat(_GAP)),
        *[cell.cell_contents for cell in function.__closure__ or ()],
    ]


def _in_method(method: types.MethodType, _: tuple[str, ...]) -> list[object]:
    return [method.__func__, method.__self__]


def _in_algorithm(algorithm: Algorithm, _: tuple[str, ...]) -> list[object]:
    return [algorithm.function, *algorithm.policy, *algorithm.policy.values()]


def _in_module(module: types.ModuleType, names: tuple[str, ...]) -> list[object]:
    scope = vars(module)
    return [sys.modules.get(scope.get("__name__", "")), *map(scope.get, names, repeat(_GAP))]


_LOOKS: dict[type, _Look] = {
    types.FunctionType: _in_function,
    types.MethodType: _in_method,
    Algorithm: _in_algorithm,
}


def _looks(owner: Any) -> tuple[_Look, tuple[str, ...]]:
    """Return the function that lists the content of an object, and the names of the globals that it uses.

    Raises:
        _Changing: it travels by value now, but may be found under its name later.
    """
    if type(owner) is not types.FunctionType:
        return _LOOKS[type(owner)], ()
    if owner.__module__ != "__main__" and "<" not in owner.__qualname__:
        raise _Changing
    return _in_function, (*NAMES, *dict.fromkeys(_names_in(owner.__code__)))


def _names_in(code: types.CodeType) -> Iterable[str]:
    """Yield the names of all globals that code may use, and those of attributes."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)
