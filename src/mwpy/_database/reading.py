"""Reads what former generations left: their tasks and answers for a restart, and the values of single answers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import Any

from msgspec import Struct

from mwpy._database import rows
from mwpy._database.opening import Connection, open_for_reading
from mwpy._database.rows import ValueFiles, frames_checksum, read_results
from mwpy._database.schema import CHECKED, RARE, RESTART_KINDS, row_checksum
from mwpy._values import groups
from mwpy._values.bounds import Buffer, SlaveId
from mwpy._values.earlier import (
    Earlier,
    EarlierAlgorithm,
    EarlierAnswers,
    EarlierSent,
    EarlierTasks,
    FormerAgent,
)
from mwpy._values.errors import RunDatabaseError
from mwpy._values.messagepack import Encoded, json_decoder
from mwpy._values.messages import Results

KEPT_BYTES = 64 << 20
"""About how many bytes of rows are kept after they were read."""

ENTRY_BYTES = 60
"""About how many bytes an entry takes beside its encoding."""


DAMAGED = "a value of the run database is damaged: {}. Start again, and its tasks run again"

STATES = "finished", "failed", "unrunnable", "cancelled", "not ended"
"""The states of tasks, as the view of the tasks has them."""


OTHERS = "another value of {} in the slaves"
"""The part of the code that the slaves had instead of the master's values."""


class Damaged(RunDatabaseError):
    """A result is not what was written."""


class _Body(Struct):
    """What a restart reads of the body of a row. Each kind of rows has some of these."""

    name: str = ""
    code: str = ""
    parts: dict[str, str] = {}
    algorithm: int = 0
    answers: Encoded = Encoded()
    may_have_run: int = 0
    reason: str = ""
    host: str = ""
    names: str = ""
    file: str = ""


_read_body = json_decoder(_Body)


def _read_earlier(
    connection: Connection, files: ValueFiles, generation: int, on_lost: Callable[[str], None]
) -> Iterator[Earlier]:
    """Yield what the generations before this one submitted and answered, which tasks they sent that must not run twice,
    in the order of their records.

    Rows that cannot be read or fail their checksums are left out, and answers whose large values are missing or
    damaged. Values in the file itself are compared with their checksums, so that damage is found before an answer is
    used: as with large values, the newest `CHECKED_BYTES`.

    Args:
        on_lost: called with the name of each row, and of the file of each large value, that is missing or damaged.

    Raises:
        RunDatabaseError: the file is damaged.
    """
    for seq, kind in connection.rows(f"SELECT seq, kind FROM records WHERE {RARE} AND NOT json_valid(body)"):
        if kind not in RESTART_KINDS:  # these have checksums
            on_lost(f"row {seq} of {kind}")
    found = connection.rows("SELECT generation, sid, host FROM hosts WHERE host IS NOT NULL")
    hosts = {(generation, sid): str(host) for generation, sid, host in found}
    found = connection.rows(f"SELECT generation, first, body FROM records WHERE {RARE} AND kind = 'others'")
    others = {(generation, number): _read_body(body) for generation, number, body in found}
    sizes = files.sizes()
    first_checked = _first_checked(connection, sizes)
    known: set[tuple[int, int]] = set()
    query = (
        f"SELECT {', '.join(CHECKED)}, checksum, at, "
        f"CASE WHEN seq >= {first_checked} THEN CAST(coalesce(frames, x'') AS BLOB) END "
        f"FROM records WHERE (+kind IN {RESTART_KINDS} OR checksum IS NOT NULL) AND +generation < ? ORDER BY seq"
    )
    for *checked, checksum, at, content in connection.each_row(query, (generation,)):
        seq, own, kind, who, first, count, _, text, data = checked
        if row_checksum(checked) != checksum:
            on_lost(f"row {seq} of {kind}")
            continue
        body = _read_body(text)
        if kind == "algorithms":
            known.add((own, first))
            code, parts = body.code, body.parts
            if (other := others.get((own, first))) is not None:
                code, parts = other.code, {**parts, OTHERS.format(other.names): ""}
            yield EarlierAlgorithm(own, first, body.name, code, parts)
        elif kind == "submissions":
            if (own, body.algorithm) in known:  # otherwise the row of its algorithm is damaged
                yield EarlierTasks(own, first, count, body.algorithm, data or b"", reused=bool(bytes(body.answers)))
        elif kind == "once":
            yield EarlierSent(own, first, count, body.reason if body.may_have_run else None)
        else:
            results = read_results(data)
            if not body.file:
                is_right = content is None or frames_checksum([content]) == results.checksum
            elif sizes.get(body.file) != sum(results.sizes):
                is_right = False
            else:
                is_right = content is None or files.is_right(body.file, results.checksum)
            if not is_right:
                on_lost(str(files.folder / body.file) if body.file else f"row {seq} of {kind}")
                continue
            wall = at if isinstance(at, float) else 0.0  # it is only shown, and has no checksum
            yield EarlierAnswers(own, seq, SlaveId(who), body.host or hosts.get((own, who), ""), wall, results)


