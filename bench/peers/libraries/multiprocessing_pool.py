"""multiprocessing.Pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from multiprocessing import Pool
from typing import TYPE_CHECKING, Any

from bench.peers.peer import Peer

if TYPE_CHECKING:
    import numpy as np


class MultiprocessingPool(Peer):
    sends_each_time = True

    def start(self, workers: int) -> None:
        self._pool = Pool(workers)

    def stop(self) -> None:
        self._pool.terminate()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._pool.apply_async(function, arguments)

    def result(self, handle: Any) -> Any:
        return handle.get()

    def map(self, function: Callable[[Any], Any], items: Sequence[Any], chunk: int | None) -> Iterable[Any]:
        return self._pool.imap_unordered(function, items, chunk or 1)

    def map_shared(self, function: Callable[..., Any], array: np.ndarray, parts: int) -> Iterable[Any]:
        return self._pool.starmap(function, ((array, part, parts) for part in range(parts)), 1)

    def result_after_death(self, die: Callable[..., Any], path: str, function: Callable[[], Any]) -> Any:
        self._pool.apply_async(die, (path,))  # its result never comes
        return self._pool.apply(function)
