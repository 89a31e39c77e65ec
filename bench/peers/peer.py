"""The shape of a library: what the workloads need of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import numpy as np


class Cannot(Exception):
    """The library cannot do this. The text is the reason, which the table shows."""


class Peer:
    """A library with its workers. Each subclass uses the calls that the library's own documentation recommends."""

    chunks: ClassVar[Sequence[int | None]] = (1, 10, 100, 1000, 10_000)
    """The chunk sizes of `map` among which the workloads search the best one. None is the choice of the library."""
    each: ClassVar[int | None] = 1
    """The chunk size of `map` for large items."""
    sends_each_time: ClassVar[bool] = False
    """Whether `map_shared` sends the array with each task, because the library has no other way."""
    keeps_handles: ClassVar[bool] = True
    """Whether a program must keep the handles of its tasks."""

    def start(self, workers: int) -> None:
        """Start the workers."""
        raise NotImplementedError

    def stop(self) -> None:
        """End the workers."""
        raise NotImplementedError

    def processes(self) -> Sequence[int]:
        """Return the ids of all processes of the library when all workers have started, if none is replaced unless it
        dies. Else return nothing."""
        return ()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Submit one task, and return a handle of it."""
        raise NotImplementedError

    def result(self, handle: Any) -> Any:
        """Wait for the value of a task."""
        raise NotImplementedError

    def submit_each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterable[Any]:
        """Submit a task for each item with a call of its own, and return the values."""
        handles = [self.submit(function, item) for item in items]
        return map(self.result, handles)

    def map(self, function: Callable[[Any], Any], items: Sequence[Any], chunk: int | None) -> Iterable[Any]:
        """Call the function for all items in the quickest way, and return the values."""
        raise NotImplementedError

    def map_shared(self, function: Callable[..., Any], array: np.ndarray, parts: int) -> Iterable[Any]:
        """Call `function(array, part, parts)` for each part."""
        raise NotImplementedError

    def result_after_death(self, die: Callable[..., Any], path: str, function: Callable[[], Any]) -> Any:
        """Let a task end its worker with `die(path)`, and return the next value of `function` as soon as possible."""
        raise NotImplementedError

    def scale(self, agents: int) -> Sequence[float]:  # noqa: ARG002
        """Measure many agents in one process: the figures of the workloads W7."""
        raise Cannot("it has no agents of which many can run in one process")
