"""How many files this process may have open: each connection and each pipe is one.

The usual soft limit is 1024, although the hard limit is much larger. A master has a connection to each agent, and an
agent has four files for each slave. The limit is not raised further than `ENOUGH`, because some programs that a process
starts try to close every file that they may have.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress

__all__ = ["count", "raise_limit"]

ENOUGH = 1 << 16


def raise_limit() -> int:
    """Raise the soft limit towards the hard limit, and return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return ENOUGH if soft == resource.RLIM_INFINITY else soft
    with suppress(OSError, ValueError):  # macOS refuses more than the kernel allows
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def count() -> int:
    """Return how many files this process has open."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            return len(os.listdir(folder))
    return 0
