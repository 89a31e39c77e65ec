"""What functions and classes are made of, and what they use: the one place that follows names in code.

`uses_of` yields what a function or class uses: its default arguments, the variables around it, the global names in its
code, and what it imports. Everything that asks what a function reaches follows these uses: the digests for a restart
(`code.py`), the parts that slaves compare (`_system/own_code.py`), and the packages that agents report.

It cannot follow names that exist only as texts (`getattr(module, name)`, `eval`). For functions that look names up in
this way, `uses_by_text` yields the whole module. Nothing here calls a function.
"""

from __future__ import annotations

import builtins
import dis
import sys
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from functools import _lru_cache_wrapper, cached_property, lru_cache, partialmethod
from importlib import import_module
from importlib.util import resolve_name
from itertools import accumulate
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from mwpy._values.installed import is_own, origin_of
from mwpy._values.phrases import compiling


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


Chain = tuple[str, ...]
"""A global name, with the attributes that are read of it: `a.b.c` gives (a, b, c)."""

_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")


class Import(NamedTuple):
    """An import statement in a function."""

    module: str
    """With dots if it is relative."""
    names: tuple[str, ...]
    """What is imported from the module; empty if it is the module itself."""


@lru_cache(maxsize=1000)
def _names_in(code: CodeType) -> tuple[frozenset[Chain], tuple[Import, ...]]:
    """Return the global names and the imports in code, without the code inside it."""
    chains: dict[Chain, None] = {}
    imports: list[Import] = []
    chain: Chain = ()
    constants: list[object] = [0, None]
    for each in dis.get_instructions(code):
        if chain and each.opname in _ATTRIBUTE:
            chain = (*chain, str(each.argval))
            continue
        chains[chain] = None
        chain = (str(each.argval),) if each.opname in _GLOBAL else ()
        if each.opname == "IMPORT_NAME":
            level, names = constants[-2:]
            level, names = level if isinstance(level, int) else 0, names if isinstance(names, tuple) else ()
            imports.append(Import("." * level + str(each.argval), names))
        elif each.opname.startswith("LOAD_"):
            constants.append(each.argval)
    return frozenset(chains) - {()}, tuple(imports)


def chains_in(code: CodeType) -> Iterator[Chain]:
    """Yield the global names that code uses, with the code inside it."""
    for each in codes_in(code):
        yield from _names_in(each)[0]


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


# What functions and classes use.


def module_of(value: Any) -> str:
    """Return the module that a value is, that has its code, or that defines it or its type."""
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, FunctionType):
        made_from_text = "" if value.__module__ in (None, "builtins") else value.__module__
        return str(value.__globals__.get("__name__", made_from_text))
    owner = value if isinstance(value, type | BuiltinFunctionType) else type(value)
    return str(owner.__module__ or "builtins")


def qualname_of(thing: FunctionType | type) -> str:
    """Return the qualified name under which a function or class was defined."""
    return thing.__code__.co_qualname if isinstance(thing, FunctionType) else thing.__qualname__


class Missing:
    """Stands for the value of a name that is not defined."""


class NotLoaded(str):
    """The name of a module that is not loaded. It stands for the module."""

    __slots__ = ()


class Use(NamedTuple):
    """Something that a function or class uses."""

    kind: str
    """How: `default`, `variable` around it, `attribute`, `global`, `import`, `method` or `base`."""
    name: str
    """By which name."""
    value: Any
    trail: tuple[tuple[Mapping[str, Any], str], ...] = ()
    """If it is a variable of a module: the globals and names through which it is reached, at last its own ones."""

    @property
    def module(self) -> str:
        """The module of which it is a variable; empty if it is none, or a builtin."""
        space, name = self.trail[-1] if self.trail else ({}, "")
        return str(space.get("__name__")) if name in space or self.value is Missing else ""

    @property
    def variable(self) -> str:
        """Its name in this module."""
        return self.trail[-1][1]


_NOT_FOLLOWED = frozenset(
    {
        "__name__",
        "__file__",
        "__doc__",
        "__spec__",
        "__loader__",
        "__package__",
        "__cached__",
        "__builtins__",
        "__annotations__",
    }
)
"""Names of modules that say where the module is, and one that the body of a class has, too."""

_OF_MWPY = frozenset({"task", "_mwpy_algorithm"})
"""The attributes of a marked function."""

_DATA = (str, int, float, bool, bytes, complex, tuple, list, dict, set, frozenset, range, bytearray, type(None))
"""The types of attributes of a class that count by their value. Others count by the source that makes them."""

_MODULES_OF_DATA = frozenset({"datetime", "decimal", "fractions", "pathlib"})
"""So do the types of these modules, which are not imported here, because most slaves need none of them."""


def uses_of(thing: FunctionType | type) -> Iterator[Use]:
    """Yield what a function or a class of the user uses."""
    if isinstance(thing, type):
        yield from _of_class(thing)
        return
    yield from (Use("default", name, value) for name, value in defaults_of(thing))
    yield from (Use("variable", name, cell.cell_contents) for name, cell in cells_of(thing))
    yield from (Use("attribute", name, value) for name, value in vars(thing).items() if name not in _OF_MWPY)
    for code in codes_in(thing.__code__):
        chains, imports = _names_in(code)
        yield from (use for chain in chains if (use := use_of(chain, thing.__globals__)) is not None)
        for each in imports:
            yield from import_uses(each, str(thing.__globals__.get("__package__") or ""))


