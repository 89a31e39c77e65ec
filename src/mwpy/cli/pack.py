"""mwpy pack SCRIPT -o FILE: put a script and the packages it needs into one file, for machines with a bare Python.

Put a script and its imports into one file, for machines that have only Python. The file contains mwpy, the imported
packages in the versions that are installed here, and modules beside the script. The command does not find files that
the script reads, or imports that are not written as import statements: name these packages with --with, and send
these files along.

examples:
  mwpy pack app.py
  mwpy pack app.py -o app-3.13.pex --python 3.13 --with pandas

exit codes:
  0    the file was made
  2    a bad option, no script, or pex is not installed
  255  pex failed
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections import deque
from collections.abc import Container, Iterator, Sequence
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from urllib.parse import unquote, urlsplit

from msgspec import Struct, field

from mwpy._values.errors import ExitCode, MwpyError, UsageError
from mwpy.cli._arguments import Parser

__all__ = ["lean", "main", "make_parser"]

# The imports of a script, and the installed packages and source files that provide them.
#
# Sources are read, never run. Names are those of top-level modules. The metadata of an installed package lists its own
# requirements, so only sources that belong to no package are followed. An import inside a function or under a condition
# counts like any other.


OWN_NAME = "mwpy-cluster"


class Survey(Struct):
    """The origin of everything that a script"""

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
        places = _places(beside or _find(name))
        owners = [metadata.distribution(owner) for owner in installed.get(name, ())]
        owners = owners or [each for folder, each in projects.items() if any(folder in at.parents for at in places)]
        if beside is None and owners:
            found.requirements |= {canonical(each.name): _requirement(each) for each in owners}
        elif files := [file for at in places for file in [at, *sorted(at.rglob("*.py"))] if file.suffix == ".py"]:
            found.sources[name] = places[0].parent
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
    """The top-level modules that a source file"""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (OSError, SyntaxError, ValueError) as error:
        raise UsageError(f"cannot read the imports of {file}: {getattr(error, 'strerror', None) or error}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]


def _places(spec: ModuleSpec | None) -> list[Path]:
    """The folders of a package, or the file of a module; nothing if it does not exist."""
    if spec is None:
        return []
    file = [spec.origin] if spec.origin and spec.has_location else []
    return [Path(place) for place in spec.submodule_search_locations or file]


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
        raise UsageError(f"mwpy is not installed here as a package: pip install {OWN_NAME}") from None


def pins(exempt: Container[str] = ()) -> list[str]:
    """Return all packages that are installed here as `name==version`, without the exempt canonical names.

    A package that was not installed from an index is left out, because no index may have its version.
    """
    installed = {canonical(each.name): each for each in metadata.distributions() if not _direct(each)}
    return [f"{each.name}=={each.version}" for name, each in sorted(installed.items()) if name not in exempt]


PREAMBLE = """\
import os
if "PEX_ROOT" not in os.environ and "HOME" not in os.environ:
    scratch = os.environ.get("_CONDOR_SCRATCH_DIR") or os.environ.get("TMPDIR")
    if scratch:
        os.environ["PEX_ROOT"] = os.path.join(scratch, ".pex")
"""
"""The packed file runs this first.

The file is a PEX: it runs like the script, in any role, and its slaves are started from it. At its first start it makes
a virtual environment of itself in PEX_ROOT, which later starts use. Without PEX_ROOT it is below the home directory. A
job of HTCondor has no HOME. There the environment is in the job's scratch directory and is removed with it."""


def main(arguments: Sequence[str]) -> int:
    """Pack a script; return the exit code."""
    options = make_parser().parse_args(arguments)
    if importlib.util.find_spec("pex") is None or importlib.util.find_spec("packaging") is None:
        raise UsageError("packing needs pex: pip install 'mwpy-cluster[pack]'")
    script, output = Path(options.script), Path(options.output or Path(options.script).with_suffix(".pex").name)
    if not os.access(output.absolute().parent, os.W_OK):
        raise UsageError(f"cannot write {output}: its folder is missing or not writable")
    found = survey(script.absolute())
    for name, file in found.missing.items():
        print(f"mwpy: {name} is not packed, because it is not installed here; {file} imports it", file=sys.stderr)
    print(f"mwpy: packing {script}; this can take a minute", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="mwpy-pack-") as folder:
        _make(script, output, found, options, Path(folder))
    packages = ", ".join(_packages(output))
    sources = f" with {', '.join(sorted(found.sources))}" if found.sources else ""
    versions = " and ".join(options.interpreter + options.python) or _version(sys.version_info)
    print(
        f"packed {script}{sources} for Python {versions} into {output} ({output.stat().st_size / 1e6:.1f} MB: "
        f"{packages}); start slaves with: python3 {output.name} --mw-slave --mw-resource-file FILE"
    )
    return ExitCode.OK


