"""Ray: remote functions, and its pool for tasks in bulk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import ray
from bench.peers.peer import Peer
from ray.util.multiprocessing import Pool

if TYPE_CHECKING:
    import numpy as np


class RayTasks(Peer):
    def start(self, workers: int) -> None:
        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        self._workers = workers
        self._remote = cache(ray.remote(max_retries=0))

    def stop(self) -> None:
        ray.shutdown()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._remote(function).remote(*arguments)

    def result(self, handle: Any) -> Any:
        return ray.get(handle)

    def submit_each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterable[Any]:
        return ray.get([self.submit(function, item) for item in items])

    def map(self, function: Callable[[Any], Any], items: Sequence[Any], chunk: int | None) -> Iterable[Any]:
        return self._pool.imap_unordered(function, items, chunk or 1)

    def map_shared(self, function: Callable[..., Any], array: np.ndarray, parts: int) -> Iterable[Any]:
        shared = ray.put(array)
        return ray.get([self.submit(function, shared, part, parts) for part in range(parts)])

    def result_after_death(self, die: Callable[..., Any], path: str, function: Callable[[], Any]) -> Any:
        with suppress(ray.exceptions.WorkerCrashedError):
            self.result(self.submit(die, path))
        return self.result(self.submit(function))

    @cached_property
    def _pool(self) -> Pool:
        """Its actors keep the cores, so it is started only where it is used."""
        return Pool(self._workers)
