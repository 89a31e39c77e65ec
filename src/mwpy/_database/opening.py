"""Opens run databases for writing and for reading, and refuses a file that is damaged or of another program.

One master at a time writes a run database. The operating system locks the file .FILE.lock for it, and releases the lock
when the master ends, in whatever way. Between hosts this needs a file system whose server knows the locks.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mwpy._database.schema import APPLICATION_ID, SCHEMA, VERSION
from mwpy._system import clock
from mwpy._system.locks import ENDS_S, FileLock, LockHeld, LocksUnsupported, is_network, kind_of_file_system
from mwpy._values.errors import RunDatabaseError

WAIT_S = 10.0
"""How long a connection waits for a lock of SQLite, in seconds. Only a person's tools have such locks for longer."""


class Connection:
    """A connection to a run database. Threads may share it: each call has it for itself.

    All errors of SQLite are a `RunDatabaseError` with the file, the reason and the remedy.

    Args:
        mode: `ro`, or `rwc` for a file that may be missing.
    """

    def __init__(self, path: Path, mode: str) -> None:
        self.path = path
        self._lock = threading.RLock()
        where = f"file:{quote(str(path.absolute()))}?mode={mode}"
        with self._explained():
            self._connection = sqlite3.connect(
                where, uri=True, timeout=WAIT_S, isolation_level=None, check_same_thread=False
            )
        self._connection.row_factory = sqlite3.Row
        self._connection.text_factory = lambda text: text.decode(errors="replace")

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Return all rows of a query: tuples that `dict` makes into dicts with the names of the columns."""
        with self._lock, self._explained():
            return self._connection.execute(statement, parameters).fetchall()

    def each_row(self, statement: str, parameters: Sequence[Any] = ()) -> Iterator[Any]:
        """Yield the rows of a query. Meanwhile, the write-ahead log cannot shrink."""
        with self._explained():
            # `yield from` would close the cursor, perhaps after the connection
            for row in self._connection.execute(statement, parameters):  # noqa: UP028
                yield row

    def run(self, statement: str, parameters: Sequence[Any] = ()) -> None:
        """Run a statement."""
        with self._lock, self._explained():
            self._connection.execute(statement, parameters)

    def add_functions(self, **functions: Callable[..., Any]) -> None:
        """Let statements call functions of Python, by their names."""
        for name, function in functions.items():
            self._connection.create_function(name, -1, function)

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

    def make_tables(self) -> None:
        """Make the tables of a new run database."""
        with self.transaction():
            for statement in SCHEMA.split(";\n"):
                self.run(statement)
            self.run(f"PRAGMA application_id = {APPLICATION_ID}")
            self.run(f"PRAGMA user_version = {VERSION}")

    def close(self) -> None:
        """Close it. A second call does nothing."""
        with self._lock, self._explained():
            self._connection.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the second is about damaged names of tables
            raise _explained_error(self.path, error) from error


_CANNOT_OPEN = (
    "cannot open the run database {path} ({error}): run this as the user who owns it, make the file and its folder "
    "readable and writable, or give another file"
)
_REASONS = {
    "NOTADB": "{path} is no run database of mwpy, nor any SQLite file: give another file. If it was a run database, "
    "its beginning was overwritten, or it was encrypted. To save what can be read: sqlite3 {quoted} .recover | "
    "sqlite3 NEW_FILE",
    "FULL": "the run database {path} cannot be written, because the disk is full: free some space, and start again",
    "BUSY": "the run database {path} is locked by another process. On a network file system only the master can open "
    "it while it runs: wait for its end",
    "IOERR": "the run database {path} cannot be read or written ({name}): the disk has failed or is full",
    **dict.fromkeys(("READONLY", "PERM", "CANTOPEN", "AUTH"), _CANNOT_OPEN),
}
"""What a user is shown for an error of SQLite, by its name."""


def _explained_error(path: Path, error: Exception) -> RunDatabaseError:
    name = getattr(error, "sqlite_errorname", "SQLITE_ERROR")
    kind = name.removeprefix("SQLITE_").partition("_")[0]
    if kind == "CORRUPT" or not isinstance(error, sqlite3.Error):
        return RunDatabaseError(_damage(path, error))
    text = _REASONS.get(kind, "the run database {path} cannot be used: {error}")
    return RunDatabaseError(text.format(path=path, error=error, name=name, quoted=shlex.quote(str(path))))


def _damage(path: Path, error: Exception) -> str:
    """Say that a file is damaged, and give the commands that save what can be read of it.

    `.dump` reads each table from both ends up to the damage. It leaves out the numbers that mark a run database, and
    ends with a ROLLBACK. The shells of some systems have no `.recover`.
    """
    with path.open("rb") as file:
        version = int.from_bytes(file.read(64)[60:], "big") or VERSION
    saved = path.with_name(f"{path.stem}-saved{path.suffix}")
    old, new = shlex.quote(str(path)), shlex.quote(str(saved))
    commands = (
        f"(echo 'PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {version};'; sqlite3 {old} .dump) | "
        f"sed 's/^ROLLBACK.*/COMMIT;/' | sqlite3 {new}"
    )
    if Path(f"{path}.values").exists():
        commands += f"; mv {shlex.quote(f'{path}.values')} {shlex.quote(f'{saved}.values')}"
    return (
        f"the run database {path} is damaged ({error}). It is kept, and not used. To save what can be read: "
        f"{commands}. Then give the file {saved}; or give a new file to start from the beginning"
    )


CHECKPOINT_PAGES = 4096
"""When the write-ahead log has this many pages (16 MiB), they are copied into the file."""

LOG_BYTES = 64 << 20
"""The largest write-ahead log that is left after a copy. It is larger while something reads for a long time."""


def lock(path: Path) -> FileLock:
    """Get the right to write a run database.

    Raises:
        RunDatabaseError: another master has it, the file system has no locks, or it is a folder.
    """
    if path.is_dir():
        raise RunDatabaseError(f"the run database {path} is a folder: give a file, such as {path / 'run.db'}")
    try:
        return FileLock(path.with_name(f".{path.name}.lock"), clock.date(clock.wall()), ENDS_S)
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


def open_for_writing(path: Path, ends: ExitStack, *, full: bool) -> tuple[Connection, str]:
    """Open a run database, or make one, so that no other master writes it.

    Args:
        ends: gets what closes the file and lets another master write it.
        full: whether each commit waits for the disk.

    Returns:
        The connection, and the kind of network file system on which the file is; then nothing else can connect to it.
        The kind is empty if it is on a disk of this machine.

    Raises:
        RunDatabaseError: another master writes the file; or it is damaged, is not a run database, or is of another
            version of mwpy.
    """
    kind = kind_of_file_system(path.parent)
    network = kind if is_network(kind) else ""
    ends.callback(lock(path).release)
    with suppress(OSError):  # SQLite says why; it gives its logs the mode of the file
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    connection = Connection(path, "rwc")
    ends.callback(connection.close)
    if network:
        # Before the first use of the log. Then no memory is shared.
        connection.run("PRAGMA locking_mode = EXCLUSIVE")
    version = _check_kind(connection)
    connection.run("PRAGMA journal_mode = WAL")
    connection.run(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
    connection.run(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    connection.run(f"PRAGMA journal_size_limit = {LOG_BYTES}")
    if not version:
        connection.make_tables()
    return connection, network


def open_for_reading(path: Path) -> Connection:
    """Open a run database only to read it.

    Raises:
        RunDatabaseError: it is missing, damaged, not a run database, or of another version.
    """
    if not os.path.exists(path):
        raise RunDatabaseError(f"there is no run database {path}: a master writes one with --mw-run-database {path}")
    connection = Connection(path, "ro")
    try:
        connection.run("PRAGMA query_only = 1")
        if not _check_kind(connection):
            raise RunDatabaseError(
                f"the run database {path} is empty: its master has not written anything, or was stopped before "
                f"that, for example by a full disk"
            )
    except BaseException:
        connection.close()
        raise
    return connection


def _check_kind(connection: Connection) -> int:
    """Return the version of a run database; 0 if it has no tables yet."""
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
    if version not in (0, VERSION):
        raise RunDatabaseError(
            f"the run database {path} is of version {version}, and this mwpy reads version {VERSION}: use the mwpy "
            f"that has written it, or give another file to start from the beginning"
        )
    return int(version)
