"""The modules of the user that this process has imported: which of them were edited, and which were loaded again.

Modules of packages and of the standard library do not count: nobody edits them during a computation.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator

from msgspec import Struct, field

from mwpy._values.installed import is_installed

__all__ = ["UserModules", "is_interactive", "is_of_user", "module_path", "stamp_of", "take_module_path"]

OWN = ("__main__", "mwpy")

SEPARATOR_INSIDE = "\x1f"
"""Stands for the separator of paths inside of one of them. In the environment, such a path would be two."""

ROUNDING_S = 1e-3
"""IPython has times of files as floating-point numbers."""


def is_interactive() -> bool:
    """Whether a person types into this process, as in a notebook: its `__main__` comes from no file."""
    return not hasattr(sys.modules["__main__"], "__file__")


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
    top = name.partition(".")[0]
    if top in OWN or top in sys.stdlib_module_names:
        return False
    file = getattr(module, "__file__", None) or ""
    return file.endswith(".py") and not is_installed(top, file)


class _Seen(Struct):
    """A module at one moment."""

    spec: object
    """Each time that a module is loaded, it gets another one."""
    stamp: tuple[int, int]
    """Time of modification and size of its file."""


class UserModules(Struct, eq=False):
    """Compares the user's modules, as this process has loaded them, with their files."""

    edited: set[str] = field(default_factory=set)
    """Modules whose files were edited, and that were not loaded again since."""
    _seen: dict[str, _Seen] = field(default_factory=dict)
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


def stamp_of(path: str) -> tuple[int, int]:
    """Return time of modification and size of a file; zeros if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size
