"""Adds rows to the tables of the run database.

SQLite releases the interpreter lock while it works. To get it back, the thread may have to wait for another thread,
each time. So a commit has few statements, whatever the number of its rows: SQLite divides a JSON text into rows itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mwpy._database.batch import COLUMNS, StoredGroup
from mwpy._database.connection import Connection
from mwpy._database.schema import CHECKED, row_checksum
from mwpy._values.messagepack import encode_json

__all__ = ["insert", "insert_groups"]

JOINED_BYTES = 16 * 1024
"""Frames of this size and more are given to SQLite alone, because joining them with others would copy them."""


def insert(connection: Connection, table: str, rows: Sequence[Sequence[object]], blob: bytes | bytearray) -> None:
    """Add rows to a table. Some of them have the place of bytes in `blob`."""
    if table in _CHECKED_PLACES:
        rows = [_with_checksum(row, _CHECKED_PLACES[table], blob) for row in rows]
    _insert(connection, table, rows, blob)


def _insert(connection: Connection, table: str, rows: Sequence[Sequence[object]], blob: bytes | bytearray) -> None:
    statement, text = _INSERTS[table], _json(rows)
    connection.run(statement, (text, blob) if "?2" in statement else (text,))


def insert_groups(connection: Connection, groups: Sequence[StoredGroup], files: Mapping[int, str]) -> None:
    """Add groups of results.

    Args:
        files: the files of large values, by the row that names them.
    """
    rows: list[list[object]] = []
    blob = bytearray()
    for group in groups:
        packed = group.packed
        row = _row_of(group, files.get(group.seq))
        if packed.size < JOINED_BYTES:
            start = len(blob)
            blob += packed.head
            middle = len(blob)
            for frame in packed.frames:
                blob += frame
            rows.append([*row, [start, middle - start], [middle, len(blob) - middle]])
        else:
            file = files.get(group.seq)
            frames = None if file is not None else b"".join(packed.frames)
            connection.run(_INSERT_GROUP, (*row, packed.head, file, frames))
    if rows:
        _insert(connection, "results", rows, blob)


def _with_checksum(row: Sequence[Any], places: Sequence[int], blob: bytes | bytearray) -> list[object]:
    """Add the checksum of a row, before the place of its bytes if it has one."""
    values, end = [row[place] for place in places], len(row)
    if isinstance(values[-1], list):
        [start, size] = values[-1]
        values[-1], end = bytes(blob[start : start + size]), end - 1
    return [*row[:end], row_checksum(*values), *row[end:]]


_RESULTS = (
    *("seq", "generation", "at", "sid", "base", "count", "attempt", "attempts", "seconds", "total_s", "failed", "kept"),
    *("checksum", "host", "row_checksum"),
)
"""The columns of a group of results before its bytes."""


def _row_of(group: StoredGroup, file: str | None) -> list[object]:
    columns = group.columns
    tasks = columns.base, columns.count, columns.attempt, columns.attempts, columns.seconds, columns.total_s
    ends = group.failed, 0, group.packed.checksum
    host = None if group.brought is None else group.brought.host  # the file may not know the slave
    checksum = row_checksum(group.seq, group.generation, group.packed.checksum, group.packed.head, file)
    return [group.seq, group.generation, group.at, group.sid, *tasks, *ends, host, checksum]


def _insertion(table: str, columns: Sequence[str], blobs: Sequence[str]) -> str:
    """A statement that adds all rows of a JSON text to a table. A row has the places of its bytes in another value."""
    taken = [f"json_extract(value, '$[{at}]')" for at in range(len(columns))]
    for at in range(len(columns), len(columns) + len(blobs)):
        part = f"substr(?2, json_extract(value, '$[{at}][0]') + 1, json_extract(value, '$[{at}][1]'))"
        taken.append(f"coalesce({part}, x'')")
    names = ", ".join((*columns, *blobs))
    return f"INSERT INTO {table} ({names}) SELECT {', '.join(taken)} FROM json_each(?1)"


def _insertions() -> dict[str, str]:
    found = {"results": _insertion("results", _RESULTS, ("head", "frames"))}
    for table, columns in COLUMNS.items():
        blobs = [name for name in columns if name == "keys"]
        plain = ["seq", "generation", *(name for name in columns if name != "keys")]
        found[table] = _insertion(table, [*plain, "row_checksum"] if table in CHECKED else plain, blobs)
    return found


_CHECKED_PLACES = {
    table: [("seq", "generation", *columns).index(name) for name in CHECKED[table]]
    for table, columns in COLUMNS.items()
    if table in CHECKED
}
"""The places of the columns that a checksum covers, by table."""


_INSERTS = _insertions()

_INSERT_GROUP = (
    f"INSERT INTO results ({', '.join(_RESULTS)}, head, file, frames) VALUES ({', '.join('?' * (len(_RESULTS) + 3))})"
)


def _json(rows: Sequence[Sequence[object]]) -> str:
    try:
        return encode_json(rows).decode()
    except UnicodeEncodeError:  # half a surrogate pair, for example in the name of a file
        return json.dumps(rows)
