"""Where code comes from: the user's own modules, installed packages, Python itself, or mwpy.

Own modules count by their code. Installed packages count by their version: nobody edits them. A package that was
installed from a folder that stays in use (`pip install -e`) is an own module.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from types import ModuleType
from typing import Any

from msgspec import Struct

from mwpy._values.installed import is_installed, is_standard, package_of, versions

__all__ = ["MWPY", "OWN", "PYTHON", "Home", "home_at", "home_of", "name_of_module"]

_ABOUT_CYTHON, _ABOUT_NAMEDTUPLE = "_cython_", "namedtuple_"
"""How the names of modules begin that do not exist, but that generated types and functions name."""

PYTHON_MODULES = frozenset({*sys.stdlib_module_names, "builtins"})


class Home(Struct, frozen=True):
    """Where a module comes from."""

    part: str
    """What it is called in the parts of code; empty if it does not count by its version."""
    version: str = ""


OWN = Home("")
MWPY = Home("", "mwpy")
PYTHON = Home("Python", f"{sys.version_info.major}.{sys.version_info.minor}")


def home_of(name: str) -> Home:
    """Return where a module comes from."""
    top = name.partition(".")[0]
    if top == "mwpy" or top.startswith(_ABOUT_CYTHON):
        return MWPY
    if top.startswith(_ABOUT_NAMEDTUPLE):
        return PYTHON
    if name == "__main__" or top == "__mp_main__":
        return OWN
    module = sys.modules.get(name) or sys.modules.get(top)
    place = _place_of(module)
    if top in PYTHON_MODULES and (not place or is_standard(place)):
        return PYTHON
    return home_at(top, place)


@cache
def home_at(top: str, place: str) -> Home:
    """Return where a module comes from that is in a file or folder."""
    if not place or not is_installed(top, place):
        return OWN
    package = package_of(top) or top
    return Home(f"package {package}", versions([package])[package] or "of an unknown version")


def _place_of(module: Any) -> str:
    """Return the file or folder of a module; empty if it has none."""
    if not isinstance(module, ModuleType):
        return ""
    paths = [*vars(module).get("__path__", ())]
    return str(vars(module).get("__file__") or (paths[0] if paths else ""))


def name_of_module(name: str) -> str:
    """Return the name by which people know a module: that of the script, if it is `__main__`."""
    if name != "__main__":
        return name
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    known = isinstance(file, str) and not file.startswith("<")
    return os.path.splitext(os.path.basename(str(file)))[0] if known else "__main__"
