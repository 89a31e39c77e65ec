"""The installed packages of this interpreter: which package has a module, and its version.

To import `importlib.metadata` takes longer than most launches can wait: it loads the parsers of mail, zip and CSV
files. It is asked only where it may know more than the names of the folders and one line of a file show: about modules
that belong to a package of another name, and where packages are not in plain folders or are found by other importers.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from importlib.machinery import PathFinder

__all__ = ["package_of", "versions"]

FOLDERS_KEPT = 256
"""How many folders of `sys.path` have the names of their packages kept."""


@cache
def package_of(module: str) -> str:
    """Return the package of a top-level module; empty if it belongs to none."""
    if _version_of(module):
        return module
    loaded = sys.modules.get(module)
    places = [getattr(loaded, "__file__", None) or "", *getattr(loaded, "__path__", ())]
    if not any("-packages" in place for place in places):
        return ""  # the user's own module; installed modules are in site-packages or dist-packages
    return _owner_of(module)


def _owner_of(module: str) -> str:
    """Return the package whose list of files has a module. Searching the list as text is twice as fast as parsing."""
    from importlib import metadata

    for each in metadata.distributions():
        files = "\n" + (each.read_text("RECORD") or "")
        named = (each.read_text("top_level.txt") or "").split()
        if module in named or any(f"\n{module}{end}" in files for end in ("/", ".py,", ".cpython-")):
            return each.name
    return ""


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the version of each package here; empty for one that is not installed."""
    return {name: _version_of(name) for name in packages}


def _version_of(package: str) -> str:
    """Return the version of a package; empty if it is not installed."""
    places = _places(package)
    if places is not None and not places:
        return ""
    if places is not None and len(places) == 1 and (written := _written_version(places[0])):
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


def _written_version(place: str) -> str:
    """Read the version in the metadata of a wheel; empty if there is none."""
    try:
        with open(os.path.join(place, "METADATA"), encoding="utf-8") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.lower() == "version":
                    return value.lstrip(" \t").rstrip("\n")
                if not line.strip():  # the description follows
                    break
    except (OSError, UnicodeDecodeError):
        pass
    return ""
