"""The values of items of a map that arrived together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, repeat
from typing import Any

from msgspec import Struct

from mwpy._values.ids import TaskId
from mwpy._values.task import Origin, Result, loaded

__all__ = ["Stretch"]

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
