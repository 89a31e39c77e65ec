"""concurrent.futures.ProcessPoolExecutor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from itertools import repeat
from typing import TYPE_CHECKING, Any

from bench.peers.peer import Peer

if TYPE_CHECKING:
    import numpy as np


class Executor(Peer):
    sends_each_time = True

    def start(self, workers: int) -> None:
        self._workers = workers
        self._pool = ProcessPoolExecutor(workers)

    def stop(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._pool.submit(function, *arguments)

    def result(self, handle: Any) -> Any:
        return handle.result()

    def map(self, function: Callable[[Any], Any], items: Sequence[Any], chunk: int | None) -> Iterable[Any]:
        return self._pool.map(function, items, chunksize=chunk or 1)

    def map_shared(self, function: Callable[..., Any], array: np.ndarray, parts: int) -> Iterable[Any]:
        return self._pool.map(function, repeat(array, parts), range(parts), repeat(parts))

    def result_after_death(self, die: Callable[..., Any], path: str, function: Callable[[], Any]) -> Any:
        with suppress(BrokenProcessPool):
            self._pool.submit(die, path).result()
        self.start(self._workers)  # a pool that lost a worker takes no more tasks
        return self._pool.submit(function).result()
