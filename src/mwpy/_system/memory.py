"""How much memory this process uses, and each child with its descendants; and a control group that limits a child.

The memory of mapped files does not count: the kernel can drop it at any time. Pages that several processes share count
in equal parts. To find these parts, the kernel visits each page, which takes 0.04 seconds for a gigabyte. So the exact
number is read only if the resident memory, a number that the kernel keeps, is over a bound.

A control group is made only where the agent may do so: in version 1 of control groups, if the group of the agent is
writable. In version 2, a group with processes cannot give the memory controller to its children.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from contextlib import suppress

from mwpy._system import clock

__all__ = ["MemoryGroup", "count_kills", "family", "read", "resident_bytes", "used_by"]

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

PATIENCE_S = 1.0
"""Seconds at the exit of this process in which killed processes may leave their groups."""

POLL_S = 0.01

UNLIMITED = -1
"""The limit of a control group that has no limit."""

_EXACT = ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")
"""The rows of `smaps_rollup` that count: what belongs to processes, shared memory, and what was swapped out."""


def resident_bytes() -> int:
    """Return how much memory this process has now; where the kernel does not say this, its peak so far."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * PAGE_BYTES
    except OSError:  # pragma: no cover (macOS)
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def family(pid: int) -> list[int]:
    """Return a process and its descendants. A process whose parent has ended is no descendant any more."""
    found = [pid]
    for each in found:
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{each}/task"):
                found += map(int, read(f"/proc/{each}/task/{thread}/children").split())
    return found


def used_by(pid: int, exact_above: int) -> int:
    """Return how many bytes of memory a process and its descendants use.

    Args:
        exact_above: up to this number, the answer may be larger than what is in use.
    """
    pids = family(pid)
    resident = sum(map(_resident, pids))
    return resident if resident <= exact_above else sum(map(_exact, pids))


def _resident(pid: int) -> int:
    fields = read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * PAGE_BYTES if fields else 0


def _exact(pid: int) -> int:
    rows = [line.split() for line in read(f"/proc/{pid}/smaps_rollup").splitlines()]
    return sum(int(row[1]) * 1024 for row in rows if row[0] in _EXACT)


_unused: dict[str, None] = {}
"""The folders of groups that are to be removed."""


def _remove_unused(patience_s: float = 0.0) -> None:
    """Remove groups in which no process is left, and wait for the last processes of the others."""
    until = clock.monotonic() + patience_s
    while True:
        for folder in [*_unused]:
            with suppress(OSError):
                os.rmdir(folder)
                del _unused[folder]
        if not _unused or clock.monotonic() >= until:
            return
        clock.sleep(POLL_S)


class MemoryGroup:
    """A control group that limits the memory of some processes.

    Args:
        name: its name; unique among the children of this process.

    Raises:
        OSError: this process cannot make one.
    """

    def __init__(self, name: str) -> None:
        own = next((line.split(":", 2)[2] for line in read("/proc/self/cgroup").splitlines() if ":memory:" in line), "")
        self._folder = f"/sys/fs/cgroup/memory{own}/{name}"
        os.mkdir(self._folder)

    def add(self, pids: Sequence[int]) -> None:
        """Move processes into it, and thus everything that they start. What they use already is not counted."""
        for pid in pids:
            with suppress(OSError):  # it has ended
                self._write("cgroup.procs", pid)

    def limit(self, most: int | None) -> None:
        """Set the limit in bytes; None for no limit. If more is in use, the kernel may refuse a lower limit."""
        value = UNLIMITED if most is None else most
        for name in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"):
            with suppress(OSError):
                self._write(name, value)

    @property
    def kills(self) -> int:
        """How many of its processes the kernel has killed because it was full."""
        return count_kills(f"{self._folder}/memory.oom_control")

    def remove(self) -> None:
        """Remove it. As long as a process is left in it, a later call and the exit of this process try again."""
        atexit.unregister(_remove_unused)
        atexit.register(_remove_unused, PATIENCE_S)
        _unused[self._folder] = None
        _remove_unused()

    def _write(self, name: str, value: int) -> None:
        with open(f"{self._folder}/{name}", "w", encoding="ascii") as file:
            file.write(str(value))


def count_kills(path: str) -> int:
    """Return how many processes the kernel has killed for lack of memory, as a file says; 0 if it does not say it."""
    return next((int(line.split()[1]) for line in read(path).splitlines() if line.startswith("oom_kill ")), 0)


def read(path: str) -> str:
    """Return the content of a file of the kernel; empty if it cannot be read."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
