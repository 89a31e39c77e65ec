"""The installed packages of this interpreter: which package has a module, and its version.

A module is installed if Python finds it directly in a folder of installed packages, and a package there says that the
module is its own. Everything else is the user's own module, whose code may be edited at any time: also a checkout below
`site-packages`, a file that somebody has copied there, and a package that was installed with `pip install -e`.

Which package has a module is read from its list of files: `importlib.metadata.packages_distributions` takes seconds
where there are many packages, and to import it takes as long as a part of the launch. It is only asked for versions.
"""

from __future__ import annotations

import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

STANDARD_LIBRARY = os.path.dirname(os.__file__)

FOLDERS_KEPT = 256
"""How many folders of `sys.path` have the names of their packages kept."""


_METADATA = (".dist-info", ".egg-info")
"""How the folders with the metadata of packages are named."""

_TOP = re.compile(r"^(?:\.\./)?([^/.,\s]+)(?=[/.,\n]|$)", re.MULTILINE)
"""The first part of each line in a list of files or modules."""


PYTHON, MWPY = "Python", "mwpy"
"""Where modules of the standard library and of mwpy come from."""

_PYTHON_MODULES = frozenset({*sys.stdlib_module_names, "builtins"})

_OF_CYTHON, _OF_NAMEDTUPLE = "_cython_", "namedtuple_"
"""How the names of modules begin that do not exist, but that generated types and functions name."""


def home_of(name: str) -> str:
    """Return where a module comes from: its package, `Python` or `mwpy`; empty if it is the user's own."""
    top = name.partition(".")[0]
    if top == "mwpy" or top.startswith(_OF_CYTHON):
        return MWPY
    if top in ("__main__", "__mp_main__"):
        return ""
    module = sys.modules.get(name) or sys.modules.get(top)
    place = _place_of(module) if module is not None else ""
    if top.startswith(_OF_NAMEDTUPLE) or (top in _PYTHON_MODULES and (not place or is_standard(place))):
        return PYTHON
    return owner_of(top, place or (origin_of(top) if module is None else ""))


def is_own(name: str) -> bool:
    """Whether a module is the script or another module of the user."""
    return not home_of(name)


def _place_of(module: Any) -> str:
    """Return the file or folder of a module; empty if it has none."""
    space = vars(module) if isinstance(module, ModuleType) else {}
    return str(space.get("__file__") or next(iter(space.get("__path__") or ()), ""))


def is_interactive() -> bool:
    """Whether a person types into this process, as in a notebook: its `__main__` comes from no file."""
    return not hasattr(sys.modules["__main__"], "__file__")


def origin_of(name: str) -> str:
    """Return the file of a module that is not loaded; empty if it is not found."""
    spec = _spec_of(name)
    return (spec.origin if spec is not None else None) or ""


def _spec_of(name: str) -> ModuleSpec | None:
    """Find a module, without importing the package in which it is."""
    parent = name.rpartition(".")[0]
    try:
        if not parent or parent in sys.modules:
            return find_spec(name)
        package = _spec_of(parent)
        folders = package.submodule_search_locations if package is not None else None
        return PathFinder.find_spec(name, folders) if folders is not None else None
    except (ImportError, ValueError, KeyError):  # the last for a namespace package in a package that is not loaded
        return None


def is_standard(place: str) -> bool:
    """Whether a file belongs to Python's standard library."""
    rest = place.removeprefix(STANDARD_LIBRARY + os.sep)
    return rest != place and not rest.startswith(("site-packages" + os.sep, "dist-packages" + os.sep))


@cache
def owner_of(top: str, place: str) -> str:
    """Return the installed package of a module; empty if it is the user's own.

    Args:
        top: the name of its top-level module.
        place: its file or folder; empty if it has none.
    """
    folder = place
    while (above := os.path.dirname(folder)) != folder:
        if os.path.basename(folder).partition(".")[0] == top:
            try:
                metadata = _metadata_in(above, os.stat(above).st_mtime_ns).get(top)
            except OSError:  # it is in a zip file
                metadata = None
            if metadata:
                owner = _name_in(metadata)
                return top if owner.replace("-", "_").lower() == top.lower() else owner
        folder = above
    return ""


@cache
def _site_folders() -> frozenset[str]:
    """The folders into which packages are installed for this interpreter."""
    found = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    found.add(site.getusersitepackages())
    return frozenset({os.path.normpath(folder) for folder in found} | {os.path.realpath(folder) for folder in found})


@lru_cache(FOLDERS_KEPT)
def _metadata_in(folder: str, _modified_at: int) -> Mapping[str, str]:
    """Return where the metadata of the package is that has each top-level module in a folder.

    Args:
        _modified_at: tells apart what the folder contained at different times.

    Raises:
        OSError: it is no folder, or cannot be read.
    """
    places = [os.path.join(folder, child) for child in os.listdir(folder) if child.endswith(_METADATA)]
    if folder not in _site_folders() and not any(place.endswith(".dist-info") for place in places):
        return {}  # `NAME.egg-info` is also beside sources that stay in use
    return {top: place for place in places for top in _tops_of(place)}


def _tops_of(place: str) -> Iterator[str]:
    """Yield the top-level modules that the metadata of a package lists."""
    for name in ("RECORD", "installed-files.txt", "top_level.txt"):
        try:
            with open(os.path.join(place, name), encoding="utf-8") as file:
                yield from {*_TOP.findall(file.read())}
        except (OSError, UnicodeDecodeError):
            pass
    yield _stem(place)


def _name_in(place: str) -> str:
    """Return the name of a package whose metadata is in a folder."""
    for name in ("METADATA", "PKG-INFO"):
        with suppress(OSError), open(os.path.join(place, name), encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("Name:"):
                    return line.removeprefix("Name:").strip()
    return _stem(place)


def _stem(place: str) -> str:
    return os.path.basename(place).rpartition(".")[0].partition("-")[0]


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the version of each package here; empty for one that is not installed."""
    return {name: _version_of(name) for name in packages}


def _version_of(package: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(package) or ""
    except (metadata.PackageNotFoundError, ValueError, KeyError):
        return ""
