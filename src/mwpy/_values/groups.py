"""Groups of tasks and results: how their frames are made, read and divided, and how items of a map are packed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice, pairwise, repeat
from operator import ne, sub
from typing import Any, overload

from msgspec import Struct
from msgspec.structs import replace

from mwpy._values.bounds import Buffer, TaskId
from mwpy._values.errors import ProtocolError
from mwpy._values.messagepack import (
    LIST_OF_ONE,
    LIST_PREFIX,
    MALFORMED,
    SMALL_BYTES,
    decode_calls,
    decode_list,
    decode_plain,
    encode_entries,
    has_containers,
    split_entries,
    split_list,
)
from mwpy._values.messages import AlgorithmFailed, Results, Revoked, Tasks
from mwpy._values.task import Origin, Result, UnrunnableTask, loaded

# The encoded calls of a portion, as one piece of bytes.


ROWS = 1
"""Each entry is the list of a call's arguments."""

ARGUMENTS = 2
"""Each entry is the only argument of a call."""

CALLS = 3
"""Each entry is a call as `Codec.dumps_call` encodes it: the list of its arguments, or a pickle."""


class _Whole(Struct, eq=False):
    """What all parts of a portion share."""

    data: bytes
    count: int
    kind: int
    entries: Sequence[bytes] | None = None
    """The calls one by one, after they were needed for the first time."""

    def divided(self) -> Sequence[bytes]:
        """Each entry of `data`."""
        if self.entries is None:
            self.entries = split_entries(self.data, self.count)
        return self.entries


class PackedCalls(Sequence[bytes]):
    """Encoded calls that were encoded together. A slice is another `PackedCalls`, and costs the same for any size.

    The calls are divided only if a part of them is needed. If each call has one plain argument, the arguments alone are
    encoded. So the slave reads no list for each call.

    Args:
        whole: what it shares with its parts.
        start: the first of these calls.
        stop: the end of them.
    """

    __slots__ = ("_start", "_stop", "_whole")

    def __init__(self, whole: _Whole, start: int, stop: int) -> None:
        self._whole, self._start, self._stop = whole, start, stop

    @classmethod
    def from_data(cls, kind: int, data: bytes, count: int) -> PackedCalls:
        """Make them from what `data` returned."""
        return cls(_Whole(data, count, kind), 0, count)

    @classmethod
    def of(cls, kind: int, calls: Sequence[object]) -> PackedCalls:
        """Encode calls with plain arguments.

        Args:
            kind: what the calls are given as: `ROWS` or `ARGUMENTS`.

        Raises:
            Exception: one of `NOT_ENCODABLE`.
        """
        return cls.from_data(kind, encode_entries(calls), len(calls))

    @classmethod
    def of_encoded(cls, calls: Sequence[bytes]) -> PackedCalls:
        """Put calls together that are encoded one by one, because their arguments are not plain."""
        return cls.from_data(CALLS, b"".join(calls), len(calls))

    @property
    def kind(self) -> int:
        """What its entries are: `ROWS`, `ARGUMENTS` or `CALLS`."""
        return self._whole.kind

    @property
    def data(self) -> bytes:
        """The entries, one after the other."""
        return self._whole.data if len(self) == self._whole.count else b"".join(self._entries)

    @property
    def size(self) -> int:
        """How many bytes they take."""
        return len(self._whole.data) if len(self) == self._whole.count else sum(map(len, self._entries))

    @property
    def _entries(self) -> Sequence[bytes]:
        return self._whole.divided()[self._start : self._stop]

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> PackedCalls: ...

    def __getitem__(self, at: int | slice) -> bytes | PackedCalls:
        if isinstance(at, int):
            return self._call(self._whole.divided()[range(self._start, self._stop)[at]])
        start, stop, _ = at.indices(len(self))
        return PackedCalls(self._whole, self._start + start, self._start + max(start, stop))

    def __iter__(self) -> Iterator[bytes]:
        return map(LIST_OF_ONE.__add__, self._entries) if self.kind == ARGUMENTS else iter(self._entries)

    def _call(self, entry: bytes) -> bytes:
        return LIST_OF_ONE + entry if self.kind == ARGUMENTS else entry


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