def _first_checked(connection: Connection, sizes: Mapping[str, int]) -> int:
    """The first row with results whose values are compared with their checksums.

    Args:
        sizes: those of the files with large values.
    """
    left = rows.CHECKED_BYTES
    if connection.path.stat().st_size + sum(sizes.values()) > left:
        for row, size, file in connection.each_row("SELECT seq, length(frames), file FROM results ORDER BY seq DESC"):
            left -= size or sizes.get(file, 0)
            if left < 0:
                return int(row) + 1
    return 0


def _read_frames(connection: Connection, files: ValueFiles, row: int) -> tuple[Results, list[Buffer]]:
    """Return the results of a row, and their frames.

    Raises:
        RunDatabaseError: the row, or its large value, is missing or damaged.
    """
    found = connection.rows(f"SELECT {', '.join(CHECKED)}, checksum, frames FROM records WHERE seq = ?", (row,))
    if not found:
        raise RunDatabaseError(f"the run database {connection.path} has no results {row}: was it pruned meanwhile?")
    [(*checked, checksum, content)] = found
    if row_checksum(checked) != checksum:
        raise Damaged(DAMAGED.format(f"row {row}"))
    results = read_results(checked[-1])
    if file := _read_body(checked[-2]).file:
        content = files.read(file)
    view = memoryview(content or b"")
    if frames_checksum([view]) != results.checksum or sum(results.sizes) != len(view):
        raise Damaged(DAMAGED.format(files.folder / file if file else f"row {row}"))
    return results, [view[start:end] for start, end in pairwise(accumulate(results.sizes, initial=0))]


def states_of(connection: Connection, table: str, generation: int) -> dict[str, int]:
    """Return how many tasks of a generation were submitted, how many of these were answered from former generations,
    and how many are in each state.

    Args:
        table: the view of the tasks, or a table with them.
    """
    found = dict(connection.rows(f"SELECT state, count(*) FROM {table} WHERE generation = ? GROUP BY 1", (generation,)))
    query = "SELECT coalesce(sum(count), 0) FROM submissions WHERE answers IS NOT NULL AND generation = ?"
    [(reused,)] = connection.rows(query, (generation,))
    states = {state: found.get(state, 0) for state in STATES}
    return {"submitted": sum(found.values()), "reused": reused, **states}


class Stored:
    """What is in a run database. Any thread may ask for values.

    The results of a row are read together, and rows that were used last are kept. So values that are asked for in the
    order in which they were computed cost one reading for each row.

    Args:
        connection: used until `close`. Results may outlive their master: after that, the file is opened again.
        writing: the connection that changes the file.
        generation: the number of this life of the master.

    Attributes:
        lost: the rows, and the files of large values, that `earlier` has found to be missing or damaged.
    """

    def __init__(self, connection: Connection, writing: Connection, files: ValueFiles, generation: int) -> None:
        self._connection: Connection | None = connection
        self._writing = writing
        self._files = files
        self._generation = generation
        self.lost: list[str] = []
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, tuple[list[Any], list[Sequence[Buffer]], int]] = OrderedDict()
        self._kept_bytes = 0

    def earlier(self) -> Iterator[Earlier]:
        """Yield what former generations submitted and answered, in the order of their records.

        Raises:
            RunDatabaseError: the file is damaged.
        """
        return _read_earlier(self._open(), self._files, self._generation, self.lost.append)

    def generations(self) -> dict[str, int]:
        """The numbers of all generations, by their names."""
        return dict(self._open().rows("SELECT name, generation FROM generations ORDER BY generation"))

    def agents(self, generations: int) -> list[FormerAgent]:
        """The agents of the last generations before this one."""
        query = (
            "SELECT generation, host, pid, returns_s, ended IS NOT NULL FROM agents "
            "WHERE generation >= ? AND generation < ? AND typeof(host) = 'text' AND typeof(pid) = 'integer' "
            "AND typeof(returns_s) = 'real' ORDER BY seq"
        )
        found = self._open().rows(query, (self._generation - generations, self._generation))
        return [FormerAgent(one, host, pid, returns_s, bool(ended)) for one, host, pid, returns_s, ended in found]

    def read(self, row: int, place: int) -> tuple[Any, Sequence[Buffer]]:
        """Return the entry of a value and its large buffers.

        Args:
            row: the row that `earlier` named.
            place: the place of the value in it.

        Raises:
            RunDatabaseError: as `frames`.
        """
        with self._lock:
            found = self._kept.get(row)
            if found is None:
                group, frames = self.frames(row)
                values, buffers = groups.entries(group, frames)
                found = values, buffers, sum(map(len, frames)) + ENTRY_BYTES * len(values)
                self._kept_bytes += found[2]
            self._kept[row] = found
            self._kept.move_to_end(row)
            while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
                _, (_, _, dropped) = self._kept.popitem(last=False)
                self._kept_bytes -= dropped
        values, buffers, _ = found
        return values[place], buffers[place] if buffers else ()

    def frames(self, row: int) -> tuple[Results, list[Buffer]]:
        """Return the results in a row, and their frames.

        Raises:
            RunDatabaseError: the row, or its large value, is missing or damaged. At the next start, what is
                damaged does not count.
        """
        try:
            return _read_frames(self._open(), self._files, row)
        except Damaged:
            with suppress(RunDatabaseError):
                self._writing.run("UPDATE records SET checksum = 0 WHERE seq = ?", (row,))
            raise

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _open(self) -> Connection:
        if self._connection is None:
            self._connection = open_for_reading(self._writing.path)
        return self._connection
