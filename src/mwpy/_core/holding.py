"""Tasks that a slave holds: spans of them, in the order in which they were sent to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import Protocol, Self, TypeVar

from mwpy._values import messages

__all__ = ["Held", "are_next", "count_of", "take", "take_named"]

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


def are_next(held: deque[H], firsts: Sequence[int], counts: Sequence[int], attempts: Sequence[int]) -> bool:
    """Whether some spans of tasks are exactly the first tasks that are held, in the same order.

    Usually they are, because a slave runs its tasks in the order in which they were sent. Then `take` finds all of
    them.
    """
    spans = iter(held)
    span, passed = None, 0
    for first, count, attempt in zip(firsts, counts, attempts, strict=True):
        done = 0
        while done < count:
            if span is None:
                span, passed = next(spans, None), 0
            if span is None or span.first + passed != first + done or span.attempt != attempt:
                return False
            step = min(count - done, span.count - passed)
            done, passed = done + step, passed + step
            if passed == span.count:
                span = None
    return True


def take(held: deque[H], first: int, count: int, attempt: int) -> list[H]:
    """Remove the tasks with the `count` ids from `first` on, if they are held in exactly this attempt.

    Returns:
        The removed tasks, as spans. Usually this is the whole first span.
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


def take_named(held: deque[H], message: messages.Results | messages.Revoked | messages.AlgorithmFailed) -> list[int]:
    """Remove the tasks that a message names and that are held in exactly the named attempts.

    Returns:
        The positions in the message of the removed tasks.
    """
    positions: list[int] = []
    start = 0
    for first, count, attempt in zip(message.tasks, message.counts, message.attempts, strict=True):
        for span in take(held, first, count, attempt):
            begin = start + span.first - first
            positions.extend(range(begin, begin + span.count))
        start += count
    return positions
