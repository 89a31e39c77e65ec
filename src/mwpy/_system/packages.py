"""The user's modules, which may be edited and loaded again, where modules are found, and shared random generators."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from attrs import Factory, define
from msgspec import Struct

from mwpy._values.installed import is_own
from mwpy._values.sources import stamp_of

# The modules of the user that this process has imported: which of them were edited, and which were loaded again.
#
# Modules of packages and of the standard library do not count: nobody edits them during a computation.
#
# An edit is noticed by the time and size of a file, and a module that was loaded again by its new `__spec__`, or by the
# records of `%autoreload`, which patches functions in place. Digests of code do not cover what is found by a text, so
# all slaves are replaced after an edit. To send the loaded code by value was rejected: classes of such a module would
# be other classes in the slaves.


SEPARATOR_INSIDE = "\x1f"
"""Stands for the separator of paths inside of one of them. In the environment, such a path would be two."""

ROUNDING_S = 1e-3
"""IPython has times of files as floating-point numbers."""


def module_path() -> str:
    """Where this process finds modules, for the environment of its slaves. Python looks only at texts."""
    path: list[object] = [*sys.path]
    entries = [entry or os.getcwd() for entry in path if isinstance(entry, str)]
    return os.pathsep.join([entry.replace(os.pathsep, SEPARATOR_INSIDE) for entry in entries])


def take_module_path(text: str) -> None:
    """Let this process find modules where another one does, whose `module_path` this is."""
    sys.path[:] = [entry.replace(SEPARATOR_INSIDE, os.pathsep) for entry in text.split(os.pathsep)]


def is_of_user(name: str, module: object) -> bool:
    """Whether a module was written by the user: it has a source file that belongs to no installed package."""
    file = str(getattr(module, "__file__", None) or "")
    return file.endswith(".py") and name != "__main__" and is_own(name)


class _Seen(Struct):
    """A module at one moment."""

    spec: object
    """Each time that a module is loaded, it gets another one."""
    stamp: tuple[int, int]
    """Time of modification and size of its file."""


@define(eq=False, repr=False)
class UserModules:
    """Compares the user's modules, as this process has loaded them, with their files."""

    edited: set[str] = Factory(set)
    """Modules whose files were edited, and that were not loaded again since."""
    _seen: dict[str, _Seen] = Factory(dict)
    _num_modules: int = 0
    """How many modules there were when new ones were looked for."""

    def look(self) -> bool:
        """Compare. Return whether a module that was edited has been loaded again since the last call."""
        reloaded = False
        self.edited.clear()
        for name, module in self._modules():
            now = _Seen(getattr(module, "__spec__", None), stamp_of(str(module.__file__)))
            before = self._seen.setdefault(name, now)
            if before.stamp != now.stamp:
                if before.spec is now.spec and not _is_autoreloaded(name, str(module.__file__), now.stamp):
                    self.edited.add(name)
                    continue
                reloaded = True
            self._seen[name] = now
        return reloaded

    def _modules(self) -> Iterator[tuple[str, types.ModuleType]]:
        """The user's modules. New ones are only looked for when the number of all modules has changed."""
        names = list(self._seen)
        if len(sys.modules) != self._num_modules:
            self._num_modules = len(sys.modules)
            names = [name for name, module in list(sys.modules.items()) if is_of_user(name, module)]
        for name in names:
            if (module := sys.modules.get(name)) is not None:
                yield name, module


def _is_autoreloaded(name: str, path: str, stamp: tuple[int, int]) -> bool:
    """Whether `%autoreload` of IPython has loaded the current file of a module. It may keep the module's `__spec__`."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    magics = shell.magics_manager.registry.get("AutoreloadMagics") if shell is not None else None
    reloader = getattr(magics, "_reloader", None)
    if reloader is None or path in reloader.failed:
        return False
    return bool(abs(reloader.modules_mtimes.get(name, 0.0) - stamp[0] / 1e9) < ROUNDING_S)


# Random number generators: those that all code of a process shares, and those that the user's code makes.
#
# Many scripts seed the shared ones while they are loaded, for example with `random.seed(1)`. All slaves load the
# script. So without this module, they would all draw the same numbers, and a thousand samples would be a few samples,
# repeated. The same would happen if a function took a shared generator with it, as after `from random import gauss`.
#
# mwpy does not know how the user's own generators should be seeded. It only says that all copies give the same numbers.


_GENERATORS = {
    "random": ("getstate", "setstate"),
    "numpy.random": ("get_state", "set_state"),
    "torch": ("get_rng_state", "set_rng_state"),
}
"""The modules with a shared generator, and their functions that read and restore its state."""


_KINDS = (
    ("random", "Random"),
    ("numpy.random", "Generator"),
    ("numpy.random", "RandomState"),
    ("numpy.random", "BitGenerator"),
    ("numpy.random", "SeedSequence"),
    ("torch", "Generator"),
)
"""Module and name of the types of generators."""

_SHARED = (("random", "_inst"), ("numpy.random.mtrand", "_rand"), ("torch", "default_generator"))
"""Module and name of the shared generators: those that `reseed` seeds."""

PICKLE_MARKS = (b"\x8c\x06Random", b"__randomstate_ctor")
"""A pickle with a generator of the same type as a shared one, and so that of `random.gauss`, contains one of these."""


def generator_kinds() -> tuple[type, ...]:
    """Return the types of generators whose modules are loaded."""
    found = (_loaded(module, name) for module, name in _KINDS)
    return tuple(kind for kind in found if isinstance(kind, type))


def is_without_state(kind: type) -> bool:
    """Whether generators of a type ask the operating system for each number."""
    return kind is _loaded("random", "SystemRandom")


def shared_generators() -> list[object]:
    """Return the shared generators whose modules are loaded."""
    return [found for place in _SHARED if (found := _loaded(*place)) is not None]


def reduced(value: object) -> tuple[Callable[..., object], tuple[str, str]] | None:
    """Return how a shared generator is pickled by its name, as `object.__reduce__` does; None for any other object."""
    for place in _SHARED:
        if value is _loaded(*place):
            return shared, place
    return None


def shared(module: str, name: str) -> object:
    """Return the shared generator of this process."""
    return getattr(import_module(module), name)


def _loaded(module: str, name: str) -> object:
    return getattr(sys.modules.get(module), name, None)


def reseed() -> None:
    """Seed the shared generators from the operating system. A module that was never imported does this itself."""
    for name in _GENERATORS:
        if name in sys.modules:
            sys.modules[name].seed()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Leave the shared generators as they are, although modules that are imported inside may seed them."""
    states: dict[str, Any] = {}
    for name, (read, _) in _GENERATORS.items():
        if name in sys.modules:
            states[name] = getattr(sys.modules[name], read)()
    try:
        yield
    finally:
        for name, (_, restore) in _GENERATORS.items():
            if name in states:
                getattr(sys.modules[name], restore)(states[name])
            elif name in sys.modules:
                sys.modules[name].seed()
