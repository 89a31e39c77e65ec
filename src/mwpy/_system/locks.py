"""A lock on a file, which the operating system releases when the process that holds it ends."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

__all__ = ["UNSUPPORTED", "FileLock", "LockHeld", "LocksUnsupported"]

_HELD = (errno.EACCES, errno.EAGAIN)
UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""The errors of a file system without locks."""


class LockHeld(Exception):
    """Another process holds the lock. Its text is what this process wrote into the file."""


class LocksUnsupported(Exception):
    """The file system has no locks."""


class FileLock:
    """A lock that this process holds until it ends or calls `release`.

    It is a POSIX lock (`fcntl`): it works between hosts on NFS, and processes that this one forks do not hold it.

    Args:
        path: the file, which is made if it is missing. `release` removes it.
        text: what a process that is refused reads about the holder.

    Raises:
        LockHeld: another process holds it.
        LocksUnsupported: the file system has no locks.
        OSError: the file cannot be opened or written.
    """

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._fd = _lock(path)
        while not _is_at(path, self._fd):  # its holder removed it just now
            os.close(self._fd)
            self._fd = _lock(path)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{text}\n".encode(), 0)

    def release(self) -> None:
        """Let another process have the lock."""
        self._path.unlink(missing_ok=True)
        os.close(self._fd)


def _lock(path: Path) -> int:
    """Open and lock a file, and return its file descriptor."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(fd, 1000, 0).decode(errors="replace").strip()
        os.close(fd)
        if error.errno in _HELD:
            raise LockHeld(holder) from error
        if error.errno in UNSUPPORTED:
            raise LocksUnsupported(str(error)) from error
        raise
    return fd


def _is_at(path: Path, fd: int) -> bool:
    """Whether a file that is open has this path, still."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False
