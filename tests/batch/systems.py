"""The real batch systems that tests run on, as a user without privileges sees them.

`../shared/tools`, beside the checkout, brings each of them up on one machine; it needs root and Debian. Where that
cannot be, the tests are skipped and say why; where the environment has `CI` they fail instead.

What runs in a batch system runs as another user, who sees the checkout and the interpreter of the tests where they
are, and can write to neither. So a test works in a folder of its own (`System.workdir`) with what a user has in a
clone after `make ping` (`furnish`): the examples, the submit files, and a virtual environment `.venv` with mwpy. That
environment is made in no time, for any interpreter that the tests run with: it has the packages of theirs.
"""

from __future__ import annotations

import compileall
import fcntl
import os
import shlex
import shutil
import site
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

ROOT = Path(__file__).parent.parent.parent
TOOLS = ROOT.parent / "shared" / "tools"

UP_S = 300.0
"""How long a system may take to come up; the first time it is built."""

COMMAND_S = 300.0
"""How long one command may take."""

PATIENCE_S = 180.0
"""How long anything else may take on a slow and busy machine before it counts as stuck."""

POLL_S = 0.2
"""Seconds between two looks: each is a command."""


def cannot(reason: str) -> None:
    """Skip what asks for this and say why; in CI fail."""
    if os.environ.get("CI"):
        pytest.fail(f"in CI this must run, but {reason}", pytrace=False)
    pytest.skip(reason)


class System:
    """One of the tools; calling it runs a command in its batch system, by default as the user `submit`."""

    def __init__(self, tool: str) -> None:
        self.tool = TOOLS / tool
        self._folder = Path(os.environ.get(f"{tool.upper().replace('-', '_')}_DIR", f"/var/lib/{tool}"))
        self._users: IO[str] | None = None
        self._found_up = False

    def up(self, *options: str) -> None:
        """Bring it up, unless it is; skip if that cannot be."""
        if not self.tool.exists():
            cannot(f"{self.tool} is not there, which brings up a real system")
        if os.geteuid() != 0:
            cannot(f"{self.tool.name} needs root")
        if not Path("/etc/debian_version").exists():
            cannot(f"{self.tool.name} needs Debian")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._users = (self._folder / "users").open("w")
        fcntl.flock(self._users, fcntl.LOCK_SH)
        self._found_up = self.do("status", check=False).returncode == 0
        done = self.do("up", *options, check=False, timeout=UP_S)
        if done.returncode:
            cannot(f"{self.tool.name} did not come up: {done.stderr.strip()}")

    def leave(self, *options: str, empty: bool) -> None:
        """Take it down, unless it was up before, its queue has jobs, or another test run uses it."""
        assert self._users is not None
        with self._users:
            try:
                fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            if empty and not self._found_up:
                self.do("down", *options)

    def do(self, *words: object, check: bool = True, timeout: float = COMMAND_S) -> subprocess.CompletedProcess[str]:
        """Run a verb of the tool itself, as root."""
        versions = dict.fromkeys(("CONDOR_POOL_PYTHON", "NODE_PYTHON"), sys.executable)
        return run([self.tool, *words], check, timeout, {**os.environ, **versions})

    def __call__(
        self, *command: object, cwd: Path | str = "/", user: str = "submit", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command there; one that fails is a failure of the test, unless `check` says otherwise."""
        return run([self.tool, "exec", "-u", user, "-C", cwd, "--", *command], check, COMMAND_S, None)

    def workdir(self, name: str = "work") -> Path:
        """A new folder that everybody can write to, at the same path everywhere."""
        return Path(self.do("workdir", name).stdout.strip())

    def environment(self) -> dict[str, str]:
        """What a process on this machine has in its environment to talk to the system."""
        words = shlex.split(self.do("env").stdout)
        return {**os.environ, **dict(word.split("=", 1) for word in words if "=" in word)}

    def wrappers(self, folder: Path) -> dict[str, str]:
        """An environment in which the system's commands are found in PATH, and run there as the user `submit`."""
        self.do("wrappers", folder)
        return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def run(
    words: list[object], check: bool, timeout: float, environment: dict[str, str] | None
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0 or not check, f"exit code {done.returncode} of {words}\n{done.stdout}{done.stderr}"
    return done


def furnish(folder: Path) -> Path:
    """Give a folder what a clone has after `make ping`, writable by everybody; return its interpreter."""
    for name in ("condor", "slurm", "examples"):
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("*.log", "*.out", "*.err", "*.audit*", "__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    python = environment(folder / ".venv")
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o777 if path.is_dir() or os.access(path, os.X_OK) else 0o666)
    return python


def environment(folder: Path) -> Path:
    """Make a virtual environment that has the packages of this one, and mwpy; return its interpreter.

    As an installation does, it leaves mwpy compiled: jobs cannot write here, and would compile it at each start.
    """
    compileall.compile_dir(ROOT / "src", quiet=1)
    venv.create(folder, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "mwpy.pth").write_text("\n".join([str(ROOT / "src"), *site.getsitepackages()]) + "\n")
    script = folder / "bin" / "mwpy"
    script.write_text(f"#!{folder}/bin/python\nimport sys\nfrom mwpy.cli import main\nsys.exit(main())\n")
    script.chmod(0o755)
    return folder / "bin" / "python"


def until(come: Callable[[], object], what: str | Callable[[], str], patience_s: float = PATIENCE_S) -> None:
    """Wait for something, and say what was missed if it does not come."""
    deadline = time.monotonic() + patience_s
    while not come():
        assert time.monotonic() < deadline, (
            f"after {patience_s:.0f} s there should be {what() if callable(what) else what}"
        )
        time.sleep(POLL_S)
