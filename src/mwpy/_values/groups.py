"""Groups of tasks and results: how their payload frames are made, read and divided."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise, repeat
from operator import ne, sub
from typing import Any

from mwpy._values.errors import ProtocolError
from mwpy._values.ids import Buffer
from mwpy._values.messagepack import (
    LIST_PREFIX,
    MALFORMED,
    SMALL_BYTES,
    decode_calls,
    decode_list,
    decode_plain,
    has_containers,
    split_list,
)
from mwpy._values.messages import AlgorithmFailed, Results, Revoked, Tasks
from mwpy._values.packed import ROWS

__all__ = ["each_task", "entries", "payload", "select", "spans_of"]


def payload(count: int, parts: Iterable[Buffer]) -> bytes:
    """Make the first payload frame of a group. The parts contain `count` encoded entries, one after the other."""
    return b"".join((LIST_PREFIX, count.to_bytes(4, "big"), *parts))


def entries(group: Tasks | Results, frames: Sequence[Buffer]) -> tuple[list[Any], list[Sequence[Buffer]]]:
    """Read the frames of a checked group: the entry of each task and its large buffers, in the group's order. There are
    no lists of buffers if all values are plain, or all tasks are of portions.

    Raises:
        ProtocolError: the first frame is not a list with one entry for each task; the sender's fault.
    """
    count = sum(group.counts)
    name = type(group).__name__
    if count > len(frames[0]) - 5 or frames[0][:5] != LIST_PREFIX + count.to_bytes(4, "big"):
        raise ProtocolError(f"{name}: its payload is not a list of {count} entries")
    try:
        if type(group) is Results and group.plain:
            return decode_plain(frames[0]), []
        if type(group) is Tasks and group.portions and {*group.portions} == {ROWS}:
            return decode_calls(frames[0]), []
        if len(frames[0]) > SMALL_BYTES and type(group) is Results and has_containers(frames[0]):
            raise ProtocolError("Results: an entry is a list or dict, but these travel as pickles")
        found = decode_list(frames[0])
    except MALFORMED as error:
        raise ProtocolError(f"{name}: its payload cannot be read: {error}") from error
    if not group.buffers:
        return found, [()] * count
    own = list(accumulate(group.buffers, initial=1))
    return found, [frames[start:end] for start, end in pairwise(own)]


def each_task(group: Tasks | Results | Revoked | AlgorithmFailed) -> Iterator[tuple[int, int]]:
    """Yield the id and the attempt of each task that a message names."""
    for first, count, attempt in zip(group.tasks, group.counts, group.attempts, strict=True):
        yield from zip(range(first, first + count), repeat(attempt), strict=False)


def spans_of(tasks: Sequence[int], attempts: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Combine consecutive tasks into spans, in their order: return first ids, counts and attempts."""
    count = len(tasks)
    if count and attempts.count(attempts[0]) == count and [*tasks] == [*range(tasks[0], tasks[0] + count)]:
        return [tasks[0]], [count], [attempts[0]]  # the usual case, found quickly
    steps, others = [0, *map(sub, tasks[1:], tasks)], [True, *map(ne, attempts[1:], attempts)]
    starts = [at for at, step, other in zip(range(count), steps, others, strict=False) if other or step != 1]
    counts = [*map(sub, [*starts[1:], count], starts)]
    return [tasks[at] for at in starts], counts, [attempts[at] for at in starts]


def select(group: Results, frames: Sequence[Buffer], kept: Sequence[int]) -> tuple[Results, list[Buffer]]:
    """Make a group with only the results at these positions."""
    raw = split_list(frames[0])
    named = list(each_task(group))
    failed, again = frozenset(group.failed), frozenset(group.again)
    firsts, counts, attempts = spans_of([named[at][0] for at in kept], [named[at][1] for at in kept])
    smaller = Results(
        slave=group.slave,
        tasks=firsts,
        counts=counts,
        attempts=attempts,
        seconds=_seconds_at(group, kept),
        failed=[new for new, at in enumerate(kept) if at in failed],
        buffers=[group.buffers[at] for at in kept] if group.buffers else [],
        again=[new for new, at in enumerate(kept) if at in again],
        plain=group.plain,
    )
    own = list(pairwise(accumulate(group.buffers or [0] * len(raw), initial=1)))
    buffers = [buffer for at in kept for buffer in frames[slice(*own[at])]]
    return smaller, [payload(len(kept), [raw[at] for at in kept]), *buffers]


def _seconds_at(group: Results, kept: Sequence[int]) -> list[float]:
    """The compute times of the results at these positions, or their sum if only the sum of all is known."""
    count = sum(group.counts)
    if len(group.seconds) == count:
        return [group.seconds[at] for at in kept]
    return [group.seconds[0] * len(kept) / count] if kept else []
