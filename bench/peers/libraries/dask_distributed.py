"""dask.distributed, with a local cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import dask
import dask.bag
from bench.peers.peer import Peer
from distributed import Client, KilledWorker, LocalCluster

if TYPE_CHECKING:
    import numpy as np


class DaskDistributed(Peer):
    def start(self, workers: int) -> None:
        dask.config.set({"distributed.scheduler.allowed-failures": 0})
        self._cluster = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
        self._client = Client(self._cluster)

    def stop(self) -> None:
        self._client.close()
        self._cluster.close()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._client.submit(function, *arguments, pure=False)

    def result(self, handle: Any) -> Any:
        return handle.result()

    def submit_each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterable[Any]:
        return self._client.gather([self.submit(function, item) for item in items])

    def map(self, function: Callable[[Any], Any], items: Sequence[Any], chunk: int | None) -> Iterable[Any]:
        return dask.bag.from_sequence(items, partition_size=chunk).map(function).compute(scheduler=self._client)

    def map_shared(self, function: Callable[..., Any], array: np.ndarray, parts: int) -> Iterable[Any]:
        shared = self._client.scatter(array, broadcast=True)
        tasks = [self._client.submit(function, shared, part, parts, pure=False) for part in range(parts)]
        return self._client.gather(tasks)

    def result_after_death(self, die: Callable[..., Any], path: str, function: Callable[[], Any]) -> Any:
        with suppress(KilledWorker):
            self.result(self.submit(die, path))
        return self.result(self.submit(function))