_BY_TEXT = (eval, exec, globals, __import__, import_module)
"""These find names in texts. So does `sys.modules`."""


def uses_by_text(function: FunctionType) -> Iterator[Use]:
    """Yield what a function may use by names in texts, if it looks any up: its whole module, and what its constants
    name."""
    space, codes = function.__globals__, [*codes_in(function.__code__)]
    called = [space.get(name, getattr(builtins, name, None)) for name in names_of_globals(function.__code__)]
    if not (
        any(value is each for value in called for each in _BY_TEXT)
        or any("import_module" in code.co_names for code in codes)
        or any(chain[1:2] == ("modules",) and space.get(chain[0]) is sys for chain in chains_in(function.__code__))
    ):
        return
    yield Use("import", "of its own module", NotLoaded(module_of(function)))
    for text in {each for code in codes for each in code.co_consts if isinstance(each, str)}:
        module = absolute(text, str(space.get("__package__") or ""))
        is_name = all(part.isidentifier() for part in module.split("."))
        if is_name and is_own(module) and (module in sys.modules or origin_of(module)):
            yield Use("import", text, sys.modules.get(module, NotLoaded(module)))
        try:
            with compiling():
                chains = [*chains_in(compile(text, "<text>", "exec", dont_inherit=True))]
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        found = (use_of(chain, space) for chain in chains if chain[0] in space)
        yield from (use for use in found if use is not None)


def _of_class(kind: type) -> Iterator[Use]:
    members = vars(kind)
    if issubclass(kind, Enum):
        yield Use("attribute", "members", {name: each.value for name, each in kind.__members__.items()})
    for name, value in members.items():
        functions = [*functions_in(value)]
        yield from (Use("method", name + role, each) for role, each in functions)
        hidden = issubclass(kind, Enum) or (name.startswith("__") and name.endswith("__")) or name == "_abc_impl"
        # the source of a class in a function does not say what it has made of the function's variables
        is_made = "<locals>" in kind.__qualname__ and not functions
        if not hidden and (isinstance(value, type) or is_data(type(value)) or is_made):
            yield Use("attribute", name, value)
    yield from (Use("base", str(place), base) for place, base in enumerate((type(kind), *kind.__bases__)))


def is_data(kind: type) -> bool:
    """Whether attributes of this type count by their value."""
    return kind in _DATA or kind.__module__.partition(".")[0] in _MODULES_OF_DATA


_INSIDE: dict[type, tuple[str, ...]] = {
    **dict.fromkeys((classmethod, staticmethod), ("__func__",)),
    property: ("fget", "fset", "fdel"),
    **dict.fromkeys((cached_property, partialmethod), ("func",)),
    _lru_cache_wrapper: ("__wrapped__",),
}
"""Where the attributes of classes that Python makes of functions have these."""


def functions_in(value: Any, role: str = "") -> Iterator[tuple[str, FunctionType]]:
    """Yield the functions in an attribute of a class, and the role of each, such as ` property.fset`."""
    if isinstance(value, FunctionType):
        yield role, value
    for kind, names in _INSIDE.items():
        if isinstance(value, kind):
            for name in names:
                yield from functions_in(getattr(value, name), f"{role} {kind.__name__}.{name}")


def use_of(chain: Chain, space: Mapping[str, Any]) -> Use | None:
    """Return the use of a global name, or of an attribute of a module of the user; None if it says where a module is.

    Args:
        space: the globals of the code.
    """
    name, *attributes = chain
    if name in _NOT_FOLLOWED:
        return None
    used, value = name, space[name] if name in space else getattr(builtins, name, Missing)
    if name not in space and not callable(value):  # such as `NotImplemented`
        return None
    trail = [(space, name)]
    for attribute in attributes:
        if not (isinstance(value, ModuleType) and attribute in vars(value) and is_own(value.__name__)):
            break
        trail.append((vars(value), attribute))
        used, value = f"{used}.{attribute}", vars(value)[attribute]
    return Use("global", used, value, tuple(trail))


def import_uses(each: Import, package: str) -> Iterator[Use]:
    """Yield what an import statement uses: variables of modules of the user, or whole modules.

    Args:
        package: the package of the code.
    """
    name, shown = absolute(each.module, package), each.module
    module = sys.modules.get(name)
    if module is None or not each.names or not is_own(name):
        yield Use("import", shown, NotLoaded(name) if module is None else module)
        if module is None and is_own(name):
            below = [f"{name}.{attribute}" for attribute in each.names]
            found = (*accumulate(name.split(".")[:-1], "{}.{}".format), *filter(origin_of, below))
            yield from (Use("import", other, NotLoaded(other)) for other in found if other not in sys.modules)
        return
    for attribute in each.names:
        inside = f"{name}.{attribute}"
        if attribute in vars(module):
            yield Use("import", f"{shown}.{attribute}", vars(module)[attribute], ((vars(module), attribute),))
        else:
            whole = module if attribute == "*" else sys.modules.get(inside, NotLoaded(inside))
            yield Use("import", f"{shown}.{attribute}", whole)


def absolute(module: str, package: str) -> str:
    """Return the full name of an imported module, which begins with dots if it is relative."""
    try:
        return resolve_name(module, package)
    except ImportError:  # the code is in no such package
        return module
