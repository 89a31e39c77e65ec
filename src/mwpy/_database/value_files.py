"""Large values are files beside the run database: FILE.values/DIGEST.

A file has the frames of one group of results. Its name is the digest of its content, so equal values are stored once
and damage is noticed. It is complete on the disk before a row names it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from mwpy._values.errors import RunDatabaseError
from mwpy._values.ids import Buffer

__all__ = ["LARGE_BYTES", "ValueFiles"]

LARGE_BYTES = 256 * 1024
"""Values of this size and more are files. SQLite is as quick as a file system up to about this size."""


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
        digest = hashlib.blake2b(digest_size=20)
        for frame in frames:
            digest.update(frame)
        name = digest.hexdigest()
        path = self.folder / name
        if not path.exists():
            self.folder.mkdir(exist_ok=True)
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
        except OSError as error:
            raise RunDatabaseError(
                f"a value of the run database is missing: {path} ({error.strerror}); keep the folder {self.folder} "
                f"beside the run database"
            ) from error
        if hashlib.blake2b(content, digest_size=20).hexdigest() != name:
            raise RunDatabaseError(
                f"a value of the run database is damaged: {path}; delete it, and its tasks run again"
            )
        return content

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


def sync_folder(folder: Path) -> None:
    """Make sure that the names in a folder are on the disk."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
