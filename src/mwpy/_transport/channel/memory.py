"""The memory that an agent shares with one of its slaves.

Its first part holds five numbers, each in a cache line of its own, because one side writes while the other reads:

- `started`: the position of the task that the slave started last. Only the slave writes it.
- `began`: when the slave started this task, if the task has a limit of time and still runs; else 0. Only the slave
  writes it, before `started`.
- `recalls`: how often the agent has recalled tasks. Only the agent writes it.
- `fed`: when the agent last sent tasks to the slave while it had none. Only the agent writes it.
- `ends`: when the tasks of the slave must have ended; 0 if this is not known. Only the agent writes it.

A task can overwrite all of it, by accident or with intent. So the agent relies on none of it: the core checks the
numbers that it reads. The file cannot be shortened, because reading memory that the file no longer has would kill the
agent (SIGBUS).

The journal follows; see `journal.py`. Behind the memory, in the same file, Python's fault handler of the slave writes
what it knows of a crash in native code. So this report is complete even if a task closed its standard error.
"""

from __future__ import annotations

import fcntl
import mmap
import os

from mwpy._transport.channel.journal import JOURNAL_BYTES, Journal

__all__ = ["MEMORY_BYTES", "SharedMemory", "make_file"]

LINE_BYTES = 64
"""The size of a cache line."""

_STARTED, _RECALLS, _FED, _BEGAN, _ENDS, _JOURNAL = (line * LINE_BYTES for line in range(6))
MEMORY_BYTES = _JOURNAL + JOURNAL_BYTES
"""The size of the memory. In the file, the output of the fault handler follows."""


def make_file() -> int:
    """Make the file of a new memory, all zeros, and return its descriptor.

    Raises:
        OSError: out of file descriptors or memory.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("mwpy-slave", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, MEMORY_BYTES)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    else:  # pragma: no cover (macOS)
        import tempfile

        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
        os.ftruncate(fd, MEMORY_BYTES)
    return fd


class SharedMemory:
    """One side's view of the memory.

    Args:
        file: the descriptor of its file.
    """

    def __init__(self, file: int) -> None:
        self._memory = mmap.mmap(file, MEMORY_BYTES)
        view = memoryview(self._memory)
        self.started = view[_STARTED : _STARTED + 8].cast("Q")
        self.recalls = view[_RECALLS : _RECALLS + 8].cast("Q")
        self.fed: memoryview[float] = view[_FED : _FED + 8].cast("d")
        self.began: memoryview[float] = view[_BEGAN : _BEGAN + 8].cast("d")
        self.ends: memoryview[float] = view[_ENDS : _ENDS + 8].cast("d")
        self.journal = Journal(view[_JOURNAL:])
        view.release()

    def close(self) -> None:
        """Give the memory back."""
        self.journal.close()
        for number in (self.started, self.recalls, self.fed, self.began, self.ends):
            number.release()
        self._memory.close()
