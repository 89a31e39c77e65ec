"""The temporary folders of an agent's slaves: what a killed task has left in one is removed when its slave has ended.

A task that is killed cannot remove its temporary files. On a machine that runs for months, they would fill the disk. So
each slave has a folder of its own, and its `TMPDIR` names this folder. All of them are in one folder of their agent,
which the agent removes at its end. An agent that is killed cannot do this. So it holds a lock on its folder, and the
next agent of the same user on this machine removes old folders that nobody locks. `systemd-tmpfiles` leaves locked
folders alone, too.
"""

from __future__ import annotations

import fcntl
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Any

from mwpy._system import clock
from mwpy._system.process import Background

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
            if not self._own:
                self._begin(_base())
            path = os.path.join(self._own, str(next(self._numbers)))
            os.mkdir(path, 0o700)
        except OSError as error:
            self._has_failed = True
            text = f"mwpy: slaves have no temporary folders of their own, so files of killed tasks stay: {error}"
            print(text, file=sys.stderr, flush=True)
            return ""
        return path

    def _begin(self, base: str) -> None:
        own = os.path.join(base, _prefix() + os.urandom(4).hex())
        if len(own) + len("/1000000") > LONGEST:
            raise OSError(f"the path of {base} is so long that sockets in a folder below it could not be used")
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
