"""Opens run databases for writing, for reading, and to save what a damaged one has."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from mwpy._database import first_page
from mwpy._database.connection import Connection, Damaged, connected
from mwpy._database.first_page import PAGE_BYTES
from mwpy._database.schema import APPLICATION_ID, UPGRADES
from mwpy._values.errors import RunDatabaseError

__all__ = ["is_run_database", "open_damaged", "open_for_reading", "open_for_writing"]

CHECKPOINT_PAGES = 4096
"""When the write-ahead log has this many pages (16 MiB), they are copied into the file."""

LOG_BYTES = 64 << 20
"""The largest write-ahead log that is left after a copy. It is larger while something reads for a long time."""


MAGIC = b"SQLite format 3\0"
"""How each SQLite file begins."""


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
        connection.run(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.run("PRAGMA journal_mode = WAL")
        connection.run(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
        connection.run(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.run(f"PRAGMA journal_size_limit = {LOG_BYTES}")
        connection.upgrade()
    except BaseException:
        connection.close()
        raise
    return connection


def is_run_database(path: Path) -> bool:
    """Whether a damaged file is a run database, and no file of another program. No connection may be open.

    Its tables show that, even if the first page is lost. The name of mwpy comes into the first page with the first copy
    of the log. Before, the file has one page, and this names no table; after a power loss, parts of it may be zeros or
    missing.
    """
    with path.open("rb") as file:
        begins = file.read(PAGE_BYTES)
    name, tables = begins[68:72], begins[103:105]
    ours = APPLICATION_ID.to_bytes(4, "big")
    if name == ours or first_page.layout_of(path) is not None:
        return True
    is_new = not any(tables) and (not any(name) or ours.startswith(name))
    return is_new and not _is_foreign(path) and path.stat().st_size <= PAGE_BYTES


def open_damaged(path: Path) -> Connection:
    """Open a copy of a damaged run database, to read what is left. The copy may change."""
    with path.open("rb") as file:
        begins = file.read(PAGE_BYTES)
    is_known = begins.startswith(MAGIC) and begins[68:72] == APPLICATION_ID.to_bytes(4, "big")
    pages = int.from_bytes(begins[28:32], "big") if is_known else 1
    os.truncate(path, max(path.stat().st_size, pages * PAGE_BYTES))  # SQLite refuses a file that is too short
    layout = None if _names_tables(path) else first_page.layout_of(path)
    if layout is not None:
        first_page.replace(path, layout)
    return connected(path, "rw")


def _names_tables(path: Path) -> bool:
    """Whether the first page, or a newer one in the log, says where the tables begin."""
    connection = connected(path, "rw")
    try:
        for name in first_page.tables():
            connection.rows(f"SELECT * FROM {name} LIMIT 0")
    except RunDatabaseError:
        return False
    finally:
        connection.close()
    return True


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
    if _is_foreign(path):
        if first_page.layout_of(path) is not None:
            raise Damaged(
                f"the run database {path} is damaged: its first page was overwritten. A master that opens it saves "
                f"what can be read"
            )
        raise RunDatabaseError(
            f"{path} is no run database of mwpy, nor any SQLite file: give another file. If it was a run database, its "
            f"beginning was overwritten, and nothing of it can be read: take a copy of it that you have, or move it "
            f"away to start from the beginning"
        )
    size, log = path.stat().st_size if path.exists() else 0, Path(f"{path}-wal")
    if 0 < size < PAGE_BYTES or (not size and log.exists() and log.stat().st_size):
        raise Damaged(
            f"the run database {path} is damaged: its first page is missing. A master that opens it begins a new one"
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


def _is_foreign(path: Path) -> bool:
    """Whether a file begins as no SQLite file does. After a loss of power, it may begin with zeros, or be empty."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        begins = file.read(len(MAGIC))
    return begins.rstrip(b"\0") != b"" and not MAGIC.startswith(begins)
