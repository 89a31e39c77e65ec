"""The descendants of a process: their memory, and their end."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

__all__ = ["LOOK_S", "adopt_orphans", "descendants", "end_descendants", "memory"]

PR_SET_CHILD_SUBREAPER = 36

LEAVE_S = 3.0
"""How long the descendants of a process get to remove what they have made, in seconds."""

LOOK_S = 0.01
"""Seconds between two looks at processes that start or end."""


def descendants(process: int) -> list[int]:
    """Return the ids of all descendants of a process that have not ended."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            state, parent = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(stat.parent.name))
    found = [process]
    for each in found:
        found += children.get(each, [])
    return found[1:]


def memory(process: int) -> int:
    """Return the bytes of a process and all its descendants. A shared page counts in parts."""
    return sum(map(_proportional_bytes, [process, *descendants(process)]))


def _proportional_bytes(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0  # it has ended
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def adopt_orphans() -> None:
    """Make this process the parent of all its descendants whose parents end."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants() -> None:
    """Wait until all descendants of this process have ended, and kill those that stay. It must have adopted orphans."""
    patience = time.monotonic() + LEAVE_S
    while _collect() and time.monotonic() < patience:
        time.sleep(LOOK_S)
    while _collect():
        for each in descendants(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        time.sleep(LOOK_S)


def _collect() -> bool:
    """Collect the children that have ended. Return whether there are others."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
