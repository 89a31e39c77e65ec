"""Tools for tests on real batch systems: start a system, make the folder of a user, and wait.

Jobs run as users without privileges. They see this checkout and this interpreter at their own paths, and can write to
neither. So each test has its own folder (`System.workdir`) with the files that a clone has after `make ping`
(`furnish`): the examples, the submit files, and a virtual environment `.venv` with mwpy. It takes no time to make this
environment, because it refers to the packages of the tests' environment.
"""

from __future__ import annotations

import compileall
import os
import shutil
import site
import sys
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from tests.systems.debian import Unavailable
from tests.systems.system import ROOT, System

S = TypeVar("S", bound=System)

REQUIRED = "MWPY_REQUIRE_SYSTEMS"
"""If this environment variable is set, a test whose batch system is missing fails. Otherwise it is skipped."""

START_S = 600.0
"""Time limit for the start of a batch system. The first start downloads its packages."""

PATIENCE_S = 180.0
"""Time limit for everything else. It is generous, because the machine may be slow and busy."""

POLL_S = 0.2
"""Seconds between two polls; each poll runs a command."""

POLL_MAX_S = 1.0
"""On a busy machine, where a command takes long, the pause between two polls grows to this."""

SHARE = 3.0
"""A pause is this many times as long as the poll before it."""


def skip(reason: str) -> None:
    """Skip the test and show the reason. Fail if batch systems are required."""
    if os.environ.get(REQUIRED):
        pytest.fail(f"{REQUIRED} is set, but {reason}", pytrace=False)
    pytest.skip(reason)


@contextmanager
def in_use(system: S) -> Iterator[S]:
    """Bring a batch system up, and take it down at the end. Skip the test if it cannot run here."""
    missing = ""
    try:
        system.use()
    except Unavailable as error:
        missing = str(error)
    if missing:
        skip(missing)
    try:
        yield system
    finally:
        system.leave()


@contextmanager
def user_folder(system: System) -> Iterator[Path]:
    """Make a folder with the files of a clone, and remove it at the end."""
    folder = system.workdir("test")
    furnish(folder)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)  # a job that has just been killed may still write


def furnish(folder: Path) -> Path:
    """Copy the files of a clone after `make ping` into a folder that all users can change. Return its interpreter."""
    for name in ("condor", "slurm", "examples"):
        ignored = shutil.ignore_patterns("*.log", "*.out", "*.err", "*.audit*", "__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    python = environment(folder / ".venv")
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o777 if path.is_dir() or os.access(path, os.X_OK) else 0o666)
    return python


def environment(folder: Path) -> Path:
    """Make a virtual environment that has the packages of this one, and mwpy. Return its interpreter.

    Like an installation, it compiles mwpy. Jobs cannot write here, and would otherwise compile mwpy at each start. Its
    `python` is a link to the program itself, because `/usr/bin/python3` is another version in the HTCondor pool.
    """
    compileall.compile_dir(ROOT / "src", quiet=1)
    venv.create(folder, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "mwpy.pth").write_text("\n".join([str(ROOT / "src"), *site.getsitepackages()]) + "\n")
    for python in folder.glob("bin/python*"):
        python.unlink()
        python.symlink_to(Path(sys.executable).resolve())
    script = folder / "bin" / "mwpy"
    script.write_text(f"#!{folder}/bin/python\nimport sys\nfrom mwpy.cli import main\nsys.exit(main())\n")
    script.chmod(0o755)
    return folder / "bin" / "python"


def until(condition: Callable[[], object], what: str | Callable[[], str], patience_s: float = PATIENCE_S) -> None:
    """Wait until a condition is true. If it stays false, fail with a description of what is missing."""
    begun = time.monotonic()
    deadline = begun + patience_s
    while not condition():
        now = time.monotonic()
        assert now < deadline, f"after {patience_s:.0f} s there should be {what() if callable(what) else what}"
        time.sleep(max(POLL_S, min(POLL_MAX_S, SHARE * (now - begun))))
        begun = time.monotonic()
