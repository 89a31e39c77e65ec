"""Packs the ping example for the tests in an HTCondor pool, while the tests before them run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.systems.condor import CondorPool
from tests.systems.system import ROOT

OF_THE_POOL = "/usr/bin/python3"
OF_THE_TESTS = f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
"""Two Pythons of different versions, without packages."""

ABOUT = "import sys; print('%d.%d' % sys.version_info[:2])"

PACKING_S = 300.0
"""Time limit for packing. The package index may be slow."""


def versions(pool: CondorPool) -> set[str]:
    """Return the versions of both Pythons."""
    return {pool(python, "-c", ABOUT).stdout.strip() for python in (OF_THE_POOL, OF_THE_TESTS)}


class Packing:
    """A process that packs the example into one file.

    Args:
        folder: where the file will be.
        versions: the versions of Python that it is for.
    """

    def __init__(self, folder: Path, versions: Iterable[str]) -> None:
        self._path = folder / "ping.pex"
        self._said = folder / "said"
        wanted = [word for version in sorted(versions) for word in ("--python", version)]
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mwpy", "pack", ROOT / "examples/ping/ping.py", "-o", self._path, *wanted],
                cwd=ROOT / "src",
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )

    def packed(self) -> Path:
        """Wait for the end of the process. Return the file."""
        assert self._process.wait(PACKING_S) == 0, self._said.read_text(errors="replace")
        return self._path

    def end(self) -> None:
        """Kill the process if it still runs."""
        self._process.kill()
        self._process.wait()
