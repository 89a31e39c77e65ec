"""What a task algorithm uses: packages and their versions, and the code of the user's modules.

The agents report their versions of the packages. The master looks only at modules that are already imported, and sends
the names of the packages that the algorithm uses: to look up one version takes a millisecond, but to find the packages
of all modules takes long in a large environment.

A slave that starts after an edit loads other code than the master has. So that it computes nothing else without notice,
a definition contains what the algorithm uses of the user's modules (`_values/sources.py`): a digest of each file, and
one of each function, class and variable of the module that is reached by names. A slave compares the digests of files
first, because equal files are the usual case. Only if a file differs does it compare the parts, so that an edit
elsewhere in the file does not matter.

Values may differ between processes for good reasons, so they do not keep a slave from an algorithm. But tasks that use
a setting which only the master has changed, for example by its command line, give wrong results. So a definition has
digests of the values that a function uses of its modules, too, and a slave says which of its own differ
(`other_values`). Each is compared before the first task that may change it. What a function assigns by `global` is each
process's own. Functions count by their names, and a class also by those of its methods.

What cannot be followed: names that exist only as texts, functions in containers, and what methods of unknown objects
use.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from attrs import Factory, define
from msgspec import Struct

from mwpy._system.script import MAIN, finds, is_same
from mwpy._values.algorithm import Initialized
from mwpy._values.functions import (
    NotLoaded,
    Use,
    absolute,
    functions_in,
    is_data,
    module_of,
    names_assigned_in,
    qualname_of,
    use_of,
    uses_of,
)
from mwpy._values.installed import MWPY, PYTHON, home_of, is_interactive, is_own, versions
from mwpy._values.messages import ModuleCode
from mwpy._values.shares import hash_of
from mwpy._values.sources import SOURCES, Sources, Text


class Used(Struct, frozen=True):
    """What a task algorithm uses."""

    packages: dict[str, str]
    """The versions of packages by name. Those with an unknown version are left out."""
    modules: list[str]
    """The modules of the user, except the script."""
    code: dict[str, ModuleCode]
    """What slaves compare, by the names of the modules."""


def used_by(
    function: Callable[..., Any],
    by_value: bool,
    found: Mapping[str, object] | None = None,
    sources: Sources = SOURCES,
) -> Used:
    """Return what a function uses.

    Args:
        by_value: whether it travels by value. Then what slaves do not find of the script travels with it. If not, a
            slave also imports everything that its module imports.
        found: what slaves find of the script, as `Codec.found`; None for everything.
        sources: the texts of this process.
    """
    sources.remember()
    compares = not (by_value and is_interactive())  # the slaves of a notebook are replaced when modules were edited
    walk = _Walk(sources if compares else None, found if by_value else None, by_value)
    walk.follow(function, by_value)
    own, homes = walk.with_imports(by_value), dict.fromkeys(map(home_of, walk.modules))
    packages = versions(home for home in homes if home not in ("", MWPY, PYTHON))
    values = {name: digests for name in walk.values if is_own(name) and (digests := walk.values_of(name))}
    files = {name: sources.of(name) for name in {**walk.parts, **values}}
    return Used(
        {name: version for name, version in packages.items() if version},
        own,
        {
            name: ModuleCode(text.digest, walk.parts.get(name, {}), values.get(name, {}))
            for name, text in files.items()
            if text is not None
        },
    )


def differences(theirs: Mapping[str, ModuleCode], sources: Sources = SOURCES) -> list[str]:
    """Return the parts of code that are others here than on the master.

    Args:
        theirs: what a function uses on the master.
        sources: the texts of this process.
    """
    sources.remember()
    files = {name: sources.of(name) for name in theirs}
    return [
        f"{part} in {os.path.basename(text.file)}"
        for name, text in files.items()
        if text is not None and text.digest != theirs[name].digest
        for part, digest in theirs[name].parts.items()
        if _differs(text, part, digest)
    ]


def other_values(theirs: Mapping[str, ModuleCode], compared: dict[tuple[str, str], str]) -> list[str]:
    """Return the variables and classes that have other values here than on the master.

    A value that contains the place of a process, such as the folder of the script, may differ.

    Args:
        theirs: what a function uses on the master.
        compared: the digests of those that were compared before, by module and name. The new ones are added.
    """
    differing: list[str] = []
    for module, code in theirs.items():
        own = vars(sys.modules[module]) if module in sys.modules else {}
        for name in code.values.keys() & own.keys():
            digest = compared.get((module, name))
            if digest is None:
                digest = _digest(own[name])
                if digest != code.values[name] and _names_a_place(own[name]):
                    digest = ""
                compared[module, name] = digest
            if digest not in ("", code.values[name]):
                differing.append(f"{name} of {module}" if module != MAIN else name)
    return sorted(differing)


def _names_a_place(value: object) -> bool:
    """Whether the text of a value names the place of a process, or cannot be made."""
    try:
        text = repr(value)
        script = getattr(sys.modules[MAIN], "__file__", None) or ""
        places = {os.getcwd(), os.path.dirname(script), os.uname().nodename}
    except Exception:  # an object of the script behaves strangely
        return True
    return any(place in text for place in places - {""})


MOST_OBJECTS = 10_000
"""A value with more objects is not compared, because a digest of it may take long. Eight characters of a text count as
one, and so do `ARRAY_BYTES` of an array of numbers, and `TABLE_BYTES` of another array or a table."""

ARRAY_BYTES = 1024
TABLE_BYTES = 64

_HOMES = frozenset({"numpy", "types", "argparse", "pandas"})
"""Besides the user's own classes, the objects of these packages are compared. Those of others, such as loggers, random
number generators and open files, differ for good reasons."""


def _digest(value: object) -> str:
    """Return the digest of a value that processes are expected to have in common; empty for all others."""
    try:
        return _digest_of(value)
    except Exception:  # it has no structure, or an object of the script behaves strangely
        return ""


def _digest_of(value: object) -> str:
    if isinstance(value, FunctionType):
        return f"function {module_of(value)}.{qualname_of(value)}"
    if isinstance(value, type) and not is_own(module_of(value)):
        return ""
    if isinstance(value, type):
        members = {name: each for name, each in vars(value).items() if not name.startswith("__")}
        data = {name: each for name, each in members.items() if is_data(type(each))}
        functions = [(name + role, each) for name, found in members.items() for role, each in functions_in(found)]
        value = value, data, functions
    waiting, count = [value], 0
    while waiting and count < MOST_OBJECTS:
        each: Any = waiting.pop()
        count += 1
        if isinstance(each, dict):
            waiting += [*each, *each.values()] if len(each) < MOST_OBJECTS else [None] * MOST_OBJECTS
        elif isinstance(each, list | tuple | set | frozenset):
            waiting += each if len(each) < MOST_OBJECTS else [None] * MOST_OBJECTS
        elif isinstance(each, str | bytes | bytearray):
            count += len(each) // 8
        elif isinstance(each, partial | MethodType):
            waiting += _made_of(each)
        elif not is_data(type(each)) and not isinstance(each, FunctionType | BuiltinFunctionType | type):
            module = type(each).__module__
            home = module.partition(".")[0]
            if not (home in _HOMES or is_own(module)):
                return ""
            if home == "numpy":
                count += each.nbytes // (TABLE_BYTES if each.dtype.hasobject else ARRAY_BYTES)
            elif home == "pandas":
                size: Any = each.memory_usage()
                count += int(size if isinstance(size, int) else sum(size)) // TABLE_BYTES
            else:
                waiting.append(getattr(each, "__dict__", None))
    if waiting or count >= MOST_OBJECTS:
        return ""
    from mwpy._values.structure import by_name, digest_of, full_name  # only here, because few functions need them

    def named(thing: Any) -> bytes | None:
        return hash_of(b"name", full_name(thing).encode()) if isinstance(thing, FunctionType) else by_name(thing)

    return digest_of(value, named).hex()


def _differs(text: Text, part: str, digest: str) -> bool:
    kind, _, name = part.partition(" ")
    mine = text.definition(name)[1]
    return kind == _WHOLE or (mine != digest and not (kind == _ALSO_GIVEN and not mine))


def imported() -> dict[str, str]:
    """Return the packages that this process has imported, and their versions."""
    homes = {home_of(name) for name in {each.partition(".")[0] for each in list(sys.modules)}}
    return versions(sorted(homes - {"", MWPY, PYTHON}))


_WHOLE = "module"
"""How the name of a part begins that is a whole module."""

_ALSO_GIVEN = "imported"
"""How the name of a part begins that travels with a function by value if a slave does not have it."""


@define(eq=False, repr=False)
class _Walk:
    """Follows what a function uses."""

    _sources: Sources | None
    """None if no parts are wanted."""
    _found: Mapping[str, object] | None
    _by_value: bool
    parts: dict[str, dict[str, str]] = Factory(dict)
    """The digest of each part, by module."""
    modules: dict[str, None] = Factory(dict)
    """The modules of everything that is used and does not travel with the function."""
    values: dict[str, set[str]] = Factory(dict)
    """The variables and classes that do not travel with the function, by module."""
    _assigned: set[tuple[str, str]] = Factory(set)
    """The modules and names of variables that functions assign."""
    _waiting: list[tuple[Any, bool]] = Factory(list)
    """What is used and was not followed, and whether by something that travels with the function."""
    _seen: dict[object, object] = Factory(dict)
    """What was followed, with its identity, which therefore nothing else can get."""

    def follow(self, function: Callable[..., Any], travels: bool) -> None:
        """Follow everything that a function uses."""
        self._waiting.append((function, travels))
        while self._waiting:
            value, travels = self._waiting.pop()
            if id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            if isinstance(value, ModuleType | NotLoaded):
                self._follow_module(value.__name__ if isinstance(value, ModuleType) else str(value))
            elif isinstance(value, FunctionType | type):
                self._follow_thing(value, travels)
            elif isinstance(value, BuiltinFunctionType):
                self.modules[module_of(value)] = None
            else:
                self._waiting += [(each, travels) for each in _made_of(value)]

    def values_of(self, module: str) -> dict[str, str]:
        """Return the digests of the values that are used of a module, without those that the functions assign."""
        own = vars(sys.modules[module]) if module in sys.modules else {}
        names = (each for each in sorted(self.values.get(module, ())) if (module, each) not in self._assigned)
        return {name: digest for name in names if name in own and (digest := _digest(own[name]))}

    def with_imports(self, by_value: bool) -> list[str]:
        """Add what the modules of the user import, and return their names without the script."""
        waiting = [name for name in self.modules if name != MAIN or not by_value]
        for name in waiting:
            if is_own(name) and name in sys.modules:
                found = {module_of(value) for value in [*vars(sys.modules[name]).values()]}
                waiting += sorted(found - self.modules.keys() - {MAIN})
                self.modules |= dict.fromkeys(found)
        return [name for name in self.modules if name != MAIN and is_own(name)]

    def _follow_module(self, name: str) -> None:
        self.modules[name] = None
        text = self._sources.of(name) if self._sources is not None and is_own(name) else None
        if text is not None:
            self.parts.setdefault(name, {})[f"{_WHOLE} {name}"] = text.digest
            self._add(text.imported_by(name), travels=False)

    def _follow_thing(self, thing: FunctionType | type, travels: bool) -> None:
        module, name = module_of(thing), qualname_of(thing)
        if isinstance(thing, FunctionType):
            self._assigned |= {(module, each) for each in names_assigned_in(thing.__code__)}
        if module == MAIN:
            travels = self._found == {} or (travels and not finds(thing, self._found))
        else:
            travels = travels and "<" in name
        if not travels:
            self.modules[module] = None
        if is_own(module):
            if not travels:
                self._note(module, name.partition(".")[0])
            self._add(uses_of(thing), travels)
        elif isinstance(wrapped := vars(thing).get("__wrapped__"), FunctionType):
            self._waiting.append((wrapped, travels))

    def _add(self, uses: Iterable[Use], travels: bool) -> None:
        for use in uses:
            with_it = travels
            for space, name in use.trail if use.module else ():
                module = str(space.get("__name__"))
                with_it = module == MAIN and not is_same(name, space.get(name), self._found)
                if not with_it:
                    self._note(module, name)
                    self.values.setdefault(module, set()).add(name)
            self._waiting.append((use.value, with_it))

    def _note(self, module: str, name: str) -> None:
        """Add the statements that define a function, class or variable of a module, and follow what they use."""
        text = self._sources.of(module) if self._sources is not None and is_own(module) else None
        if text is None or (module, name) in self._seen:
            return
        self._seen[module, name] = None
        kind, digest, chains = text.definition(name)
        space = vars(sys.modules[module])
        if kind == "import" and module == MAIN and self._by_value:
            kind = _ALSO_GIVEN
        if kind:
            self.parts.setdefault(module, {})[f"{kind} {name}"] = digest
            self._add((use for chain in chains if (use := use_of(chain, space)) is not None), travels=False)
        modules, there = text.imports.get(name) or text.imports.get("*", ("", ""))
        for relative in modules.split() if there else ():
            home = absolute(relative, str(space.get("__package__") or ""))
            if home in sys.modules:
                self._note(home, name if there == "*" else there)


def _made_of(value: Any) -> tuple[object, ...]:
    """Return what an object consists of: the function and the values of a callable of Python or mwpy; the class of any
    other one, and what it has wrapped."""
    if isinstance(value, partial):
        return value.func, *value.args, *value.keywords.values()
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, Initialized):
        return value.function, value.initializer, *value.initargs
    try:
        wrapped = getattr(value, "__wrapped__", None)
    except Exception:  # an object of the script behaves strangely
        wrapped = None
    return (type(value), wrapped) if isinstance(wrapped, FunctionType | MethodType | type) else (type(value),)
