"""Connections to the SQLite file: the only module that imports sqlite3.

The first page of the file says where each table begins. Without it, SQLite reads nothing. But the statements of
`schema.py` always give the same pages to the tables of a new file, and so does `VACUUM`. So a file is recognised by
what is on these pages, and a damaged first page is replaced by one that names them.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
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

HEADER_BYTES = 100
"""The size of what precedes the content of the first page."""

BEGINS = {"table": (b"\x05", b"\x0d"), "index": (b"\x02", b"\x0a")}
"""With which byte the first page of a table or of an index begins."""


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

    Its tables show that, even if the first page is lost. The name of mwpy comes into the first page with the first copy
    of the log. Before, the file has one page, and this names no table; after a power loss, parts of it may be zeros or
    missing.
    """
    with path.open("rb") as file:
        begins = file.read(PAGE_BYTES)
    name, tables = begins[68:72], begins[103:105]
    ours = APPLICATION_ID.to_bytes(4, "big")
    if name == ours or _layout_of(path) is not None:
        return True
    is_new = not any(tables) and (not any(name) or ours.startswith(name))
    return is_new and not _is_foreign(path) and path.stat().st_size <= PAGE_BYTES


def open_damaged(path: Path) -> Connection:
    """Open a copy of a damaged run database, to read what is left. The copy may change."""
    with path.open("rb") as file:
        begins = file.read(HEADER_BYTES)
    is_known = begins.startswith(MAGIC) and begins[68:72] == APPLICATION_ID.to_bytes(4, "big")
    pages = int.from_bytes(begins[28:32], "big") if is_known else 1
    os.truncate(path, max(path.stat().st_size, pages * PAGE_BYTES))  # SQLite refuses a file that is too short
    layout = None if _names_tables(path) else _layout_of(path)
    if layout is not None:
        _replace_first_page(path, layout)
    return _connected(path, "rw")


def _names_tables(path: Path) -> bool:
    """Whether the first page, or a newer one in the log, says where the tables begin."""
    connection = _connected(path, "rw")
    try:
        for name in _tables():
            connection.rows(f"SELECT * FROM {name} LIMIT 0")
    except RunDatabaseError:
        return False
    finally:
        connection.close()
    return True


class _Beginning(NamedTuple):
    """Where a table or an index begins."""

    kind: str
    name: str
    page: int


@cache
def _layouts() -> list[list[_Beginning]]:
    """Where the tables and indexes begin: those of a new run database, and those of one that was pruned."""
    made = _in_memory()
    _upgrade(made)
    found = []
    for _ in range(2):
        rows = made.rows("SELECT type, name, rootpage FROM sqlite_master WHERE rootpage > 0")
        found.append([_Beginning(*row) for row in rows])
        made.run("VACUUM")
    made.close()
    return found


@cache
def _tables() -> dict[str, str]:
    """How each table is made, without indexes and constraints."""
    made, tables = _in_memory(), dict[str, str]()
    _upgrade(made)
    for kind, name, _ in _layouts()[0]:
        if kind == "table":
            columns = made.rows("SELECT name, pk FROM pragma_table_info(?)", (name,))
            named = ", ".join(f"{column} INTEGER PRIMARY KEY" if key else column for column, key in columns)
            tables[name] = f"CREATE TABLE {name} ({named})"
    made.close()
    return tables


def _in_memory() -> Connection:
    connection = Connection(Path(":memory:"), sqlite3.connect(":memory:", isolation_level=None))
    connection.run(f"PRAGMA page_size = {PAGE_BYTES}")
    return connection


def _layout_of(path: Path) -> list[_Beginning] | None:
    """Where the tables of a file begin, if it has tables and indexes exactly where a run database has them."""
    with path.open("rb") as file:
        for layout in _layouts():
            if all(_begins(file, beginning) for beginning in layout):
                return layout
    return None


def _begins(file: BinaryIO, beginning: _Beginning) -> bool:
    file.seek((beginning.page - 1) * PAGE_BYTES)
    return file.read(1) in BEGINS[beginning.kind]


def _replace_first_page(path: Path, layout: Sequence[_Beginning]) -> None:
    """Let the first page of a file name the tables of a run database, so that their rows can be read."""
    empty = sqlite3.connect(":memory:", isolation_level=None)
    empty.executescript(f"PRAGMA page_size = {PAGE_BYTES}; CREATE TABLE t (c); DROP TABLE t")
    first = bytearray(empty.serialize()[:PAGE_BYTES])
    empty.close()
    first[28:32] = (path.stat().st_size // PAGE_BYTES).to_bytes(4, "big")
    first[32:40] = bytes(8)  # no pages are free
    with path.open("r+b") as file:
        file.write(first)
    connection = _connected(path, "rw")
    try:
        connection.run("PRAGMA writable_schema = ON")
        tables = _tables()
        for kind, name, page in layout:
            if kind == "table":
                made = "INSERT INTO sqlite_master (type, name, tbl_name, rootpage, sql) VALUES (?, ?, ?, ?, ?)"
                connection.run(made, (kind, name, name, page, tables[name]))
    finally:
        connection.close()


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
        if connection.rows("PRAGMA user_version") == [(0,)]:
            raise RunDatabaseError(
                f"the run database {path} is empty: its master has not written anything, or was stopped before "
                f"that, for example by a full disk"
            )
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
        if _layout_of(path) is not None:
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
