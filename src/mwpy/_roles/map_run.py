"""One run of `Master.map`: how many items are in flight, and in which order their results are given out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, Generic, TypeVar

from attrs import define, field

from mwpy._roles.access import Access
from mwpy._values.algorithm import Algorithm, TaskCall
from mwpy._values.ids import TaskId
from mwpy._values.task import Policies, Result

__all__ = ["MapRun", "MapTag"]

R = TypeVar("R")

MAP_PENDING = 1000
"""How many tasks `map` keeps pending in the master, beyond the tasks that slaves hold."""

MAP_BYTES = 256 << 20
"""Bytes of arguments in flight at which `map` stops submitting."""

MAP_WINDOW = 20_000
"""How many items an ordered `map` may run ahead of the item that it waits for."""


@define(eq=False)
class MapTag:
    """The tag of a task that a `map` submitted."""

    run: MapRun[Any]
    index: int
    """The position of the item in the run."""
    item: Any
    size: int = 0
    """Bytes of its arguments."""


@define(eq=False)
class MapRun(Generic[R]):
    """The state of one run.

    Args:
        submit: `Master.submit`.
        wait: wait for outcomes; it appends the results of this run's tasks to `arrived`.
    """

    submit: Callable[..., TaskId]
    access: Access
    wait: Callable[[], None]
    arrived: deque[Result[R]] = field(factory=deque)
    """Results that were received and not yet given out, each with its `MapTag`."""
    bytes_in_flight: int = 0

    def results(
        self, algorithm: Algorithm, items: Iterator[Any], ordered: bool, policy: Policies
    ) -> Generator[Result[R], None, None]:
        """Submit the items, and give out their results in their order or as they arrive."""
        submitted = yielded = 0
        early: dict[int, Result[R]] = {}
        exhausted = False
        while not exhausted or yielded < submitted:
            room = MAP_PENDING - self.access.io.submissions.pending()
            if ordered:
                room = min(room, MAP_WINDOW - (submitted - yielded))
            while room > 0 and not exhausted and self.bytes_in_flight < MAP_BYTES:
                try:
                    item = next(items)
                except StopIteration:
                    exhausted = True
                    break
                tag = MapTag(self, submitted, item)
                call: TaskCall[R] = TaskCall(algorithm, (item,), {})
                self.submit(call, tag, **policy)
                self.bytes_in_flight += tag.size
                submitted += 1
                room -= 1
            if not self.arrived and yielded < submitted:
                self.wait()
            while self.arrived:
                result = self.arrived.popleft()
                tag = result.tag
                self.bytes_in_flight -= tag.size
                result.tag = tag.item
                if not ordered:
                    yielded += 1
                    yield result
                    continue
                early[tag.index] = result
                while (ready := early.pop(yielded, None)) is not None:
                    yielded += 1
                    yield ready
