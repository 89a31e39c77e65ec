"""Opens run databases for writing and for reading. A file that is damaged, or of another program, is refused.

One master at a time writes a run database. The operating system locks the file .FILE.lock for it, and releases the lock
when the master ends, in whatever way. Between hosts this needs a file system whose server knows the locks.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from mwpy._database.connection import Connection, connected
from mwpy._database.schema import APPLICATION_ID, UPGRADES
from mwpy._system import clock
from mwpy._system.locks import FileLock, LockHeld, LocksUnsupported
from mwpy._values.errors import RunDatabaseError

__all__ = ["lock", "open_for_reading", "open_for_writing"]

CHECKPOINT_PAGES = 4096
"""When the write-ahead log has this many pages (16 MiB), they are copied into the file."""

LOG_BYTES = 64 << 20
"""The largest write-ahead log that is left after a copy. It is larger while something reads for a long time."""


def lock(path: Path) -> FileLock:
    """Get the right to write a run database.

    Raises:
        RunDatabaseError: another master has it, or the file system has no locks.
    """
    try:
        return FileLock(path.with_name(f".{path.name}.lock"), clock.date(clock.wall()))
    except LockHeld as error:
        if error.is_here:
            raise RunDatabaseError(
                f"the run database {path} is used by another master of this process: close that one first "
                f"(mw.close()), or give another file. A notebook may have it in a variable, in _ or in Out"
            ) from None
        raise RunDatabaseError(
            f"the run database {path} is used by another master: {str(error) or 'an unknown process'}. Wait for its "
            f"end, or give another file"
        ) from None
    except LocksUnsupported as error:
        raise RunDatabaseError(
            f"the run database {path} cannot be protected against a second master, because its file system has no "
            f"locks ({error.strerror}): put it on a local disk, or mount the file system with locks"
        ) from error
    except OSError as error:
        what_to_do = f"make its folder{' writable and free some space' if path.parent.exists() else ''}"
        raise RunDatabaseError(
            f"cannot open the run database {path}: {error.strerror or error}; {what_to_do}, or give another file"
        ) from error


def open_for_writing(path: Path, *, exclusive: bool, full: bool) -> Connection:
    """Open a run database, or make one, and upgrade it. The caller has made sure that nobody else writes it.

    Args:
        exclusive: whether this connection is the only one, because the file system cannot have several.
        full: whether each commit waits for the disk.

    Raises:
        RunDatabaseError: the file is damaged, is not a run database, or is of a newer mwpy.
    """
    with suppress(OSError):  # SQLite says why; it gives its logs the mode of the file
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    connection = connected(path, "rwc")
    try:
        if exclusive:
            # Before the first use of the log. Then no memory is shared.
            connection.run("PRAGMA locking_mode = EXCLUSIVE")
        _check_kind(connection)
        connection.run("PRAGMA journal_mode = WAL")
        connection.run(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
        connection.run(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.run(f"PRAGMA journal_size_limit = {LOG_BYTES}")
        connection.upgrade()
    except BaseException:
        connection.close()
        raise
    return connection


def open_for_reading(path: Path) -> Connection:
    """Open a run database only to read it.

    Raises:
        RunDatabaseError: it is missing, damaged, not a run database, or of a newer mwpy.
    """
    if not os.path.exists(path):
        raise RunDatabaseError(f"there is no run database {path}: a master writes one with --mw-run-database {path}")
    connection = connected(path, "ro")
    try:
        connection.run("PRAGMA query_only = 1")
        _check_kind(connection)
        if connection.rows("PRAGMA user_version") == [(0,)]:
            raise RunDatabaseError(
                f"the run database {path} is empty: its master has not written anything, or was stopped before "
                f"that, for example by a full disk"
            )
    except BaseException:
        connection.close()
        raise
    return connection


def _check_kind(connection: Connection) -> None:
    path = connection.path
    log = Path(f"{path}-wal")
    if path.exists() and not path.stat().st_size and log.exists() and log.stat().st_size:
        raise RunDatabaseError(  # before SQLite would delete the log
            f"the run database {path} is empty or was deleted, but its log {log} is there: put {path} back; or delete "
            f"the log, too, to start from the beginning"
        )
    [(application,)] = connection.rows("PRAGMA application_id")
    [(version,)] = connection.rows("PRAGMA user_version")
    [(tables,)] = connection.rows("SELECT count(*) FROM sqlite_master")
    if application != APPLICATION_ID and (tables or application):
        raise RunDatabaseError(f"{path} is a SQLite file, but no run database of mwpy: give another file")
    if version > len(UPGRADES):
        raise RunDatabaseError(
            f"the run database {path} is of version {version}, and this mwpy knows versions up to {len(UPGRADES)}: "
            f"install a newer mwpy"
        )
