"""What is known of the tasks of one former generation, by their ids there."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, field

from mwpy._values.earlier import EarlierAlgorithm, EarlierTasks

__all__ = ["FormerGeneration"]


class FormerGeneration(Struct, eq=False):
    """The algorithms and tasks of a generation. Each task takes 4 bytes."""

    _algorithms: dict[int, EarlierAlgorithm] = field(default_factory=dict)
    """By number."""
    _numbers: array[int] = field(default_factory=lambda: array("i"))
    """The number of the occurrence of each task, by task id; -1 if there is none."""
    _firsts: array[int] = field(default_factory=lambda: array("q"))
    """The first tasks of the entries of this generation."""
    _algorithm_of: array[int] = field(default_factory=lambda: array("q"))
    """The algorithm of each entry."""

    def define(self, algorithm: EarlierAlgorithm) -> None:
        """An algorithm got its number."""
        self._algorithms[algorithm.number] = algorithm

    def algorithm(self, number: int) -> EarlierAlgorithm:
        """The algorithm with this number."""
        return self._algorithms[number]

    def add(self, entry: EarlierTasks, numbers: Iterable[int]) -> None:
        """Add tasks, in the order of their ids.

        Args:
            numbers: the occurrence of each task; -1 for a task without one.
        """
        self._numbers.extend([-1] * (entry.first - len(self._numbers)))
        self._firsts.append(entry.first)
        self._algorithm_of.append(entry.algorithm)
        self._numbers.extend(numbers)

    def numbers(self, first: int, count: int) -> Sequence[int]:
        """The occurrences of consecutive tasks; -1 for each task without one, or that is not known."""
        known = self._numbers[first : first + count] if first > 0 else array("i")
        return known if len(known) == count else [*known, *[-1] * (count - len(known))]

    def all_numbers(self) -> Sequence[int]:
        """The occurrences of all tasks; -1 for each task without one."""
        return self._numbers

    def by_algorithm(self, first: int, count: int) -> Iterator[tuple[EarlierAlgorithm, int]]:
        """Yield the algorithms of consecutive tasks, and how many of these tasks each has."""
        start, end = first, min(first + count, len(self._numbers))
        while start < end:
            place = bisect_right(self._firsts, start)
            until = min(end, self._firsts[place]) if place < len(self._firsts) else end
            yield self._algorithms[self._algorithm_of[place - 1]], until - start
            start = until
