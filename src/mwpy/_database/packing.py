"""How rows are collected and groups of results are packed before they are written.

How a group of results is kept in a row: its head, and its frames one after the other.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise, repeat
from typing import Any

from msgspec import Struct, field

from mwpy._values import records
from mwpy._values.bounds import shortened
from mwpy._values.errors import RunDatabaseError
from mwpy._values.ids import Buffer
from mwpy._values.messagepack import MALFORMED, decoder, encode, encode_json
from mwpy._values.messages import Results

REMEDY = "Start again, and its task runs again"


class Damaged(RunDatabaseError):
    """A result in a row is not what was written."""


class _Head(Struct, frozen=True, array_like=True):
    """The fields of `Results`, without their names. New fields come last and have defaults."""

    slave: int
    tasks: list[int]
    counts: list[int]
    attempts: list[int]
    seconds: list[float]
    failed: list[int]
    buffers: list[int]
    again: list[int]
    unused: list[tuple[int, int]]
    """Empty, except in files of earlier versions."""
    plain: bool
    sizes: list[int]
    """The size of each frame."""


_read_head = decoder(_Head)


class PackedResults(Struct, frozen=True, gc=False):
    """A group of results, as a row keeps it."""

    head: bytes
    frames: Sequence[Buffer]
    size: int
    """The size of all frames."""
    checksum: int
    """Of the head and the frames."""


def pack(results: Results, frames: Sequence[Buffer]) -> PackedResults:
    """Pack a group of results."""
    sizes = [len(frame) for frame in frames]
    fields = results.slave, results.tasks, results.counts, results.attempts, results.seconds, results.failed
    rest = results.buffers, results.again, (), results.plain
    head = encode((*fields, *rest, sizes))
    return PackedResults(head, frames, sum(sizes), content_checksum(head, *frames))


def content_checksum(head: bytes, *frames: Buffer) -> int:
    """Return the checksum of the head and the frames of a group."""
    checksum = zlib.crc32(head)
    for frame in frames:
        checksum = zlib.crc32(frame, checksum)
    return checksum


def unpack_head(head: bytes) -> Results:
    """Read the head of a group.

    Raises:
        Damaged: it is damaged.
    """
    return _results(_decoded(head))


def size_of_frames(head: bytes) -> int:
    """How large all frames of a group are together, in bytes.

    Raises:
        Damaged: the head is damaged.
    """
    return sum(_decoded(head).sizes)


def unpack(head: bytes, content: bytes, checksum: int) -> tuple[Results, list[Buffer]]:
    """Read a group of results.

    Raises:
        Damaged: it is damaged.
    """
    fields = _decoded(head)
    if content_checksum(head, content) != checksum or sum(fields.sizes) != len(content):
        raise Damaged(f"a result in the run database is damaged: its checksum is wrong. {REMEDY}")
    view = memoryview(content)
    return _results(fields), [view[start:end] for start, end in pairwise(accumulate(fields.sizes, initial=0))]


def _decoded(head: bytes) -> _Head:
    try:
        return _read_head(head)
    except MALFORMED as error:
        raise Damaged(f"a result in the run database is damaged: {error}. {REMEDY}") from error


def _results(head: _Head) -> Results:
    fields = head.slave, head.tasks, head.counts, head.attempts, head.seconds, head.failed
    return Results(*fields, head.buffers, head.again, head.plain)


def each_attempt(ranges: Iterable[tuple[int, int, int]]) -> str:
    """Write the attempt of each task as JSON: an object with the ids of the tasks as its keys.

    Args:
        ranges: the first id, the count and the attempt of each range.
    """
    each = {first + at: attempt for first, count, attempt in ranges for at in range(count)}
    return encode_json(each).decode()


class ResultColumns(Struct, frozen=True, gc=False):
    """What the views unpack of a row with results; `schema.py` describes the columns."""

    base: int
    count: int
    attempt: int
    attempts: str | None
    seconds: str | None
    total_s: float


def columns_of(results: Results) -> ResultColumns:
    """Describe results for the views."""
    firsts, counts, attempts, seconds = results.tasks, results.counts, results.attempts, results.seconds
    count, total_s = sum(counts), sum(seconds)
    if len(firsts) == 1:
        times = encode_json(seconds).decode() if len(seconds) == count else None
        return ResultColumns(firsts[0], count, attempts[0], None, times, total_s)
    ranges = [*zip(firsts, counts, attempts, strict=True)]
    ids = (task for first, count, _ in ranges for task in range(first, first + count))
    known = seconds if len(seconds) == count else repeat(total_s / max(1, count))
    times = encode_json(dict(zip(ids, known, strict=False))).decode()
    differ = attempts.count(attempts[0]) < len(attempts) if attempts else False
    return ResultColumns(
        0, count, attempts[0] if attempts else 0, each_attempt(ranges) if differ else None, times, total_s
    )


# The rows of one commit, and their numbers.


USED_UP = 2
"""In place of `may_have_run` in the table `once`: the attempts of the tasks are used up. The row of the table `ends`
with the reason has the number before."""

TEXT_CHARACTERS = 2000
"""The longest message or reason that is kept, in characters. Of a longer one, the middle is left out."""

COLUMNS: dict[str, tuple[str, ...]] = {
    "algorithms": ("number", "name", "reference", "code", "parts"),
    "submissions": ("at", "first", "count", "algorithm", "policy", "keys"),
    "reused": ("at", "first", "count", "algorithm", "failed", "answers", "keys"),
    "allocations": ("at", "sid", "base", "count", "attempt", "attempts", "reason"),
    "once": ("first", "count", "may_have_run"),
    "failures": ("at", "task", "attempt", "sid", "type", "message", "traceback", "arguments"),
    "ends": ("at", "first", "count", "attempt", "state", "sid", "reason"),
    "losses": ("at", "sid", "first", "count", "attempt", "algorithm", "cause", "charged", "lost_s", "reason"),
    "agents": ("at", "agent", "host", "pid", "job", "address", "slaves", "python", "returns_s"),
    "slaves": ("at", "sid", "agent", "kind"),
    "events": ("at", "kind", "text"),
}
"""The columns of the rows in `Batch.rows`, after `seq` and `generation`. If the last one is `keys`, its value is the
place of bytes in `Batch.blob`."""

TABLES_BY_SEQ = (*COLUMNS, "results")
"""The tables that share one sequence of row numbers."""


class StoredGroup(Struct, gc=False):
    """A row of the table `results`."""

    seq: int
    at: float
    sid: str
    columns: ResultColumns
    failed: int
    packed: PackedResults
    generation: int
    """The generation that had sent the tasks to the slave."""
    brought: records.ResultsHandedOver | None = None
    """The record, if an agent has brought these results from a former generation."""


class Batch(Struct, eq=False):
    """The rows of one commit."""

    rows: dict[str, list[list[Any]]] = field(default_factory=lambda: {table: [] for table in COLUMNS})
    """New rows, by table."""
    blob: bytearray = field(default_factory=bytearray)
    """The bytes in these rows."""
    groups: list[StoredGroup] = field(default_factory=list)
    calls: Mapping[int, bytes] = field(default_factory=dict)
    """The encoded arguments of tasks that failed, by id, as far as they are known."""
    changes: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    """Statements that change earlier rows, and their parameters. They follow after all new rows."""


class RowNumbers(Struct, eq=False):
    """Numbers the rows of all tables.

    Args:
        generation: the number of this life of the master.
        seq: the number of the last row that is in the file.
    """

    generation: int
    seq: int = 0

    def next(self) -> int:
        """Return the number of the next row."""
        self.seq += 1
        return self.seq

    def add(self, batch: Batch, table: str, *values: Any, generation: int | None = None) -> None:
        """Add a row to a table.

        Args:
            generation: which one the row is about; None for the present one.
        """
        batch.rows[table].append([self.next(), generation or self.generation, *values])


Maker = Callable[[Any, float, Batch], None]
"""Turns a record into rows; the time of the record is in Unix seconds."""


def short(text: str) -> str:
    """Return a text of limited length that SQLite can store, so without half a surrogate pair."""
    return shortened(text, TEXT_CHARACTERS).encode(errors="replace").decode()
