"""A lock on a file, which the operating system releases when the process that holds it ends."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
from pathlib import Path

_HELD = (errno.EACCES, errno.EAGAIN)
UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""The errors of a file system without locks."""

_held_here: dict[tuple[int, int], str] = {}
"""The files that this process has locked, by device and inode, each with its text. The operating system does not
refuse the process that holds a lock, and would even release the lock when this process closes the file once more."""


class LockHeld(Exception):
    """Another holder has the lock. The text names it.

    Args:
        is_here: whether it is in this process.
    """

    def __init__(self, holder: str, *, is_here: bool = False) -> None:
        super().__init__(holder)
        self.is_here = is_here


class LocksUnsupported(OSError):
    """The file system has no locks."""


class FileLock:
    """A lock that this process holds until it ends or calls `release`.

    It is a POSIX lock (`fcntl`): it works between hosts on NFS, and processes that this one forks do not hold it.

    Args:
        path: the file, which is made if it is missing. `release` removes it.
        since: when the holder began, for those that are refused; empty if it does not matter.

    Raises:
        LockHeld: it is held, by another process or by this one.
        LocksUnsupported: the file system has no locks.
        OSError: the file cannot be opened or written, or it is a symbolic link. In a directory where others can write,
            a link could make this process overwrite any of its user's files.
    """

    def __init__(self, path: Path, since: str = "") -> None:
        self._path = path
        self._fd = _lock(path)
        while not _is_at(path, self._fd):  # its holder removed it just now
            os.close(self._fd)
            self._fd = _lock(path)
        text = f"process {os.getpid()} on {platform.node()}{f', which runs since {since}' if since else ''}"
        self._written = f"{text}\n"
        self._identity = _identity(os.fstat(self._fd))
        _held_here[self._identity] = text
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, self._written.encode(), 0)

    def release(self) -> None:
        """Let another process have the lock. If the file cannot be removed, because the file system has failed, it
        stays, and nobody holds its lock."""
        try:
            if self.is_exclusive():
                self._path.unlink(missing_ok=True)
        except OSError:
            pass
        finally:
            del _held_here[self._identity]
            os.close(self._fd)

    def is_exclusive(self) -> bool:
        """Whether no other process took the lock later. Some file systems, such as sshfs, lock only within a host."""
        try:
            return self._path.read_text(encoding="utf-8", errors="replace") == self._written
        except FileNotFoundError:
            return True


def _lock(path: Path) -> int:
    """Open and lock a file, and return its file descriptor."""
    if path.exists() and (holder := _held_here.get(_identity(path.stat()))) is not None:
        raise LockHeld(holder, is_here=True)
    if path.is_symlink():
        raise OSError(errno.ELOOP, f"{path} is a symbolic link, so delete it")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(fd, 1000, 0).decode(errors="replace").strip()
        os.close(fd)
        if error.errno in _HELD:
            raise LockHeld(holder) from error
        if error.errno in UNSUPPORTED:
            raise LocksUnsupported(error.errno, error.strerror) from error
        raise
    return fd


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _is_at(path: Path, fd: int) -> bool:
    """Whether a file that is open has this path, still."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False
