"""Files of which several processes know: locks, temporary folders of slaves, and the file system that a file is on."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import re
import sys
import zlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from mwpy._system import clock
from mwpy._system.process import Background

if TYPE_CHECKING:
    from pathlib import Path

_HELD = (errno.EACCES, errno.EAGAIN)
UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""The errors of a file system without locks."""

ENDS_S = 1.0
"""How long a start waits for the lock of a process that ends, in seconds. A process that is killed gives its locks back
one after the other, and takes some time if it has much memory. So one of them may be free when another one is not."""

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
        patience_s: how long to wait for another process that has the lock, in seconds.

    Raises:
        LockHeld: it is held, by another process or by this one.
        LocksUnsupported: the file system has no locks.
        OSError: the file cannot be opened or written, or it is a symbolic link. In a directory where others can write,
            a link could make this process overwrite any of its user's files.
    """

    def __init__(self, path: Path, since: str = "", patience_s: float = 0.0) -> None:
        until = clock.monotonic() + patience_s
        self._path = path
        self._fd = _lock(path, until)
        while not _is_at(path, self._fd):  # its holder removed it just now
            os.close(self._fd)
            self._fd = _lock(path, until)
        text = f"process {os.getpid()} on {platform.node()}{f', which runs since {since}' if since else ''}"
        self._written = f"{text}\n"
        self._identity = _identity(os.fstat(self._fd))
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, self._written.encode(), 0)
        except OSError:
            os.close(self._fd)
            raise
        _held_here[self._identity] = text

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

    def touch(self) -> None:
        """Show those who do not see the lock that its holder lives, by the time of the file.

        Raises:
            OSError: the file system fails.
        """
        os.utime(self._fd)

    def is_exclusive(self) -> bool:
        """Whether no other process took the lock later. Some file systems, such as sshfs, lock only within a host.

        The file is not opened once more, because closing it would release the lock.
        """
        if not self._path.exists():
            return True
        return _is_at(self._path, self._fd) and os.pread(self._fd, 1000, 0).decode(errors="replace") == self._written


def _lock(path: Path, until: float) -> int:
    """Open and lock a file, and return its file descriptor. Try again until a point of time."""
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
        if error.errno in _HELD and clock.monotonic() < until:
            clock.sleep(PAUSE_S)
            return _lock(path, until)
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


# The temporary folders of an agent's slaves: what a killed task has left in one is removed when its slave has ended.
#
# A task that is killed cannot remove its temporary files. On a machine that runs for months, they would fill the disk.
# So each slave has a folder of its own, and its `TMPDIR` names this folder. All of them are in one folder of their
# agent, which the agent removes at its end. An agent that is killed cannot do this. So it holds a lock on its folder,
# and the next agent of the same user on this machine removes old folders that nobody locks. `systemd-tmpfiles` leaves
# locked folders alone, too.


LONGEST = 70
"""The longest path of a slave's folder, in characters. The address of a Unix socket has at most 103 bytes on macOS and
107 on Linux, and `multiprocessing` makes sockets with names of 32 characters below this folder."""

OLD_S = 60.0
"""An agent locks its folder at once. So a folder that has not changed for this many seconds and has no lock is left."""

ATTEMPTS = 10
PAUSE_S = 0.1
"""How often the removal of a folder is tried, and the seconds in between: processes that were just killed may still
write into the folder."""

PATIENCE_S = 5.0
"""How long an agent waits for the removal of its folders at its end, in seconds."""


class SlaveFolders:
    """Makes and removes the folders of one agent's slaves. They are removed in the background, because a task may leave
    any number of files."""

    def __init__(self) -> None:
        self._own = ""
        """The folder of the agent; empty before the first slave."""
        self._lock = -1
        self._has_failed = False
        self._numbers = count(1)
        self._removals = Background(_remove, "mwpy-folders")

    def make(self) -> str:
        """Make a folder for another slave, and return its path. If this is impossible, say so once, and return an empty
        string: the slave uses the folder of its agent."""
        if self._has_failed:
            return ""
        try:
            path = self._next()
            if len(os.path.dirname(path)) + len("/1000000") > LONGEST:
                raise OSError(f"the path of {_base()} is so long that sockets in a folder below it could not be used")
            os.mkdir(path, 0o700)
        except OSError as error:
            self._has_failed = True
            text = f"mwpy: slaves have no temporary folders of their own, so files of killed tasks stay: {error}"
            print(text, file=sys.stderr, flush=True)
            return ""
        return path

    def for_set_up(self) -> str:
        """Return the path of a folder that the set-up of the agent may make. It stays until the end of the agent.

        Raises:
            OSError: the folder of the agent cannot be made.
        """
        return self._next() + "-set-up"

    def _next(self) -> str:
        if not self._own:
            self._begin(_base())
        return os.path.join(self._own, str(next(self._numbers)))

    def _begin(self, base: str) -> None:
        own = os.path.join(base, _prefix() + os.urandom(4).hex())
        for left in _leftovers(base):
            self._removals.give(left)
        os.mkdir(own, 0o700)
        self._own = own
        self._lock = _open(own)
        with suppress(OSError):  # a file system without locks: then no agent removes folders of others
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self, path: str) -> None:
        """Remove the folder of a slave that has ended; nothing if the path is empty."""
        if path:
            self._removals.give(path)

    def close(self) -> None:
        """Remove all folders."""
        if self._own:
            with suppress(OSError):
                for name in os.listdir(self._own):
                    self.remove(os.path.join(self._own, name))
            self.remove(self._own)
        self._removals.close(PATIENCE_S)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def use(folder: str) -> None:
    """Let this process, and programs that it starts, make temporary files in the folder of a slave, if it has one.

    Nothing changes if the script has chosen another folder, by `TMPDIR` or `tempfile.tempdir`.
    """
    base = _base()
    if folder and base == os.path.dirname(os.path.dirname(folder)):
        os.environ["TMPDIR"] = folder
        tempfile: Any = sys.modules.get("tempfile")
        if tempfile is not None and tempfile.tempdir == base:
            tempfile.tempdir = None  # it was found out before


def _base() -> str:
    """Return the folder for temporary files that `tempfile` would use, without the import of this large module."""
    named = [os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    for path in filter(None, (*named, "/tmp", "/var/tmp", "/usr/tmp")):
        if os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK):
            return os.path.abspath(path)
    return os.getcwd()


def _prefix() -> str:
    """How the names of agents' folders begin on this machine. Another machine may see them without the locks."""
    return f"mwpy-{zlib.crc32(os.uname().nodename.encode()) & 0xFFFF:04x}"


