"""Large values are files beside the run database: FILE.values/DIGEST.

A file has the frames of one group of results. Its name is the digest of its content, so equal values are stored once
and damage is noticed. It is complete on the disk before a row names it.

At a restart, each result whose file is missing, damaged or of another size does not count, and its task runs again. To
find other damage, the files are read. This takes a second or two for each gigabyte, so only the newest `CHECKED_BYTES`
are read: a crash of the machine damages what was written last. If an older file is found damaged later, when its value
is asked for, it gets the suffix `.damaged` like the others. So the next restart computes its tasks again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from mwpy._values.errors import RunDatabaseError
from mwpy._values.ids import Buffer

__all__ = ["LARGE_BYTES", "ValueDamaged", "ValueFiles", "sync_folder"]

LARGE_BYTES = 256 * 1024
"""Values of this size and more are files. SQLite is as quick as a file system up to about this size."""

CHECKED_BYTES = 2 << 30
"""How many bytes of the newest files are read at a restart."""

DAMAGED = ".damaged"


class ValueDamaged(RunDatabaseError):
    """The content of a value's file is not what was written.

    Args:
        name: the name of the file.
    """

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class ValueFiles:
    """The large values of one run database.

    Args:
        database: the run database.
    """

    def __init__(self, database: Path) -> None:
        self.folder = database.with_name(f"{database.name}.values")

    def write(self, frames: Sequence[Buffer]) -> str:
        """Write a value, and wait until it is on the disk. Return the name of its file. `sync` follows.

        Raises:
            OSError: it cannot be written.
        """
        name = _digest(*frames)
        path = self.folder / name
        if not path.exists():
            self.folder.mkdir(0o700, exist_ok=True)
            beside = self.folder / f"{name}.part"
            with beside.open("wb") as file:
                file.writelines(frames)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        return name

    def sync(self) -> None:
        """Make sure that the names of new files are on the disk."""
        for folder in (self.folder, self.folder.parent):
            sync_folder(folder)

    def read(self, name: str) -> bytes:
        """Return a value.

        Raises:
            RunDatabaseError: the file is missing or damaged.
        """
        path = self.folder / name
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise RunDatabaseError(
                f"a value of the run database is missing: {path}. Put it back; or start again, and its tasks run again"
            ) from error
        except OSError as error:
            raise ValueDamaged(_damage(path, f" ({error.strerror})"), name) from error
        if _digest(content) != name:
            raise ValueDamaged(_damage(path), name)
        return content

    def usable(self) -> dict[str, int]:
        """Return the sizes of the files that can be used, by name. Damaged files among the newest are set aside.

        The caller has made sure that nobody else writes the run database.
        """
        found = {name: (self.folder / name).stat() for name in self.names() if "." not in name}
        usable = {name: each.st_size for name, each in found.items()}
        size = 0
        for name in sorted(found, key=lambda name: found[name].st_mtime_ns, reverse=True):
            if size > CHECKED_BYTES:
                break
            size += found[name].st_size
            if not _is_right(self.folder / name):
                del usable[name]
                self.set_aside(name)
        return usable

    def set_aside(self, name: str) -> None:
        """Rename a damaged file, so that its value does not count any more and can be written again."""
        path = self.folder / name
        path.replace(f"{path}{DAMAGED}")

    def names(self) -> Iterator[str]:
        """Yield the name of each file."""
        if self.folder.exists():
            yield from (each.name for each in self.folder.iterdir())

    def remove(self, name: str) -> int:
        """Remove a file; return its size."""
        path = self.folder / name
        size = path.stat().st_size
        path.unlink()
        return size


def _damage(path: Path, why: str = "") -> str:
    return f"a value of the run database is damaged: {path}{why}. Start again, and its tasks run again"


def _is_right(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, _new_digest).hexdigest() == path.name
    except OSError:
        return False


def _new_digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=20)


def _digest(*frames: Buffer) -> str:
    digest = _new_digest()
    for frame in frames:
        digest.update(frame)
    return digest.hexdigest()


def sync_folder(folder: Path) -> None:
    """Make sure that the names in a folder are on the disk."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
