"""Modules of the user as a whole: those that a function imports when it runs, or uses in a way that cannot be followed.

A module that was not imported yet is found, but not imported.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from mwpy._values.plain import hash_of
from mwpy._values.sameness import homes
from mwpy._values.sameness.names import Import
from mwpy._values.sameness.normal import normal_digest
from mwpy._values.sameness.sources import SOURCES

__all__ = ["folder_of", "import_targets", "module_content"]

Target = str | tuple[str, Any]
"""The name of a module; or the part and the value of an attribute of one."""


def import_targets(imports: Iterable[Import], space: dict[str, Any]) -> Iterator[tuple[str, Target]]:
    """Yield what import statements import, each with its name in them.

    Args:
        space: the globals of the code.
    """
    package = str(space.get("__package__") or "")
    for each in imports:
        name = _absolute(each, package)
        known = vars(sys.modules[name]) if name in sys.modules else {}
        own = homes.home_of(name) == homes.OWN
        if not (own and known and each.names):
            yield f"{'.' * each.level}{each.module}", name
        for attribute in each.names if own else ():
            if attribute in known:
                part = f"global {homes.name_of_module(name)}.{attribute}"
                yield f"{each.module}.{attribute}", (part, known[attribute])
            elif known:
                yield f"{each.module}.{attribute}", f"{name}.{attribute}" if attribute != "*" else name


def _absolute(each: Import, package: str) -> str:
    """Return the full name of an imported module."""
    if not each.level:
        return each.module
    above = package.split(".")
    return ".".join([*above[: len(above) - each.level + 1], *([each.module] if each.module else [])])


def module_content(name: str) -> tuple[homes.Home, bytes, list[tuple[str, Target]]]:
    """Return where a module comes from, the digest of its content, and what it imports.

    The digest and the imports are empty for a module that is not the user's own.
    """
    loaded = sys.modules.get(name)
    if loaded is not None:
        home, file = homes.home_of(name), vars(loaded).get("__file__")
    else:
        home, file = _found(name)
    if home != homes.OWN:
        return home, b"", []
    tree = SOURCES.of_file(file) if isinstance(file, str) else None
    if tree is None:
        return home, hash_of(b"file", _content(file) if isinstance(file, str) else b""), []
    return home, normal_digest(tree), [*import_targets(_imports(tree), _space_of(name, file))]


def _found(name: str) -> tuple[homes.Home, str | None]:
    """Find a module that is not loaded."""
    known = homes.home_of(name)
    if known != homes.OWN:
        return known, None
    parent = name.rpartition(".")[0]
    if parent and parent not in sys.modules:
        return homes.OWN, None  # it could be found only by importing its package
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.origin:
        return homes.OWN, None
    return homes.home_at(name.partition(".")[0], spec.origin), spec.origin


def _content(file: str) -> bytes:
    try:
        with open(file, "rb") as opened:
            return opened.read()
    except OSError:
        return b""


def _space_of(name: str, file: str | None) -> dict[str, Any]:
    """Return the globals that say to which package a module belongs."""
    of_package = os.path.basename(file or "").startswith("__init__.")
    return {"__package__": name if of_package else name.rpartition(".")[0]}


def _imports(tree: ast.Module) -> Iterator[Import]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(each.name, 0, ()) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield Import(node.module or "", node.level, tuple(each.name for each in node.names))


def folder_of(space: dict[str, Any]) -> str:
    """Return the folder of the module with these globals; empty if it has none."""
    file = space.get("__file__")
    return os.path.dirname(os.path.abspath(file)) if isinstance(file, str) else ""