def _open(folder: str) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _leftovers(base: str) -> Iterator[str]:
    """Find the folders of agents of this user that have ended without removing them."""
    prefix = _prefix()
    for path in (os.path.join(base, name) for name in os.listdir(base) if name.startswith(prefix)):
        try:
            fd = _open(path)
        except OSError:  # of another user, or just removed
            continue
        try:
            found = os.fstat(fd)
            if found.st_uid == os.geteuid() and found.st_mtime < clock.wall() - OLD_S:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield path
        except OSError:  # its agent lives
            pass
        finally:
            os.close(fd)


def _remove(path: str) -> None:
    """Remove a folder with all that is in it."""
    with suppress(OSError):
        os.rmdir(path)  # most are empty, and do not need a large module
        return
    import shutil

    for _ in range(ATTEMPTS):
        shutil.rmtree(path, ignore_errors=True)
        if not os.path.lexists(path):
            return
        clock.sleep(PAUSE_S)
    print(f"mwpy: the temporary folder {path} of a slave cannot be removed: remove it", file=sys.stderr, flush=True)


# Where a file is: on a disk of this machine, or on a network file system.
#
# SQLite's readers and writers share memory (the file with the suffix `-shm`), and need locks that all of them see.
# Hosts do not share memory. So on a network file system, one connection only has the run database open.


_NETWORK = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "smb2", "afs", "coda", "ncpfs", "9p", "ceph", "lustre", "gpfs"),
        *("beegfs", "beegfs_nodev", "panfs", "pvfs2", "orangefs", "glusterfs", "ocfs2", "gfs", "gfs2", "wekafs"),
        *("virtiofs", "vboxsf", "vmhgfs", "prl_fs", "acfs", "pxfs", "mfs", "moosefs", "shfs", "fuse"),
    )
)
"""File systems that several machines can use at once."""


_LOCAL_FUSE = frozenset(
    f"fuse.{name}" for name in ("fuse-overlayfs", "gocryptfs", "encfs", "ntfs", "ntfs-3g", "exfat", "portal", "zfs")
)
"""File systems of user space that only this machine uses. All others of user space may be on a network."""


_ESCAPED = re.compile(r"\\([0-7]{3})")


def real_path(path: str | Path) -> Path:
    """Return the file to which a symbolic link leads: the lock and the large values of the file are beside it."""
    from pathlib import Path  # only here, because it loads slowly, and agents and slaves do not need it

    return Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)


def sync_folder(folder: Path) -> None:
    """Make sure that the names in a folder are on the disk."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def is_network(kind: str) -> bool:
    """Whether several machines may use a file system of this kind at once."""
    return kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)


def kind_of_file_system(folder: Path) -> str:
    """Return the kind of the file system that holds a folder, such as `ext4` or `nfs4`; empty if it is unknown."""
    from pathlib import Path  # only here, as above

    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    where = folder.resolve()
    longest, kind = -1, ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        point = Path(_ESCAPED.sub(lambda found: chr(int(found[1], 8)), left.split(" ")[4]))
        if len(point.parts) >= longest and (point == where or point in where.parents):
            longest, kind = len(point.parts), right.split(" ")[0]  # a later mount hides an earlier one
    return kind
