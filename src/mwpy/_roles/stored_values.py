"""Reads the values of former generations from the run database, in the thread that asks for one.

The results of a row are read together, and rows that were used last are kept. So values that are asked for in the
order in which they were computed cost one reading for each row. Results may outlive their master: after its end, the
file is opened again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mwpy._database.earlier import read_frames
from mwpy._database.opening import open_for_reading
from mwpy._database.value_files import ValueFiles
from mwpy._values import groups
from mwpy._values.errors import ProtocolError, RunDatabaseError
from mwpy._values.ids import Buffer
from mwpy._values.messages import Results

__all__ = ["StoredValues"]

Frames = Callable[[int], tuple[Results, Sequence[Buffer]]]

KEPT_BYTES = 64 << 20
"""About how many bytes of rows are kept."""

ENTRY_BYTES = 60
"""About how many bytes an entry takes beside its encoding."""


class StoredValues:
    """The values in a run database.

    Args:
        path: the file.
        frames: reads the results of a row, until `close` is called.
    """

    def __init__(self, path: Path, frames: Frames) -> None:
        self._path = path
        self._frames: Frames | None = frames
        self._lock = threading.Lock()
        self._rows: OrderedDict[int, tuple[list[Any], list[Sequence[Buffer]], int]] = OrderedDict()
        self._bytes = 0

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
