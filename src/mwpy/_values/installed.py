"""The installed packages of this interpreter: which package has a module, and its version.

A module is installed if Python finds it directly in a folder of installed packages, and a package there says that the
module is its own. Everything else is the user's own module, whose code may be edited at any time: also a checkout below
`site-packages`, a file that somebody has copied there, and a package that was installed with `pip install -e`.

To import `importlib.metadata` takes longer than most launches can wait: it loads the parsers of mail, zip and CSV
files. It is asked only where it may know more than the names of the folders and one line of a file show: about modules
that belong to a package of another name, and where packages are not in plain folders or are found by other importers.
"""

from __future__ import annotations

import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from itertools import chain
from types import ModuleType
from typing import Any

STANDARD_LIBRARY = os.path.dirname(os.__file__)

FOLDERS_KEPT = 256
"""How many folders of `sys.path` have the names of their packages kept."""


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
                owner = _owners_in(above, os.stat(above).st_mtime_ns).get(top)
            except OSError:  # it is in a zip file
                owner = None
            if owner:
                return top if _normalized(owner) == _normalized(top) else owner
        folder = above
    return ""


@cache
def _site_folders() -> frozenset[str]:
    """The folders into which packages are installed for this interpreter."""
    found = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    found.add(site.getusersitepackages())
    return frozenset({os.path.normpath(folder) for folder in found} | {os.path.realpath(folder) for folder in found})


@lru_cache(FOLDERS_KEPT)
def _owners_in(folder: str, modified_at: int) -> Mapping[str, str]:
    """Return the packages of the top-level modules in a folder, as the lists of files of the packages say.

    Args:
        modified_at: as for `_packages_in`.

    Raises:
        OSError: it is no folder, or cannot be read.
    """
    packages = _packages_in(folder, modified_at)
    if packages is None:
        name = os.path.basename(folder).partition("-")[0]
        return {child.partition(".")[0]: name for child in os.listdir(folder)}
    places = [*chain.from_iterable(packages.values())]
    if folder not in _site_folders() and not any(place.endswith(".dist-info") for place in places):
        return {}  # `NAME.egg-info` is also beside sources that stay in use
    owners: dict[str, str] = {}
    for place in places:
        name = _written(place, "name") or os.path.basename(place).rpartition(".")[0].partition("-")[0]
        owners |= dict.fromkeys(_tops_of(place), name)
    return owners


def _tops_of(place: str) -> Iterator[str]:
    """Yield the top-level modules that the metadata of a package lists."""
    for name in ("RECORD", "installed-files.txt", "top_level.txt"):
        try:
            with open(os.path.join(place, name), encoding="utf-8") as file:
                yield from {*_TOP.findall(file.read())}
        except (OSError, UnicodeDecodeError):
            pass
    yield _normalized(os.path.basename(place).rpartition(".")[0].partition("-")[0])


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the version of each package here; empty for one that is not installed."""
    return {name: _version_of(name) for name in packages}


def _version_of(package: str) -> str:
    """Return the version of a package; empty if it is not installed."""
    places = _places(package)
    if places is not None and not places:
        return ""
    if places is not None and len(places) == 1 and (written := _written(places[0], "version")):
        return written
    from importlib import metadata

    try:
        return metadata.version(package) or ""
    except (metadata.PackageNotFoundError, ValueError):
        return ""


def _places(package: str) -> Sequence[str] | None:
    """Return where the metadata of a package is; None if only `importlib.metadata` can find out."""
    if any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path):
        return None
    name, found = _normalized(package), list[str]()
    for entry in sys.path:
        try:
            folder = os.path.abspath(entry)
            known = _packages_in(folder, os.stat(folder).st_mtime_ns)
        except FileNotFoundError:
            continue
        except OSError:  # a zip file, for example
            return None
        if known is None:
            return None
        found += known.get(name, ())
    return found


@lru_cache(FOLDERS_KEPT)
def _packages_in(folder: str, _modified_at: int) -> Mapping[str, Sequence[str]] | None:
    """Return where the metadata of each package in a folder is, by its normalized name; None for an egg, which is
    another format.

    Args:
        _modified_at: tells apart what the folder contained at different times.

    Raises:
        OSError: it is no folder, or cannot be read.
    """
    if folder.lower().endswith(".egg"):
        return None
    found: dict[str, list[str]] = {}
    for child in os.listdir(folder):
        stem, dot, kind = child.lower().rpartition(".")
        if dot and kind in ("dist-info", "egg-info"):
            found.setdefault(_normalized(stem.partition("-")[0]), []).append(os.path.join(folder, child))
    return found


def _normalized(name: str) -> str:
    """A name of a package as `importlib.metadata` compares it."""
    return re.sub(r"[-_.]+", "_", name).lower()


def _written(place: str, field: str) -> str:
    """Read a field in the metadata of a wheel; empty if there is none."""
    try:
        with open(os.path.join(place, "METADATA"), encoding="utf-8") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.lower() == field:
                    return value.lstrip(" \t").rstrip("\n")
                if not line.strip():  # the description follows
                    break
    except (OSError, UnicodeDecodeError):
        pass
    return ""
