"""The installed packages of this interpreter: which package has a module, and its version."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache

__all__ = ["package_of", "versions"]


@cache
def package_of(module: str) -> str:
    """Return the package of a top-level module; empty if it belongs to none."""
    if versions([module])[module]:
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
    found = dict.fromkeys(packages, "")
    if not found:
        return found
    from importlib import metadata  # this takes longer than most launches can wait for nothing

    for name in found:
        try:
            found[name] = metadata.version(name) or ""
        except (metadata.PackageNotFoundError, ValueError):
            pass
    return found
