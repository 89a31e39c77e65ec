"""Reads what former generations left: their tasks and answers for a restart, and the values of single answers."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterator
from typing import Any

from mwpy._database import value_files
from mwpy._database.batch import USED_UP
from mwpy._database.connection import Connection
from mwpy._database.packing import content_checksum, size_of_frames, unpack, unpack_head
from mwpy._database.schema import CHECKED, row_checksum
from mwpy._database.value_files import ValueFiles
from mwpy._values.earlier import (
    Earlier,
    EarlierAlgorithm,
    EarlierAnswers,
    EarlierSent,
    EarlierTasks,
    EarlierUsedUp,
)
from mwpy._values.errors import RunDatabaseError
from mwpy._values.ids import Buffer, SlaveId
from mwpy._values.messages import Results

__all__ = ["read_earlier", "read_frames"]

PAGE_ROWS = 2000
"""How many rows of a table are read at a time. Between two pages, the write-ahead log can shrink."""

PAGE_ANSWERS = 64
"""The same for results, whose values are read, too. They are smaller than `LARGE_BYTES`."""


def read_earlier(
    connection: Connection, files: ValueFiles, generation: int, on_lost: Callable[[str], None]
) -> Iterator[Earlier]:
    """Yield what the generations before this one submitted and answered, which tasks they sent that must not run twice,
    in the order of their records.

    Rows that fail their checksums are left out, and answers whose large values are missing or damaged. Values in the
    file itself are compared with their checksums, so that damage is found before an answer is used: as with large
    values, the newest `CHECKED_BYTES`.

    Args:
        on_lost: called with the name of each row, and of the file of each large value, that is missing or damaged.

    Raises:
        RunDatabaseError: the file is damaged.
    """
    hosts = _hosts(connection)
    usable = files.usable()

    def answers(row: tuple[Any, ...]) -> Earlier | None:
        seq, generation, checksum, head, file, at, sid, host, frames = row
        if file is not None and usable.get(file) != size_of_frames(head):
            if file in usable:
                files.set_aside(file)
                del usable[file]
            on_lost(str(files.folder / file))
            return None
        if file is None and frames is not None and content_checksum(head, frames) != checksum:
            on_lost(_named("results", seq))
            return None
        host = host or hosts.get((generation, sid), "")
        wall = at if isinstance(at, float) else 0.0  # it is only shown, and has no checksum
        return EarlierAnswers(generation, seq, SlaveId(str(sid)), str(host), wall, unpack_head(head))

    tables: dict[str, Callable[[tuple[Any, ...]], Earlier | None]] = {
        "algorithms": _algorithm,
        "submissions": _tasks,
        "reused": _reused,
        "once": _sent,
    }
    reason = f", CASE may_have_run WHEN {USED_UP} THEN (SELECT reason FROM ends WHERE ends.seq = once.seq - 1) END"
    streams = [
        _entries(connection, table, generation, on_lost, entry_of, reason if table == "once" else "")
        for table, entry_of in tables.items()
    ]
    frames = f"CASE WHEN seq >= {_first_checked(connection)} THEN CAST(coalesce(frames, x'') AS BLOB) END"
    streams.append(
        _entries(
            connection,
            "results",
            generation,
            on_lost,
            answers,
            f", at, sid, host, {frames}",
            " AND NOT kept",
            PAGE_ANSWERS,
        )
    )
    known: set[tuple[int, int]] = set()
    for _, entry in heapq.merge(*streams, key=_seq):
        if isinstance(entry, EarlierAlgorithm):
            known.add((entry.generation, entry.number))
        elif isinstance(entry, EarlierTasks) and (entry.generation, entry.algorithm) not in known:
            continue  # the row of its algorithm is damaged
        yield entry


def _seq(numbered: tuple[int, Earlier]) -> int:
    return numbered[0]


def _entries(
    connection: Connection,
    table: str,
    generation: int,
    on_lost: Callable[[str], None],
    entry_of: Callable[[tuple[Any, ...]], Earlier | None],
    more: str = "",
    condition: str = "",
    page_rows: int = PAGE_ROWS,
) -> Iterator[tuple[int, Earlier]]:
    """Yield the entry of each row of a table, with its number.

    Args:
        more: other columns than those with a checksum.
        condition: which rows are meant.
    """
    last, checked = 0, CHECKED[table]
    page = (
        f"SELECT row_checksum, {', '.join(checked)}{more} FROM {table} "
        f"WHERE seq > ? AND generation < ?{condition} ORDER BY seq LIMIT {page_rows}"
    )
    while rows := connection.rows(page, (last, generation)):
        for checksum, *row in rows:
            if row_checksum(*row[: len(checked)]) != checksum:
                on_lost(_named(table, row[0]))
            elif (entry := entry_of(tuple(row))) is not None:
                yield row[0], entry
        last = rows[-1][1]


def _named(table: str, seq: int) -> str:
    return f"row {seq} of the table {table}"


def _first_checked(connection: Connection) -> int:
    """The first row with results whose values are compared with their checksums."""
    left = value_files.CHECKED_BYTES
    if connection.path.stat().st_size > left:
        for row, size in connection.each_row("SELECT seq, length(frames) FROM results ORDER BY seq DESC"):
            left -= size or 0
            if left < 0:
                return int(row) + 1
    return 0


def _algorithm(row: tuple[Any, ...]) -> Earlier:
    _, generation, number, name, code, parts = row
    return EarlierAlgorithm(generation, number, name, code, json.loads(parts))


def _tasks(row: tuple[Any, ...]) -> Earlier:
    return EarlierTasks(*row[1:])


def _reused(row: tuple[Any, ...]) -> Earlier:
    _, generation, first, count, algorithm, keys = row
    return EarlierTasks(generation, first, count, algorithm, keys, reused=True)


def _sent(row: tuple[Any, ...]) -> Earlier:
    _, generation, first, count, may_have_run, reason = row
    if may_have_run == USED_UP:
        return EarlierUsedUp(generation, first, count, str(reason or ""))
    return EarlierSent(generation, first, count, bool(may_have_run))


def _hosts(connection: Connection) -> dict[tuple[int, str], str]:
    """The host of each slave, by generation and slave id."""
    query = "SELECT s.generation, s.sid, a.host FROM slaves s JOIN agents a USING (generation, agent)"
    return {(generation, sid): host for generation, sid, host in connection.rows(query)}


def read_frames(connection: Connection, files: ValueFiles, row: int) -> tuple[Results, list[Buffer]]:
    """Return the results of a row, and their frames. Any thread may call this.

    Raises:
        RunDatabaseError: the row, or its large value, is missing or damaged.
    """
    found = connection.rows("SELECT checksum, head, file, frames FROM results WHERE seq = ?", (row,))
    if not found:
        raise RunDatabaseError(f"the run database {connection.path} has no results {row}: was it pruned meanwhile?")
    [(checksum, head, file, frames)] = found
    return unpack(head, frames if file is None else files.read(file), checksum)
