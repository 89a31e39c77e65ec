"""Pickles by value, with cloudpickle.

This module is imported only when it is needed, because cloudpickle loads slowly.

What slaves find under its name in their own `__main__` travels by this name, as everything of a module does: functions,
classes, and also the globals of a function by value. Such a function is made again over the globals of the slave's own
`__main__`, so it has the classes, registries and locks that are there, and no copies of them. Only globals that slaves
do not find, or that the master has bound again, travel with it (see `_Globals`).

A function by value of a module, such as a lambda or a closure, is made again over the globals of this module in the
slave, for the same reason. Only its constants travel if the module's text does not say that they are the same there. If
it uses nothing but constants and what travels by name, cloudpickle's copies are as good, and need no module.

cloudpickle pickles a function with `functools.cache` or `functools.lru_cache` by its name, which the slaves of a
notebook do not have. So a *cached function* that slaves cannot find by its name is pickled as the function below its
cache and the parameters of the cache. The content of the cache does not travel: it may be large, and its keys and
values may be impossible to pickle.

For the same reason, a function with `functools.singledispatch` is pickled as the functions that it chooses from. A
`functools.cached_property` has a lock in Python 3.11, and gets a new one.

cloudpickle leaves out the file of a function. Here the pickle has its name, so that tracebacks and debuggers show the
source. A cell of a notebook, which is no file, takes its text along.

After `from random import gauss`, a function has a method of the generator that all code of a process shares. This
generator travels by its name, because each slave has one that was seeded differently.
"""

from __future__ import annotations

import functools
import io
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from operator import attrgetter
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import IO, Any, Optional, TypeAlias, TypeVar, cast

import cloudpickle
from cloudpickle.cloudpickle import _code_reduce, _should_pickle_by_reference

from mwpy._system.packages import generator_kinds, reduced
from mwpy._system.script import (
    MAIN,
    finds,
    is_equal,
    is_importable,
    is_same,
)
from mwpy._transport.error_texts import reduced_error
from mwpy._values.functions import cells_of, names_assigned_in, names_of_globals
from mwpy._values.sources import SOURCES

CONSTANTS = frozenset(map(type, (None, True, 1, 1.0, 1j, "", b"", ..., NotImplemented, Optional)))
"""The types of objects that cannot change."""

Cached: TypeAlias = "functools._lru_cache_wrapper[Any]"
KIND = functools._lru_cache_wrapper

FILE_LEFT_OUT = "<dynamic-code>"
"""What cloudpickle writes instead of the name of a file."""


def dumps(
    value: object,
    *,
    found: Mapping[str, object] | None,
    keep_in_band: Callable[..., object] | None = None,
    generators: dict[type, None] | None = None,
) -> bytes:
    """Pickle an object in protocol 5. `pickle.loads` reads it.

    Args:
        found: what slaves find in their own `__main__`, as `Codec.found`.
        keep_in_band: whether a buffer stays in the pickle; None to keep all of them.
        generators: gets the types of the random number generators that are copied.

    Raises:
        Exception: any error of pickling; the object's fault.
    """
    file = io.BytesIO()
    pickler = _Pickler(file, keep_in_band, found)
    pickler.dump(value)
    if generators is not None:
        generators.update(pickler.generators)
    return file.getvalue()


def _as_parts(cached: Cached) -> tuple[Any, ...]:
    state = {name: value for name, value in vars(cached).items() if name != "cache_parameters"}
    return with_cache, (cached.__wrapped__, cached.cache_parameters()), state


DISPATCHER = cast(Any, functools.singledispatch(_as_parts)).__code__
"""The code of all functions with `functools.singledispatch`."""


def _as_choices(function: Any) -> tuple[Any, ...]:
    return functools.singledispatch, (function.__wrapped__,), dict(function.registry), None, None, add_choices


