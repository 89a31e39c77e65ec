"""The imports of a script, and the installed packages and source files that provide them.

Sources are read, never run. Names are those of top-level modules. The metadata of an installed package lists its own
requirements, so only sources that belong to no package are followed. An import inside a function or under a condition
counts like any other.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
from collections import deque
from collections.abc import Container, Iterator
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from urllib.parse import unquote, urlsplit

from msgspec import Struct, field

from mwpy._values.errors import UsageError

__all__ = ["Survey", "canonical", "pins", "survey"]

OWN_NAME = "mwpy-cluster"


class Survey(Struct):
    """The origin of everything that a script imports."""

    sources: dict[str, Path] = field(default_factory=dict)
    """Modules and packages that are not installed, and the folder of each."""
    requirements: dict[str, str] = field(default_factory=dict)
    """Installed packages by canonical name, and the requirement for pip: `name==version`, or a folder."""
    missing: dict[str, Path] = field(default_factory=dict)
    """Modules that do not exist here, and the first file that imports each."""


def canonical(name: str) -> str:
    """The canonical spelling of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def survey(script: Path) -> Survey:
    """Follow the imports of a script. The result always contains mwpy.

    Raises:
        UsageError: the script cannot be read, or is not Python.
    """
    found = Survey(requirements={OWN_NAME: _own_requirement()})
    installed = metadata.packages_distributions()
    projects = {folder: each for each in metadata.distributions() if (folder := _folder_of(each))}
    done = {*sys.stdlib_module_names, "__main__", "mwpy"}
    waiting = deque((name, script) for name in _imported(script))
    while waiting:
        name, importer = waiting.popleft()
        if name in done:
            continue
        done.add(name)
        beside = PathFinder.find_spec(name, [str(script.parent)])
        spec = beside or _find(name)
        owners = [metadata.distribution(owner) for owner in installed.get(name, ())]
        owners = owners or [each for folder, each in projects.items() if _is_in(spec, folder)]
        if beside is None and owners:
            found.requirements |= {canonical(each.name): _requirement(each) for each in owners}
        elif spec is not None and (files := list(_files(spec))):
            found.sources[name] = _home(spec)
            waiting.extend((other, file) for file in files for other in _imported(file))
        else:
            found.missing[name] = importer
    return found


def _find(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):  # the module is incomplete
        return None


def _imported(file: Path) -> Iterator[str]:
    """The top-level modules that a source file imports."""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (OSError, SyntaxError, ValueError) as error:
        raise UsageError(f"cannot read the imports of {file}: {getattr(error, 'strerror', None) or error}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]


def _places(spec: ModuleSpec) -> list[Path]:
    """The folders of a package, or the file of a module."""
    file = [spec.origin] if spec.origin and spec.has_location else []
    return [Path(place) for place in spec.submodule_search_locations or file]


def _files(spec: ModuleSpec) -> Iterator[Path]:
    for place in _places(spec):
        yield from sorted(place.rglob("*.py")) if place.is_dir() else [place] if place.suffix == ".py" else []


def _home(spec: ModuleSpec) -> Path:
    return _places(spec)[0].parent


def _is_in(spec: ModuleSpec | None, folder: Path) -> bool:
    return spec is not None and any(folder in place.parents for place in _places(spec))


def _direct(distribution: metadata.Distribution) -> dict[str, object]:
    """Return pip's record of a package that it did not install from an index (PEP 610)."""
    content: dict[str, object] = json.loads(distribution.read_text("direct_url.json") or "{}")
    return content


def _folder_of(distribution: metadata.Distribution) -> Path | None:
    """Return the folder or file on this machine from which a package was installed."""
    url = urlsplit(str(_direct(distribution).get("url", "")))
    folder = Path(unquote(url.path))
    return folder if url.scheme == "file" and folder.exists() else None


def _requirement(distribution: metadata.Distribution) -> str:
    if folder := _folder_of(distribution):
        return str(folder)
    match _direct(distribution):
        case {"url": str(url), "vcs_info": {"vcs": str(system), "commit_id": str(commit)}}:
            return f"{distribution.name} @ {system}+{url}@{commit}"
        case {"url": str(url), "archive_info": dict()} if not url.startswith("file:"):
            return f"{distribution.name} @ {url}"
    return f"{distribution.name}=={distribution.version}"


def _own_requirement() -> str:
    try:
        return _requirement(metadata.distribution(OWN_NAME))
    except metadata.PackageNotFoundError:
        checkout = Path(__file__).parents[4]
        if (checkout / "pyproject.toml").exists():
            return str(checkout)
        raise UsageError(f"mwpy is not installed here as a package: pip install {OWN_NAME}") from None


def pins(exempt: Container[str] = ()) -> list[str]:
    """Return all packages that are installed here as `name==version`, without the exempt canonical names.

    A package that was not installed from an index is left out, because no index may have its version.
    """
    installed = {canonical(each.name): each for each in metadata.distributions() if not _direct(each)}
    return [f"{each.name}=={each.version}" for name, each in sorted(installed.items()) if name not in exempt]
