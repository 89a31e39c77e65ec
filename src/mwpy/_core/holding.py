"""Tasks that a slave holds: spans of them, in the order in which it was given them."""

from __future__ import annotations

from collections import deque
from operator import attrgetter
from typing import Protocol, Self, TypeVar

__all__ = ["Held", "count_of", "take"]

count_of = attrgetter("count")
"""How many tasks a span has, for `map`."""


class Held(Protocol):
    """Tasks with ids that follow on one another, in one attempt."""

    @property
    def first(self) -> int: ...

    @property
    def attempt(self) -> int: ...

    @property
    def count(self) -> int: ...

    def cut(self, count: int) -> tuple[Self, Self]:
        """Its first `count` tasks, and the others."""


H = TypeVar("H", bound=Held)


def take(held: deque[H], first: int, count: int, attempt: int) -> list[H]:
    """Take `count` tasks from `first` on out of what is held, as far as they are held in just this attempt.

    Mostly they are the first span.
    """
    if held and (held[0].first, held[0].count, held[0].attempt) == (first, count, attempt):
        return [held.popleft()]
    end = first + count
    taken: list[H] = []
    passed: list[H] = []
    while held and count > 0:
        span = held.popleft()
        start, stop = max(first, span.first), min(end, span.first + span.count)
        if span.attempt != attempt or start >= stop:
            passed.append(span)
            continue
        if start > span.first:
            before, span = span.cut(start - span.first)
            passed.append(before)
        if stop < span.first + span.count:
            span, behind = span.cut(stop - start)
            held.appendleft(behind)
        taken.append(span)
        count -= span.count
    held.extendleft(reversed(passed))
    return taken