def _without_lock(attribute: functools.cached_property[Any]) -> tuple[Any, ...]:
    state = {name: value for name, value in vars(attribute).items() if name != "lock"}
    return functools.cached_property, (attribute.func,), state


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(
        self, file: IO[bytes], buffer_callback: Callable[..., object] | None, found: Mapping[str, object] | None
    ) -> None:
        super().__init__(file, 5, buffer_callback=buffer_callback)
        self.generators: dict[type, None] = {}
        """The types of generators that were copied."""
        self._kinds = generator_kinds()
        self._found = found
        self._globals: dict[str, tuple[_Globals, _GlobalsOf]] = {}
        """What functions by value of each module get as globals: the first if values travel with them."""
        self._files: dict[str, tuple[str, str]] = {}
        """The files of functions: their names, and the texts of those that are in memory only. They are new objects, so
        that equal functions have equal pickles."""

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if issubclass(kind, self._kinds):
            if (by_name := reduced(value)) is not None:
                return by_name
            self.generators[kind] = None
        elif kind is CodeType:
            return self._with_file(value)
        elif kind is KIND:
            return value.__qualname__ if self._has_name(value) else _as_parts(value)
        elif kind is functools.cached_property:
            return _without_lock(value)
        elif _may_have_name(value) and finds(value, self._found):
            return getattr(value, "__qualname__", value.__name__)
        elif kind is FunctionType and value.__code__ is DISPATCHER and not _should_pickle_by_reference(value):
            return _as_choices(value)
        elif (error := reduced_error(value)) is not None:
            return error
        return super().reducer_override(value)

    def _with_file(self, code: CodeType) -> Any:
        name = code.co_filename
        if name not in self._files:
            entry: tuple[Any, ...] = linecache.cache.get(name, ())
            in_memory = len(entry) == 4 and entry[1] is None
            self._files[name] = "".join(name), "".join(entry[2]) if in_memory else ""
        file, text = self._files[name]
        return make_code, (file, text, *(file if each == FILE_LEFT_OUT else each for each in _code_reduce(code)[1]))

    def _has_name(self, cached: Cached) -> bool:
        """Whether slaves find a cached function under its name in its module."""
        if cached.__module__ == MAIN:
            return finds(cached, self._found)
        try:
            return attrgetter(cached.__qualname__)(sys.modules[cached.__module__]) is cached
        except (AttributeError, KeyError):
            return False

    def _dynamic_function_reduce(self, function: FunctionType) -> Any:
        """Let a function have the globals of the slave's own `__main__` or module, if they are found there."""
        parts = super()._dynamic_function_reduce(function)
        home = _home_of(function, self._found)
        if not home:
            return parts
        state, slots = parts[2]
        own = {name: value for name, value in slots["__globals__"].items() if _travels(function, name, self._found)}
        if home == MAIN:
            imported = {name: value for name, value in slots["__globals__"].items() if _is_imported(value)}
        else:
            imported = {}
        code, *_, closure = parts[1]
        if home not in self._globals:
            self._globals[home] = _Globals(home), _GlobalsOf(home)
        slots["__globals__"] = imported | own
        return make_function, (code, self._globals[home][not own], closure), (state, slots), None, None, set_state


def _home_of(function: FunctionType, found: Mapping[str, object] | None) -> str:
    """Return the name of the module whose globals a function by value has in the slave, too; empty if it has copies."""
    space = function.__globals__
    if space is globals_of(MAIN):
        return "" if found == {} else MAIN
    module = sys.modules.get(str(space.get("__name__")))
    if module is None or space is not vars(module) or not _should_pickle_by_reference(module):
        return ""
    used = [name for name in names_of_globals(function.__code__) if name in space]
    needed = any(_may_change(module, name) for name in used) or bool(names_assigned_in(function.__code__))
    return module.__name__ if needed and is_importable(module) else ""


def _travels(function: FunctionType, name: str, found: Mapping[str, object] | None) -> bool:
    """Whether the value of a global travels with a function that has the globals of the slave's own module."""
    space, assigned = function.__globals__, names_assigned_in(function.__code__)  # these are the slave's own
    if space is globals_of(MAIN):
        return not (name in assigned and name in (found or {})) and not is_same(name, space[name], found)
    if type(space[name]) not in CONSTANTS or name in assigned:
        return False
    text = SOURCES.of(space["__name__"])
    return text is None or name not in text.literals or not is_equal(space[name], text.literals[name])


def _may_change(module: ModuleType, name: str) -> bool:
    """Whether a copy of a variable may differ from the variable itself."""
    value = vars(module)[name]
    if type(value) not in CONSTANTS:
        return not _is_imported(value)
    text = SOURCES.of(module.__name__)
    return text is not None and name in text.rebound


def _may_have_name(value: Any) -> bool:
    """Whether cloudpickle would copy an object of `__main__` that may have a name there."""
    return isinstance(value, FunctionType | TypeVar | type) and value.__module__ == MAIN


def _is_imported(value: object) -> bool:
    """Whether a global is a module, or has its name in one. It travels, too, for slaves without the script."""
    if isinstance(value, BuiltinFunctionType):
        return isinstance(value.__self__, ModuleType)
    return isinstance(value, FunctionType | type | ModuleType) and _should_pickle_by_reference(value)