Naming = Tasks | Results | Revoked | AlgorithmFailed
"""Messages that name tasks as ranges of ids, each in one attempt."""


def named_in(group: Naming) -> Iterator[tuple[int, int, int]]:
    """The ranges that a message names: the first id, the count and the attempt of each."""
    return zip(group.tasks, group.counts, group.attempts, strict=True)


def each_task(group: Naming) -> Iterator[tuple[int, int]]:
    """Yield the id and the attempt of each task that a message names."""
    for first, count, attempt in named_in(group):
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
        seconds=seconds_at(group, kept),
        failed=[new for new, at in enumerate(kept) if at in failed],
        buffers=[group.buffers[at] for at in kept] if group.buffers else [],
        again=[new for new, at in enumerate(kept) if at in again],
        plain=group.plain,
    )
    own = list(pairwise(accumulate(group.buffers or [0] * len(raw), initial=1)))
    places = [place for at in kept for place in range(*own[at])]
    buffers = [frames[place] for place in places]
    if group.shares:
        smaller = replace(smaller, shares=[group.shares[place - 1] for place in places])
    return smaller, [payload(len(kept), [raw[at] for at in kept]), *buffers]


def seconds_at(group: Results, kept: Sequence[int]) -> list[float]:
    """The compute times of the results at these positions, or their sum if only the sum of all is known."""
    count = sum(group.counts)
    if len(group.seconds) == count:
        return [group.seconds[at] for at in kept]
    return [group.seconds[0] * len(kept) / count] if kept else []


def attempts_and_seconds(group: Results) -> tuple[list[int], Sequence[float]]:
    """The attempt and the compute time of each result."""
    count = sum(group.counts)
    seconds = group.seconds if len(group.seconds) == count else [group.seconds[0] / count] * count
    return [*chain.from_iterable(map(repeat, group.attempts, group.counts))], seconds


# How tasks end: one by one, or as the values of items of a map that arrived together.


_result: type[Result[Any]] = Result


class Stretch(Struct, eq=False):
    """Values of tasks with consecutive ids and the same tag. So no result is made for each of them."""

    first: TaskId
    values: list[Any]
    tag: Any
    origin: Origin
    seconds: list[float]
    """The compute time of each task, in seconds; or one entry with the time of all tasks together."""
    size: int
    """About how many bytes the values take."""
    plain: bool
    """Whether all values are plain. Otherwise some may be pickles."""

    @property
    def count(self) -> int:
        """How many tasks these are."""
        return len(self.values)

    @property
    def total_s(self) -> float:
        """The compute time of all tasks together, in seconds."""
        return sum(self.seconds)

    def results(self, tags: Iterable[Any]) -> Iterator[Result[Any]]:
        """Make a result of each value. If only the sum of the times is known, each result has their mean.

        Args:
            tags: those of the results.
        """
        count = self.count
        seconds = self.seconds if len(self.seconds) == count else repeat(self.total_s / count)
        ids = range(self.first, self.first + count)
        return map(_result, ids, repeat(self.origin), tags, seconds, repeat(False), self.values)

    def value_at(self, place: int, tags: Iterable[Any]) -> Any:
        """Return a value, which may be a pickle.

        Args:
            tags: those of the results.

        Raises:
            TaskFailed: it cannot be unpickled here.
        """
        try:
            return loaded(self.values[place])
        except KeyboardInterrupt:  # by Ctrl-C
            raise
        except BaseException:  # a pickle can call anything, also sys.exit
            return next(islice(self.results(tags), place, None)).value  # this raises an exception that says more


Ended = Result[Any] | UnrunnableTask | Stretch
"""The end of a task, or of several tasks."""


def count_of(ended: Ended) -> int:
    """How many tasks have ended."""
    return ended.count if isinstance(ended, Stretch) else 1
