"""Writes the run database in a thread of its own.

The I/O thread of the master gives records to `Writer.write` and goes on. The writer's thread takes all that has queued
up, makes one transaction of it, and then calls what was to be called after it. So the cost of a commit is shared by all
records that arrive during the commit before, and a result is in the file before the algorithm gets it.

When a process ends, what it has written stays: the operating system has it. So a killed master loses nothing that was
committed. Only a power failure loses what is not on the disk. So the thread writes the log to the disk once a second.
With `full`, it does so at each commit, and else also at the commit of a task that must not run twice, before this task
leaves the master.

The queue has a bound. If it is full, `write` waits, so the I/O thread reads no more messages until the disk has caught
up. Connections stay alive meanwhile, because libzmq's own threads answer heartbeats.

SQLite appends to the write-ahead log, and copies its pages into the file when the log has `CHECKPOINT_PAGES`. The
writer's thread does this between two commits, so the I/O thread never waits for it, and the log stays small.
"""

from __future__ import annotations

import errno
import os
import platform
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import metadata
from itertools import chain
from math import inf
from pathlib import Path
from queue import Empty, SimpleQueue

from mwpy._database.opening import Connection, open_for_reading, open_for_writing
from mwpy._database.reading import Stored
from mwpy._database.rows import Rows, ValueFiles
from mwpy._database.schema import CHECKED, RARE
from mwpy._system import clock
from mwpy._system.locks import real_path, sync_folder
from mwpy._values import records
from mwpy._values.earlier import Given
from mwpy._values.errors import MwpyError, RunDatabaseError

ROWS_AT_ONCE = 80
"""How many rows a statement inserts. SQLite releases the interpreter lock while it works, and to get it back the thread
may have to wait for another thread, each time. So a commit has few statements. Each row has 12 parameters, and some
builds of SQLite take 999."""

_COLUMNS = (*CHECKED, "checksum", "at", "frames")
_INSERT = f"INSERT INTO records ({', '.join(_COLUMNS)}) VALUES "
_ROW = f"({', '.join('?' * len(_COLUMNS))})"

_CHANGE = (
    f"UPDATE records SET body = json_patch(body, ?1) WHERE {RARE} "
    "AND kind = ?2 AND generation = ?3 AND who IS ?4 AND (?5 IS NULL OR json_extract(body, '$.cause') = ?5)"
)


SYNC_S = 1.0
"""How often the log is written to the disk, in seconds. A power failure loses at most what was committed meanwhile."""

MOST_WAITING_BYTES = 64 << 20
"""How many bytes wait in the queue at most, until the I/O thread waits."""

BATCH_BYTES = 8 << 20
"""How many bytes are written by one transaction, unless one record has more."""

PAUSE_S = 0.001
"""How long the writer waits after a commit if more came than it could commit one by one, in seconds. So more share the
next commit, which costs 100 µs of processor time for itself."""

_NO_ROOM = errno.ENOSPC, errno.EDQUOT

CLOSE_S = 60.0
"""How long the end of the master waits for the disk, in seconds."""


