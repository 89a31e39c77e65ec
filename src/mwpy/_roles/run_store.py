"""The run database of a master: read at its start, written until its end, its values loaded when they are asked for.

The run database of a master: opened at its start, read for what was answered before, and written until its end.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from mwpy._core.master.core import MasterCore
from mwpy._core.master.restart import GENERATIONS_KEPT, FormerAgents, Reuse
from mwpy._database.opening import open_for_reading
from mwpy._database.rows import ValueFiles
from mwpy._database.store import Writer, read_frames
from mwpy._values import groups
from mwpy._values.bounds import Buffer
from mwpy._values.code import captured_changes, changes
from mwpy._values.errors import ProtocolError, RunDatabaseError
from mwpy._values.messages import Results
from mwpy._values.options import Options
from mwpy._values.phrases import counted, first_of

# Reads the values of former generations from the run database, in the thread that asks for one.
#
# The results of a row are read together, and rows that were used last are kept. So values that are asked for in the
# order in which they were computed cost one reading for each row. Results may outlive their master: after its end, the
# file is opened again.


Frames = Callable[[int], tuple[Results, Sequence[Buffer]]]

KEPT_BYTES = 64 << 20
"""About how many bytes of rows are kept."""

ENTRY_BYTES = 60
"""About how many bytes an entry takes beside its encoding."""


class StoredValues(Struct, eq=False):
    """The values in a run database.

    Args:
        path: the file.
        frames: reads the results of a row, until `close` is called.
    """

    _path: Path
    _frames: Frames | None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _rows: OrderedDict[int, tuple[list[Any], list[Sequence[Buffer]], int]] = field(default_factory=OrderedDict)
    _bytes: int = 0

    def read(self, row: int, place: int) -> tuple[Any, Sequence[Buffer]]:
        """Return the entry of a value and its large buffers. Any thread may call this.

        Args:
            row: the name of the row.
            place: the place of the value in it.

        Raises:
            RunDatabaseError: the file cannot be read.
        """
        with self._lock:
            found = self._rows.get(row)
            if found is None:
                found = self._load(row)
            else:
                self._rows.move_to_end(row)
        values, buffers, _ = found
        return values[place], buffers[place] if buffers else ()

    def _load(self, row: int) -> tuple[list[Any], list[Sequence[Buffer]], int]:
        if self._frames is None:
            connection, files = open_for_reading(self._path), ValueFiles(self._path)
            self._frames = lambda row: read_frames(connection, files, row)
        group, frames = self._frames(row)
        try:
            values, buffers = groups.entries(group, frames)
        except ProtocolError as error:
            raise RunDatabaseError(
                f"the run database {self._path} has results {row} that are damaged: {error}"
            ) from error
        size = sum(map(len, frames)) + ENTRY_BYTES * len(values)
        loaded = self._rows[row] = values, buffers, size
        self._bytes += size
        while self._bytes > KEPT_BYTES and len(self._rows) > 1:
            _, (_, _, dropped) = self._rows.popitem(last=False)
            self._bytes -= dropped
        return loaded

    def close(self) -> None:
        """The master ends: its way to read the file does not work any more."""
        with self._lock:
            self._frames = None


LOST = (
    "parts of the run database are missing or damaged: {parts}. The results in them do not count, so their tasks run "
    "again"
)

ALONE = (
    "the run database {path} is on a network file system ({kind}), so nothing else can open it until this master ends. "
    "On a local disk, mwpy runs and sqlite3 can read it meanwhile"
)


def open_writer(options: Options, path: str, name: str) -> Writer:
    """Open the run database of a computation, and start its threads.

    Args:
        path: the file.
        name: the name of this generation.

    Raises:
        RunDatabaseError: it cannot be used; the message says why.
    """
    writer = Writer.open(path, member_id=options.member_id, full=options.run_database_sync == "full", name=name)
    writer.start()
    return writer


def read_into(core: MasterCore, writer: Writer, options: Options) -> None:
    """Let a core use the results that are in a run database, and begin the next generation.

    Raises:
        RunDatabaseError: the file is damaged.
    """
    values, rerun = StoredValues(writer.path, writer.frames), options.rerun == "failed"
    writer.on_close = values.close
    core.reuse = reuse = Reuse(core.state, values.read, changes, captured_changes, rerun, options.reuse_changed_code)
    for entry in writer.earlier():
        reuse.apply(entry)
    reuse.begin()
    reuse.awaited.former = FormerAgents(writer.agents(GENERATIONS_KEPT))
    writer.begin()
    reuse.names = writer.generations()
    if writer.network:
        core.state.notice(ALONE.format(path=writer.path, kind=writer.network))
    if lost := [*dict.fromkeys(writer.lost)]:
        core.state.notice(LOST.format(parts=first_of(lost, len(lost))))
    reuse.says_misses = options.run_database_notices
    if reuse.answered and options.run_database_notices:
        core.state.notice(
            f"the run database {writer.path} has the results of {counted(reuse.answered, 'task')}. Those of them "
            f"that this run submits again are not computed again"
        )
