"""Software from Debian's packages: installed on this machine, or in a tree of another Debian."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.systems.namespace import SystemFailed, run

CACHE = Path(os.environ.get("MWPY_TESTS_CACHE", "/var/cache/mwpy-tests"))
"""What is kept from one run of the tests to the next. Other users must be able to read it."""

INSTALL_S = 300.0
"""How long the download of packages may take."""

NOT_NEEDED = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*")
"""Files that are left out of a tree."""


class Unavailable(SystemFailed):
    """This machine cannot run the batch system.

    Args:
        reason: why it cannot run.
        remedy: what a user can do about it.
    """

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")


def check_machine(target: str) -> None:
    """Check that batch systems can run here at all.

    Args:
        target: the target of the Makefile that runs the tests in question.

    Raises:
        Unavailable: this is not Debian, or the user is not root.
    """
    remedy = f"to run these tests: `sudo make {target}` on Debian"
    try:
        release = Path("/etc/os-release").read_text()
    except OSError:
        release = ""
    if not re.search(r"^ID=debian$", release, re.MULTILINE):
        raise Unavailable("a real batch system needs Debian", remedy)
    if os.geteuid() != 0:
        raise Unavailable("a real batch system needs root", remedy)


@contextmanager
def locked(name: str, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold a lock that all runs of the tests on this machine share.

    Raises:
        BlockingIOError: `kind` says not to wait, and another process holds the lock.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as file:
        fcntl.flock(file, kind)
        yield


def install(*packages: str) -> None:
    """Install the packages that are missing.

    Raises:
        Unavailable: apt cannot install them.
    """
    missing = [package for package in packages if not is_installed(package)]
    if not missing:
        return
    with locked("apt"):
        # invoke-rc.d starts no service in runlevel 1
        variables = {**os.environ, "RUNLEVEL": "1", "DEBIAN_FRONTEND": "noninteractive"}
        options = ("-qq", "-o", "DPkg::Lock::Timeout=300")
        for words in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
            done = subprocess.run(
                ["apt-get", *options, *words],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=INSTALL_S,
                check=False,
            )
            if done.returncode:
                last = " ".join(done.stdout.split()[-40:])
                remedy = f"see what `apt-get install {' '.join(missing)}` says"
                raise Unavailable(f"apt-get {words[0]} failed ({last})", remedy)


def is_installed(package: str) -> bool:
    shown = run(["dpkg-query", "--show", "--showformat=${Status}", package], check=False).stdout
    return shown == "install ok installed"


def tree(suite: str, *packages: str) -> Path:
    """Return the root folder of another Debian with these packages; build it at the first call.

    Args:
        suite: name of the release, such as `trixie`.

    Raises:
        Unavailable: it cannot be built.
    """
    place = CACHE / suite
    if not place.exists():
        install("mmdebstrap")
        new = place.with_suffix(".new")
        run(["rm", "-rf", "--one-file-system", new])
        # A private namespace: if mmdebstrap is interrupted, none of its mounts stays.
        command = ["unshare", "--mount", "--propagation=private", "mmdebstrap", "--quiet", "--variant=apt"]
        command += ["--aptopt=APT::Install-Recommends false", "--aptopt=Acquire::Languages none"]
        command += ["--aptopt=Acquire::Retries 3", "--dpkgopt=force-unsafe-io"]
        command += [f"--dpkgopt=path-exclude={pattern}" for pattern in NOT_NEEDED]
        command += [f"--include={','.join(packages)}", suite, str(new), mirror()]
        try:
            run(command, timeout_s=INSTALL_S)
        except SystemFailed as error:
            raise Unavailable(
                f"a tree of Debian {suite} cannot be built: {error}", "is the mirror reachable?"
            ) from None
        new.rename(place)
    return place


def mirror() -> str:
    """The address from which this machine gets Debian's packages."""
    for path in (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")):
        if path.exists() and (
            found := re.search(r"^(?:URIs:|deb(?: \[.*?\])?)\s+(\S+)", path.read_text(), re.MULTILINE)
        ):
            return found[1]
    raise Unavailable("this machine has no address for Debian's packages", "add one to /etc/apt/sources.list")


def remove(folder: Path) -> None:
    """Remove a folder; refuse if a file system is mounted in it."""
    if f" {folder}" in Path("/proc/self/mounts").read_text():
        raise SystemFailed(f"something is mounted in {folder}")
    shutil.rmtree(folder, ignore_errors=True)
