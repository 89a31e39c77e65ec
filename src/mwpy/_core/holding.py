"""Tasks that a slave holds or that wait: spans of them in a certain order, and moments that may not be known."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter, is_not
from typing import Generic, Protocol, Self, TypeVar

from mwpy._values import messages

count_of = attrgetter("count")
"""How many tasks a span has, for `map`."""


class Held(Protocol):
    """Tasks with consecutive ids, in one attempt."""

    @property
    def first(self) -> int: ...

    @property
    def attempt(self) -> int: ...

    @property
    def count(self) -> int: ...

    def cut(self, count: int) -> tuple[Self, Self]:
        """Return its first `count` tasks, and the others."""


H = TypeVar("H", bound=Held)


class TaskIds:
    """A set of task ids, as ranges with gaps between them.

    Args:
        ranges: the first id and the count of each range. They do not overlap.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        for first, count in sorted(ranges):
            if self._ends and self._ends[-1] == first:
                self._ends[-1] += count
            else:
                self._firsts.append(first)
                self._ends.append(first + count)

    def among(self, span: Held) -> Iterator[tuple[int, int]]:
        """The ids of a span that are in this set, as ranges in ascending order: the first id and the count of each."""
        end = span.first + span.count
        at = bisect_right(self._ends, span.first)
        while at < len(self._firsts) and self._firsts[at] < end:
            start = max(span.first, self._firsts[at])
            yield start, min(end, self._ends[at]) - start
            at += 1


def divided(held: Iterable[H], ids: TaskIds) -> Iterator[tuple[H, bool]]:
    """Cut spans where tasks with these ids begin and end: yield each part in order, and whether it has these ids."""
    for span in held:
        rest = span
        for first, count in ids.among(span):
            if first > rest.first:
                before, rest = rest.cut(first - rest.first)
                yield before, False
            if count == rest.count:
                yield rest, True
                break
            mine, rest = rest.cut(count)
            yield mine, True
        else:
            yield rest, False


def take_out(held: deque[H], ids: TaskIds) -> list[H]:
    """Remove the tasks with these ids, wherever they are, in one pass over all spans.

    Returns:
        The removed tasks, as spans in the order in which they were held.
    """
    parts = [*divided(held, ids)]
    held.clear()
    held.extend(part for part, named in parts if not named)
    return [part for part, named in parts if named]


def take_named(held: deque[H], message: messages.Results | messages.Revoked | messages.AlgorithmFailed) -> list[range]:
    """Remove the tasks that a message names and that are held in exactly the named attempts.

    Returns:
        The positions in the message of the removed tasks, as ranges.
    """
    positions: list[range] = []
    start = 0
    every = take_each(held, message.tasks, message.counts, message.attempts)
    for taken, first, count in zip(every, message.tasks, message.counts, strict=True):
        for span in taken:
            begin = start + span.first - first
            positions.append(range(begin, begin + span.count))
        start += count
    return positions


def take_each(held: deque[H], firsts: Sequence[int], counts: Sequence[int], attempts: Sequence[int]) -> list[list[H]]:
    """For each of several spans, remove the tasks with its ids that are held in exactly this attempt.

    Usually these are the first tasks that are held, because a slave runs its tasks in the order in which they were
    sent. A member may name any number of spans. The time is limited by the number of named spans plus the number of
    held spans, and not by their product.

    Returns:
        For each of the named spans: what was removed, as spans in the order in which they were held.
    """
    taken: list[list[H]] = []
    index: _Index[H] | None = None
    for start, count, attempt in zip(firsts, counts, attempts, strict=True):
        own: list[H] = []
        first, end = start, start + count
        while first < end and index is None:
            if not begins(held, first, attempt):
                index = _Index(held)
                break
            span = held.popleft()
            if span.count > end - first:
                span, behind = span.cut(end - first)
                held.appendleft(behind)
            own.append(span)
            first += span.count
        if first < end and index is not None:
            own += index.take(first, end - first, attempt)
        taken.append(own)
    if index is not None:
        held.clear()
        held.extend(index.rest())
    return taken


def begins(held: deque[H], first: int, attempt: int) -> bool:
    """Whether the first task that is held is this one, in this attempt."""
    return bool(held) and held[0].first == first and held[0].attempt == attempt


class _Index(Generic[H]):
    """Held spans by attempt and id. No task is held twice in one attempt."""

    def __init__(self, held: deque[H]) -> None:
        self._spans: dict[int, list[tuple[int, H]]] = {}
        """For each attempt its spans in the order of their ids, each after its place among all spans."""
        for place, span in sorted(enumerate(held), key=lambda each: each[1].first):
            self._spans.setdefault(span.attempt, []).append((place, span))
        self._firsts = {attempt: [span.first for _, span in spans] for attempt, spans in self._spans.items()}

    def take(self, first: int, count: int, attempt: int) -> list[H]:
        """Remove the tasks with the `count` ids from `first` on, if they are held in exactly this attempt. Return them
        in the order in which they were held."""
        spans, firsts = self._spans.get(attempt, []), self._firsts.get(attempt, [])
        start, stop = max(0, bisect_right(firsts, first) - 1), bisect_left(firsts, first + count)
        found = spans[start:stop]
        if found and found[0][1].first + found[0][1].count <= first:
            start += 1
            del found[0]
        if not found:
            return []
        left: list[tuple[int, H]] = []
        place, span = found[0]
        if span.first < first:
            before, span = span.cut(first - span.first)
            left.append((place, before))
            found[0] = place, span
        place, span = found[-1]
        if span.first + span.count > first + count:
            span, behind = span.cut(first + count - span.first)
            left.append((place, behind))
            found[-1] = place, span
        spans[start:stop] = left
        firsts[start:stop] = [span.first for _, span in left]
        return [span for _, span in sorted(found, key=lambda each: each[0])]

    def rest(self) -> list[H]:
        """Return the spans that were not taken, in the order in which they were held."""
        spans = [(place, span.first, span) for own in self._spans.values() for place, span in own]
        return [span for _, _, span in sorted(spans, key=lambda each: each[:2])]


# Moments on a core's clock, of which some are not known.


known: Callable[[Iterable[float | None]], Iterator[float]] = partial(filter, partial(is_not, None))
"""Those of some moments that are not None. It makes no Python call for each of them."""
