"""Finds the control group in which this process may limit and count the memory of others."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["JOIN", "own_group"]

JOIN = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
"""For `sh -c`: a control group, the first argument, counts the memory of a program, the other arguments."""


def own_group() -> Path | None:
    """The folder of this process's control group for memory, if this process may make groups in it."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            folder = Path(f"/sys/fs/cgroup/memory{path}")
            return folder if os.access(folder, os.W_OK) else None
    return None
