"""Connections to the SQLite file: the only module that imports sqlite3."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mwpy._database.schema import APPLICATION_ID, UPGRADES
from mwpy._values.errors import RunDatabaseError

__all__ = [
    "Connection",
    "Damaged",
    "is_run_database",
    "open_damaged",
    "open_for_reading",
    "open_for_writing",
]

PAGE_BYTES = 4096
"""The size of a page of the file. The first page has the number of all pages."""

WAIT_S = 10.0
"""How long a connection waits for a lock of SQLite, in seconds. Only a person's tools have such locks for longer."""

CHECKPOINT_PAGES = 4096
"""When the write-ahead log has this many pages (16 MiB), they are copied into the file."""

LOG_BYTES = 64 << 20
"""The largest write-ahead log that is left after a copy. It is larger while something reads for a long time."""


MAGIC = b"SQLite format 3\0"
"""How each SQLite file begins."""


class Damaged(RunDatabaseError):
    """Pages of the file are missing or have wrong content."""


class Connection:
    """A connection to a run database. Threads may share it: each call has it for itself.

    All errors of SQLite are a `RunDatabaseError` with the file, the reason and the remedy.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._lock = threading.RLock()

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""
        with self._lock, self._explained():
            return self._connection.execute(statement, parameters).fetchall()

    def named_rows(self, statement: str, parameters: Sequence[Any] = ()) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Return the names of the columns of a query, and all rows."""
        with self._lock, self._explained():
            cursor = self._connection.execute(statement, parameters)
            return [column[0] for column in cursor.description or ()], cursor.fetchall()

    def each_row(self, statement: str, parameters: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query. Meanwhile, the write-ahead log cannot shrink."""
        with self._explained():
            yield from self._connection.execute(statement, parameters)

    def run(self, statement: str, parameters: Sequence[Any] = ()) -> None:
        """Run a statement."""
        with self._lock, self._explained():
            self._connection.execute(statement, parameters)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Do all statements in it, or none. Other threads wait meanwhile."""
        with self._lock, self._explained():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # a full disk may have ended it
                    self._connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close it. A second call does nothing."""
        with self._lock, self._explained():
            self._connection.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _explained_error(self.path, error) from error


def open_for_writing(path: Path, *, exclusive: bool, full: bool) -> Connection:
    """Open a run database, or make one, and upgrade it. The caller has made sure that nobody else writes it.

    Args:
        exclusive: whether this connection is the only one, because the file system cannot have several.
        full: whether each commit waits for the disk.

    Raises:
        RunDatabaseError: the file is damaged, is not a run database, or is of a newer mwpy.
    """
    connection = _connected(path, "rwc")
    try:
        if exclusive:
            connection.run(
                "PRAGMA locking_mode = EXCLUSIVE"
            )  # before the first use of the log: then no memory is shared
        _check_kind(connection)
        connection.run(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.run("PRAGMA journal_mode = WAL")
        connection.run(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
        connection.run(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.run(f"PRAGMA journal_size_limit = {LOG_BYTES}")
        _upgrade(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def is_run_database(path: Path) -> bool:
    """Whether a damaged file is a run database, and no file of another program. No connection may be open.

    The name of mwpy comes into the first page with the first copy of the log. Before, the file has one page, and this
    names no table; after a power loss, parts of it may be zeros or missing.
    """
    with path.open("rb") as file:
        begins = file.read(PAGE_BYTES)
    name, tables = begins[68:72], begins[103:105]
    ours = APPLICATION_ID.to_bytes(4, "big")
    if name == ours:
        return True
    is_new = not any(tables) and (not any(name) or ours.startswith(name))
    return is_new and not _is_foreign(path) and path.stat().st_size <= PAGE_BYTES


def open_damaged(path: Path) -> Connection:
    """Open a copy of a damaged run database, to read what is left. The copy may change."""
    with path.open("rb") as file:
        pages = int.from_bytes(file.read(32)[28:32], "big")
    size = max(path.stat().st_size, pages * PAGE_BYTES, PAGE_BYTES)  # SQLite refuses a file that is too short
    os.truncate(path, size)
    return _connected(path, "rw")


def open_for_reading(path: Path) -> Connection:
    """Open a run database only to read it.

    Raises:
        RunDatabaseError: it is missing, damaged, not a run database, or of a newer mwpy.
    """
    if not path.exists():
        raise RunDatabaseError(f"there is no run database {path}: a master writes one with --mw-run-database {path}")
    connection = _connected(path, "ro")
    try:
        connection.run("PRAGMA query_only = 1")
        _check_kind(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _connected(path: Path, mode: str) -> Connection:
    where = f"file:{quote(str(path.absolute()))}?mode={mode}"
    try:
        opened = sqlite3.connect(where, uri=True, timeout=WAIT_S, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise _explained_error(path, error) from error
    opened.text_factory = lambda text: text.decode(errors="replace")
    return Connection(path, opened)


def _check_kind(connection: Connection) -> None:
    path = connection.path
    if _is_foreign(path):
        raise RunDatabaseError(f"{path} is no run database of mwpy, nor any SQLite file: give another file")
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


def _upgrade(connection: Connection) -> None:
    [(version,)] = connection.rows("PRAGMA user_version")
    if version == len(UPGRADES):
        return
    with connection.transaction():
        for statements in UPGRADES[version:]:
            for statement in statements.split(";\n"):
                if statement.strip():
                    connection.run(statement)
        connection.run(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.run(f"PRAGMA user_version = {len(UPGRADES)}")


def _explained_error(path: Path, error: sqlite3.Error) -> RunDatabaseError:
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return Damaged(
            f"the run database {path} is damaged ({error}). A master that opens it saves what can be read; or move it "
            f"away to start from the beginning"
        )
    return RunDatabaseError(_explanation(path, error, name))


def _explanation(path: Path, error: sqlite3.Error, name: str) -> str:
    match name.split("_")[1:2]:
        case ["FULL"]:
            return (
                f"the run database {path} cannot be written, because the disk is full: free some space, and start again"
            )
        case ["BUSY"]:
            return (
                f"the run database {path} is locked by another process. On a network file system only the master can "
                f"open it while it runs: wait for its end"
            )
        case ["READONLY" | "PERM" | "CANTOPEN" | "AUTH"]:
            return (
                f"cannot open the run database {path} ({error}): make the file and its folder writable, or give "
                f"another file"
            )
        case ["IOERR"]:
            return f"the run database {path} cannot be read or written ({name}): the disk has failed or is full"
    return f"the run database {path} cannot be used: {error}"