class Writer:
    """The only writer of a run database. `open` makes one.

    Attributes:
        path: the file.
        generation: the number of this life of the master: 1 in a new file.
        network: the kind of network file system on which the file is; empty if it is on a disk of this machine.
        stored: reads what is in the file.
    """

    def __init__(
        self,
        connection: Connection,
        reading: Connection,
        about: dict[str, object],
        network: str,
    ) -> None:
        self.path = connection.path.absolute()
        self.generation, last = _next_generation(connection)
        self._about = about
        self.network = network
        self.on_brought: Callable[[records.ResultsHandedOver, int], object] = lambda *_: None
        """Called in the writer's thread with the row of results that an agent has brought from a former generation,
        when they are in the file."""
        self.on_wait: Callable[[], object] = lambda: None
        """Called once a second while `write` waits for the disk."""
        self._on_failure: Callable[[str], object] | None = None
        self._failure = ""
        """Why nothing can be written any more; empty if it can."""
        self._began: float | None = None
        """When the present commit began; None between two commits."""
        self._connection = connection
        self._ends = ExitStack()
        """Closes the file, and lets another master open it."""
        self._files = ValueFiles(connection.path)
        self.stored = Stored(reading, connection, self._files, self.generation)
        self._rows = Rows(self.generation, last, self._files)
        self._queue: SimpleQueue[Given | None] = SimpleQueue()
        self._given = 0
        """How many bytes were given; only the thread that gives them changes it."""
        self._done = 0
        """How many of these were written; only the writer's thread changes it."""
        self._room = threading.Event()
        self._log = os.open(f"{connection.path}-wal", os.O_RDONLY)
        """The write-ahead log. To close it ends all locks that the process has on it, but SQLite has none there."""
        self._sync_at = inf
        """When the log must be on the disk, on the monotonic clock; infinite if all of it is there."""
        self._thread = threading.Thread(target=self._run, name="mwpy-database", daemon=True)

    @classmethod
    def open(cls, path: str | Path, *, member_id: str, full: bool = False, name: str = "") -> Writer:
        """Open a run database, or make one. `start` and `begin` follow.

        Args:
            path: the file.
            member_id: the name of the computation.
            full: whether the log is written to the disk at each commit, instead of once a second.
            name: the name of this generation, as the resource file has it.

        Raises:
            RunDatabaseError: another master has the file; or it is damaged, no run database, of another version, or
                cannot be written.
        """
        path = real_path(path)
        with ExitStack() as ends:
            connection, network = open_for_writing(path, ends, full=full)
            sync_folder(path.parent.absolute())
            reading = connection if network else open_for_reading(path)
            ends.callback(reading.close)
            writer = cls(connection, reading, _this_process(member_id, name), network)
            writer._ends.push(ends.pop_all())
        return writer

    def start(self) -> None:
        """Start the thread. Without it, the caller calls `commit` and at the end `release`."""
        self._thread.start()

    # ---- for the threads of the master ---------------------------------------------------------------------

    def follow(
        self, on_failure: Callable[[str], object], on_brought: Callable[[records.ResultsHandedOver, int], None]
    ) -> None:
        """Call these functions, in any thread, before anything is written.

        Args:
            on_failure: called once, with a message for the user, when the file cannot be written any more. Then nothing
                is written from there on, and nothing is called that was to be called later.
            on_brought: see the attribute.
        """
        self._on_failure, self.on_brought = on_failure, on_brought
        if self._failure:
            on_failure(self._failure)

    def begin(self) -> None:
        """Begin this generation, after `stored.earlier`: a file that this finds to be damaged stays as it is."""
        self._rows.start(clock.wall(), self._about)
        self._write_rows()

    def write(self, given: Given) -> None:
        """Write records. If too much waits to be written, wait. One thread calls this at a time."""
        if self._failure:
            return
        self._given += given.size
        self._queue.put(given)
        while self._given - self._done > MOST_WAITING_BYTES and not self._failure:
            self._room.clear()
            if self._given - self._done > MOST_WAITING_BYTES and not self._room.wait(1.0):
                self.on_wait()

    def delay_s(self) -> float:
        """For how many seconds the present commit has been going on; 0 between two commits. Any thread may ask."""
        began = self._began
        return 0.0 if began is None else clock.monotonic() - began

    def close(self) -> None:
        """Write what was given, and let another master open the file."""
        self._queue.put(None)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self._fail(RunDatabaseError(f"the disk of the run database {self._connection.path} does not answer"))
            return
        try:
            try:
                if not self._failure and not self._rows.has_ended:
                    self._rows.begin()
                    self._rows.end(clock.wall(), {})
                    self._write_rows()
                os.fdatasync(self._log)
            finally:
                self.release()
        except (RunDatabaseError, OSError) as error:
            self._fail(error)

    def release(self) -> None:
        """Close the file, and let another master open it. What was not written is lost."""
        os.close(self._log)
        with self._ends:
            self.stored.close()

    # ---- the writer's thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (given := self._take()) is not None:
                self._began = clock.monotonic()
                self._sync_at = min(self._sync_at, self._began + SYNC_S)
                if self.commit(given) or self._began >= self._sync_at:
                    os.fdatasync(self._log)
                    self._sync_at = inf
                self._began = None
                self._done += sum(each.size for each in given)
                self._room.set()
                for each in given:
                    if each.then is not None:
                        each.then()
                if len(given) > 1:
                    clock.sleep(PAUSE_S)
        except Exception as error:
            self._fail(error)

    def _take(self) -> list[Given] | None:
        """Wait for the next calls of `write`, and take those that have queued up; None at the end. If none comes, and
        the log must be written to the disk, this takes nothing."""
        until_sync = None if self._sync_at == inf else max(0.0, self._sync_at - clock.monotonic())
        taken, size = list[Given](), 0
        while size < BATCH_BYTES:
            try:
                each = self._queue.get_nowait() if taken else self._queue.get(timeout=until_sync)
            except Empty:
                break
            if each is None and not taken:
                return None
            if each is None:
                self._queue.put(None)
                break
            taken.append(each)
            size += each.size
        return taken

    def _fail(self, error: Exception) -> None:
        if self._failure:
            return
        known = isinstance(error, MwpyError)
        unknown = f"the run database {self._connection.path} cannot be written: {error!r}"
        self._failure, self._began = str(error) if known else unknown, None
        self._room.set()
        if self._on_failure is not None:
            self._on_failure(self._failure)

    def commit(self, given: Sequence[Given]) -> bool:
        """Write what was given. Return whether it must be on the disk before anything follows: a task that must not run
        twice leaves only then."""
        new = self._rows
        new.begin()
        try:
            for each in given:
                new.calls = each.calls
                for record in each.records:
                    new.add(record, each.wall)
            self._files.sync()
        except OSError as error:
            what_to_do = "free some space, and start again" if error.errno in _NO_ROOM else "the disk has failed"
            raise RunDatabaseError(
                f"cannot write a large value to {self._files.folder}: {error.strerror or error}; {what_to_do}"
            ) from error
        self._write_rows()
        for record, row in new.brought:
            self.on_brought(record, row)
        return new.once

    def _write_rows(self) -> None:
        """Write the rows and changes of a commit."""
        new = self._rows
        with self._connection.transaction():
            for start in range(0, len(new.rows), ROWS_AT_ONCE):
                some = new.rows[start : start + ROWS_AT_ONCE]
                self._connection.run(_INSERT + ", ".join([_ROW] * len(some)), [*chain.from_iterable(some)])
            for change in new.changes:
                self._connection.run(_CHANGE, change)


def _next_generation(connection: Connection) -> tuple[int, int]:
    """Return the number of the next generation, and that of the last row."""
    last = connection.rows("SELECT seq, generation FROM records ORDER BY seq DESC LIMIT 1")
    # if the file was damaged, rows of a generation may be left that is not known
    known = [row["generation"] for row in last + connection.rows("SELECT generation FROM generations")]
    return max((number for number in known if isinstance(number, int)), default=0) + 1, last[0]["seq"] if last else 0


def _this_process(member_id: str, name: str) -> dict[str, object]:
    """What the file says of this life of the master."""
    try:
        version = metadata.version("mwpy-cluster")
    except metadata.PackageNotFoundError:  # the sources are on the path, without an installation
        version = ""
    return {
        "name": name,
        "member_id": member_id,
        "host": platform.node(),
        "pid": os.getpid(),
        "command": sys.argv,
        "python": platform.python_version(),
        "mwpy": version,
    }
