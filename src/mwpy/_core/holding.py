"""Tasks that a slave holds or that wait: spans of them in a certain order, and moments that may not be known."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from math import inf
from operator import attrgetter, is_not
from typing import Protocol, Self, TypeVar

from mwpy._values.groups import Naming, named_in

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
    """A set of task ids, as ranges.

    Args:
        ranges: the first id and the count of each range.
        joins: whether two ranges are one if nothing is between them.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]], *, joins: bool = True) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        for first, count in sorted(ranges):
            begin = max(first, self._ends[-1]) if self._ends else first
            if joins and self._ends and begin == self._ends[-1]:
                self._ends[-1] = max(begin, first + count)
            elif begin < first + count:  # else another range has all of it
                self._firsts.append(begin)
                self._ends.append(first + count)

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The ranges in ascending order: the first id and the count of each."""
        return [(first, end - first) for first, end in zip(self._firsts, self._ends, strict=True)]

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


def take_newest(held: deque[H], ids: TaskIds) -> list[H]:
    """Do the same, if no task is held twice. Spans before all of these tasks are not looked at: the tasks may be new.

    Returns:
        The removed tasks, as spans in the order in which they were held.
    """
    missing = sum(count for _, count in ids.ranges)
    kept: list[H] = []
    taken: list[H] = []
    while held and missing:
        for part, is_named in reversed([*divided([held.pop()], ids)]):
            (taken if is_named else kept).append(part)
            missing -= part.count if is_named else 0
    held.extend(reversed(kept))
    return taken[::-1]


def take_named(held: deque[H], message: Naming) -> list[range]:
    """Remove the tasks that a message names and that are held in exactly the named attempts.

    Returns:
        The positions in the message of the removed tasks, as ranges.
    """
    taken = take(held, named_in(message))
    return [range(place, place + span.count) for place, span in zip(places_of(taken, message), taken, strict=True)]


def places_of(spans: Sequence[Held], message: Naming) -> list[int]:
    """Where each of some spans begins among the tasks that a message names. All their tasks are among these."""
    if len(message.tasks) == 1:
        return [span.first - message.tasks[0] for span in spans]
    starts = accumulate(message.counts, initial=0)
    named = sorted(zip(message.attempts, message.tasks, starts, strict=False))
    places: list[int] = []
    for span in spans:
        _, first, place = named[bisect_right(named, (span.attempt, span.first, inf)) - 1]
        places.append(place + span.first - first)
    return places


def take(held: deque[H], ranges: Iterable[tuple[int, int, int]]) -> list[H]:
    """Remove tasks that are named as ranges of ids, each in one attempt, and that are held in exactly this attempt.

    Usually these are the first tasks that are held, because a slave runs its tasks in the order in which they were
    sent. A member may name any number of ranges. The time is limited by the number of ranges plus the number of held
    spans, and not by their product.

    Args:
        held: the spans.
        ranges: the first id, the count and the attempt of each range.

    Returns:
        What was removed: spans of which each is in one of the ranges.
    """
    taken: list[H] = []
    others: dict[int, list[tuple[int, int]]] = {}
    for start, count, attempt in ranges:
        first, end = start, start + count
        while first < end and not others and begins(held, first, attempt):
            span = held.popleft()
            if span.count > end - first:
                span, behind = span.cut(end - first)
                held.appendleft(behind)
            taken.append(span)
            first += span.count
        if first < end:
            others.setdefault(attempt, []).append((first, end - first))
    if others:
        ids = {attempt: TaskIds(ranges, joins=False) for attempt, ranges in others.items()}
        spans = [*held]
        held.clear()
        for span in spans:
            for part, is_named in divided([span], ids.get(span.attempt, _NONE)):
                (taken if is_named else held).append(part)
    return taken


def begins(held: deque[H], first: int, attempt: int) -> bool:
    """Whether the first task that is held is this one, in this attempt."""
    return bool(held) and held[0].first == first and held[0].attempt == attempt


_NONE = TaskIds(())


# Moments on a core's clock, of which some are not known.


known: Callable[[Iterable[float | None]], Iterator[float]] = partial(filter, partial(is_not, None))
"""Those of some moments that are not None. It makes no Python call for each of them."""
