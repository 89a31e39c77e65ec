"""The tasks of a map, and their results on the way to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from msgspec import Struct, field

from mwpy._values.groups import Stretch
from mwpy._values.task import Result

Arrived = Result[Any] | Stretch
"""What arrives for a map: the result of one item, or the values of several items."""


def count_of(arrived: Arrived) -> int:
    """How many items it is about."""
    return arrived.count if isinstance(arrived, Stretch) else 1


class Portion(Struct, eq=False):
    """Items of a map that were submitted together; often only one. This object is the tag of their tasks."""

    tasks: MapTasks
    first: int
    """The id of the first task."""
    position: int
    """The position of the first item in the map."""
    items: Sequence[Any]
    size: int
    """Bytes of arguments."""
    left: int
    """How many of the results were not taken from `MapTasks.arrived`."""
    taken: list[tuple[int, int]] = []
    """Which of the results were taken before the last: place and count."""

    def take(self, arrived: Arrived, count: int) -> int:
        """Results were taken. Their tag becomes their item or items. Return the position of the first in the map."""
        tasks = self.tasks
        tasks.num_open -= count
        self.left -= count
        if isinstance(arrived, Stretch):
            place = arrived.first - self.first
            arrived.tag = self.items[place : place + count]
        else:
            place = arrived.task_id - self.first
            arrived.tag = self.items[place]
        if self.left:
            self.taken.append((place, count))
        else:
            del tasks.open[self.first]
        return self.position + place

    def item(self, task_id: int) -> Any:
        """The item of a task."""
        return self.items[task_id - self.first]

    @property
    def ids(self) -> range:
        """The ids of its tasks."""
        return range(self.first, self.first + len(self.items))

    def untaken(self) -> Iterator[tuple[int, Any]]:
        """The items whose results were not taken, with their positions."""
        taken = {place + at for place, count in self.taken for at in range(count)}
        return ((self.position + at, item) for at, item in enumerate(self.items) if at not in taken)


class MapTasks(Struct, eq=False, weakref=True):
    """The tasks of one map."""

    open: dict[int, Portion] = field(default_factory=dict)
    """The portions with results that were not taken from `arrived`, by the ids of their first tasks."""
    num_open: int = 0
    """How many results were not taken."""
    arrived: deque[Arrived] = field(default_factory=deque)
    """What arrived. An interrupt may leave something here twice."""
    num_arrived: int = 0
    """About how many results this is."""
    early: dict[int, Arrived] = field(default_factory=dict)
    """What was taken from `arrived` and waits for its turn, by position."""
    unread: int | None = 0
    """How many items were not read; None if this is unknown."""
    is_read: bool = False
    """Whether somebody has asked for a value, or cannot: the call was interrupted, or there are no items."""
    closed: bool = False
    """Whether nobody will take a result."""
    last: int = 0
    """The id of the last task that was submitted before the map was closed."""

    @property
    def num_waiting(self) -> int:
        """How many results arrived and were not given out."""
        return sum(map(count_of, self.arrived)) + sum(map(count_of, self.early.values()))

    def ids(self, last: int) -> list[int]:
        """The ids of the tasks that may not have ended, up to the id `last`."""
        return [number for portion in self.open.values() for number in portion.ids if number <= last]

    def unended(self) -> list[Any]:
        """The items whose results were not given out, in their order."""
        found = [each for portion in self.open.values() for each in portion.untaken()]
        for position, given in self.early.items():
            items = given.tag if isinstance(given, Stretch) else [given.tag]
            found += enumerate(items, position)
        return [item for _, item in sorted(found, key=itemgetter(0))]

    def forget(self) -> None:
        """Keep no items and results. The tasks that are still on their way refer to this object."""
        for portion in self.open.values():
            portion.items = ()
        self.open.clear()
        self.arrived.clear()
        self.early.clear()