class _GlobalsOf:
    """Is pickled as the globals of the slave's own `__main__` or module."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __reduce__(self) -> tuple[Any, ...]:
        return globals_of, (self._module,)


def globals_of(module: str) -> dict[str, Any]:
    """Return the globals of this process's own `__main__` or of a module."""
    return vars(sys.modules[module] if module in sys.modules else import_module(module))


class _Globals(dict[str, Any]):
    """Globals of functions by value: those that travel with them, and below them those of the slave's own module.

    Functions that were pickled at different moments may have different values under one name, so these are not stored
    in the module itself.
    """

    def __init__(self, module: str) -> None:
        self._module, self._below = module, globals_of(module)
        super().__init__({name: value for name, value in self._below.items() if name.startswith("__")})

    def __missing__(self, name: str) -> Any:
        return self._below[name]

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._below

    def get(self, name: str, default: Any = None) -> Any:
        """As `dict.get`, which does not call `__missing__`."""
        try:
            return self[name]
        except KeyError:
            return default

    def __reduce__(self) -> tuple[Any, ...]:
        return _Globals, (self._module,)


def make_function(code: CodeType, variables: dict[str, Any], closure: tuple[CellType, ...] | None) -> FunctionType:
    """Make a function again over the globals of its module. cloudpickle would also replace their `__builtins__`."""
    return FunctionType(code, variables, None, None, closure)


def set_state(function: FunctionType, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Give a function that `make_function` has made its globals, closure and attributes."""
    attributes, slots = state
    vars(function).update(attributes)
    given, variables = slots.pop("__globals__"), function.__globals__
    if not isinstance(variables, _Globals):
        given = {name: value for name, value in given.items() if name not in variables}
    variables.update(given)
    del slots["_cloudpickle_submodules"]  # they are imported by now
    for cell, full in zip(function.__closure__ or (), slots.pop("__closure__") or (), strict=False):
        try:
            cell.cell_contents = full.cell_contents
        except ValueError:  # it is empty
            continue
    for name, value in slots.items():
        setattr(function, name, value)


def make_code(file: str, text: str, *args: Any) -> CodeType:
    """Make the code of a function again, and let its source be found if it is no file here."""
    if text:
        linecache.cache[file] = len(text), None, io.StringIO(text).readlines(), file
    return CodeType(*args)


def with_cache(function: Callable[..., Any], parameters: dict[str, Any]) -> Cached:
    """Add an empty cache to a function."""
    cached: Cached = functools.lru_cache(**parameters)(function)
    return cached


def add_choices(function: Any, choices: dict[type, Callable[..., Any]]) -> None:
    """Give a function with `functools.singledispatch` the functions that it chooses from, by the type."""
    for kind, choice in choices.items():
        function.register(kind, choice)


# ---- what cannot travel ---------------------------------------------------------------------------------------------


def culprit_in(thing: Any, found: Mapping[str, object] | None) -> str:
    """Find a variable that cannot be pickled in what travels with a function or an object.

    Returns:
        Which function uses it, its name and its type, as a part of a sentence; empty if none is found.
    """
    story, owner, seen = "", thing, set[int]()
    while owner is not None:
        user, variables = getattr(owner, "__qualname__", type(owner).__qualname__), _variables_of(owner, found)
        owner = None
        for name, value in variables:
            if id(value) in seen:
                continue
            seen.add(id(value))
            try:
                dumps(value, found=found)
            except Exception:  # pickle raises different classes of errors
                story, owner = f"{user} uses {name}, a {type(value).__qualname__}", value
                break
    return story


def _variables_of(owner: Any, found: Mapping[str, object] | None) -> Iterator[tuple[str, object]]:
    """Yield the names and values of what a function, a method, a partial, a class or its object takes with it."""
    if isinstance(owner, functools.partial):
        yield "its function", owner.func
        yield from ((f"argument {position}", value) for position, value in enumerate(owner.args, 1))
        yield from owner.keywords.items()
    elif isinstance(owner, type):
        made_by_python = GetSetDescriptorType | MemberDescriptorType
        yield from ((name, value) for name, value in vars(owner).items() if not isinstance(value, made_by_python))
    elif isinstance(owner, MethodType | classmethod | staticmethod):
        yield "its function", owner.__func__
        yield "self", getattr(owner, "__self__", None)
    elif isinstance(owner, FunctionType):
        yield from ((name, cell.cell_contents) for name, cell in cells_of(owner))
        has_home = bool(_home_of(owner, found))
        for name in names_of_globals(owner.__code__):
            if name in owner.__globals__ and not (has_home and not _travels(owner, name, found)):
                yield name, owner.__globals__[name]
    elif type(owner).__module__ == MAIN:
        yield "its class", type(owner)
        yield from getattr(owner, "__dict__", {}).items()
