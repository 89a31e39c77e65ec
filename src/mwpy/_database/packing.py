"""How a group of results is kept in a row: its head, and its frames one after the other."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise, repeat

from msgspec import Struct

from mwpy._values.errors import RunDatabaseError
from mwpy._values.ids import Buffer
from mwpy._values.messagepack import MALFORMED, decoder, encode, encode_json
from mwpy._values.messages import Results

__all__ = [
    "Damaged",
    "PackedResults",
    "ResultColumns",
    "columns_of",
    "content_checksum",
    "each_attempt",
    "pack",
    "size_of_frames",
    "unpack",
    "unpack_head",
]


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
