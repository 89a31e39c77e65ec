"""The memory of this process."""

from __future__ import annotations

import mmap

__all__ = ["resident_bytes"]


def resident_bytes() -> int:
    """Return how much memory this process has now; where the kernel does not say this, its peak so far."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except OSError:  # pragma: no cover (macOS)
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