def make_parser() -> Parser:
    """Describe the command line."""
    parser = Parser("pack", __doc__)
    add = parser.add_argument
    add("script", metavar="SCRIPT", help="the script that you start with python")
    add("-o", "--output", metavar="FILE", help="the file to make; default: the name of SCRIPT, with .pex")
    package = "pack this package too, written as for pip (repeatable)"
    add("--with", metavar="PACKAGE", action="append", default=[], dest="packages", help=package)
    requirements = "pack the packages of this file too, written as for pip (repeatable)"
    add("--requirements", metavar="FILE", action="append", default=[], help=requirements)
    python = "pack for this version of CPython, on machines like this one; it need not be installed here (repeatable)"
    add("--python", metavar="X.Y", action="append", default=[], help=python)
    interpreter = "pack for this interpreter (repeatable)"
    add("--interpreter", metavar="PATH", action="append", default=[], help=interpreter)
    return parser


def _make(script: Path, output: Path, found: Survey, options: argparse.Namespace, folder: Path) -> None:
    wanted = [*options.packages, *(line for file in options.requirements for line in _lines(file))]
    theirs = {canonical(match[0]) for each in wanted if (match := re.match(r"[\w.-]*\w", each))}
    constraints, preamble = folder / "constraints.txt", folder / "preamble.py"
    constraints.write_text("\n".join(pins(theirs)))
    preamble.write_text(PREAMBLE)
    command = ["--executable", str(script), "--output-file", str(output), "--venv", "--preamble-file", str(preamble)]
    command += ["--use-pip-config", "--resolver-version", "pip-2020-resolver", "--constraints", str(constraints)]
    requirements = {**found.requirements, OWN_NAME: lean(found.requirements[OWN_NAME], folder)}
    command += [requirement for name, requirement in requirements.items() if name not in theirs]
    command += options.packages
    for file in options.requirements:
        command += ["--requirement", file]
    for name, home in found.sources.items():
        command += ["--package" if (home / name).is_dir() else "--module", f"{name}@{home}"]
    for path in options.interpreter:
        command += ["--python", path]
    for version in options.python:
        command += _target(version)
    _run_pex(command, script)


def lean(requirement: str, folder: Path) -> str:
    """Copy what a wheel of mwpy needs, if mwpy is a checkout, and return the copy.

    pex brings an old pip, which copies the whole checkout, with the environments in it. This copy can be half a
    gigabyte, and it fails if a file vanishes meanwhile.
    """
    checkout = Path(requirement)
    if not (checkout / "src").is_dir():
        return requirement
    copy = folder / "mwpy"
    for name in ("src", "condor", "slurm", "examples"):  # with the submit files, which are in the wheel, too
        shutil.copytree(checkout / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", *OF_JOBS))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(checkout / name, copy)
    return str(copy)


OF_JOBS = ("*.log", "*.out", "*.err", "*.db*", "*.audit*")
"""What jobs write beside the submit files of a clone."""


def _lines(file: str) -> list[str]:
    try:
        return Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the requirements {file}: {error}") from error


def _version(version: Sequence[object]) -> str:
    return f"{version[0]}.{version[1]}"


def _target(version: str) -> list[str]:
    """Return the options that describe a Python to pex: its wheel tags and markers. It need not be installed here."""
    if version == _version(sys.version_info):
        return ["--python", sys.executable]
    form = re.fullmatch(r"3\.([0-9]{1,2})", version)
    if form is None:
        raise UsageError(f"--python {version}: give a version such as 3.13, or an interpreter with --interpreter PATH")
    from packaging import markers, tags

    pair = (3, int(form[1]))
    compatible = [*tags.cpython_tags(pair), *tags.compatible_tags(pair, f"cp3{form[1]}")]
    own = {"python_version": version, "python_full_version": f"{version}.0", "implementation_version": f"{version}.0"}
    environment = {**markers.default_environment(), **own}
    platform = {"marker_environment": environment, "compatible_tags": [str(tag) for tag in compatible]}
    return ["--complete-platform", json.dumps(platform)]


def _run_pex(command: list[str], script: Path) -> None:
    from pex.bin import pex

    try:
        with contextlib.redirect_stdout(sys.stderr):
            pex.main(command)
    except SystemExit as leaving:
        if leaving.code:
            reason = "pex gives the reason above" if isinstance(leaving.code, int) else str(leaving.code)
            raise MwpyError(
                f"{script} is not packed: {reason}. If a version is not available for that Python, choose another "
                f"with --with 'PACKAGE>=VERSION'"
            ) from leaving


def _packages(output: Path) -> list[str]:
    """Return the names and versions of all packages in a PEX."""
    with zipfile.ZipFile(output) as packed:
        wheels = json.loads(packed.read("PEX-INFO"))["distributions"]
    return sorted({" ".join(wheel.split("-")[:2]) for wheel in wheels})
