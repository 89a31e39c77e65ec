"""The key and the port of a master with a run database, in a file beside it that only its owner can read.

The next master of the run database takes both again. So an agent finds it although its resource file is a copy, such as
the one that HTCondor transfers with a job.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from mwpy import resource_file
from mwpy._database.place import real_path
from mwpy._values.environment import UNREADABLE
from mwpy._values.errors import UsageError
from mwpy._values.messagepack import encode_json, json_decoder

__all__ = ["FormerPlace", "keep", "recall"]


class FormerPlace(Struct, frozen=True):
    """The content of the file."""

    key: str = ""
    """The key of the computation; empty if it is not known."""
    port: int = 0
    """The port of the last master; 0 if it is not known."""


def _beside(run_database: str) -> Path:
    path = real_path(run_database)
    return path.with_name(f"{path.name}.keys")


def recall(run_database: str) -> FormerPlace:
    """Read the key and the port of the last master of a run database. A file that others can read or have written does
    not count: they would know the key."""
    with suppress(OSError, *UNREADABLE):
        fd = os.open(_beside(run_database), os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if status.st_uid == os.geteuid() and not status.st_mode & 0o077:
                return json_decoder(FormerPlace)(file.read())
    return FormerPlace()


def keep(run_database: str, place: FormerPlace) -> None:
    """Write the key and the port of this master, for the next one.

    Raises:
        UsageError: the file cannot be written.
    """
    path = _beside(run_database)
    try:
        resource_file.replace_file(path, encode_json(place) + b"\n")
    except OSError as error:
        raise UsageError(
            f"cannot write {path}, where the next master of the run database finds its keys: "
            f"{error.strerror or error}; make its directory writable and free some space"
        ) from error
