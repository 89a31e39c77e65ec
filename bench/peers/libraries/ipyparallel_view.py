"""ipyparallel, with a load-balanced view."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import ipyparallel
from bench.peers.peer import Cannot, Peer

if TYPE_CHECKING:
    import numpy as np


class IpyparallelView(Peer):
    def start(self, workers: int) -> None:
        self._cluster = ipyparallel.Cluster(n=workers, log_level=40)
        self._client = self._cluster.start_and_connect_sync(activate=False)
        self._view = self._client.load_balanced_view()

    def stop(self) -> None:
        self._client.close()
        self._cluster.stop_cluster_sync()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._view.apply_async(function, *arguments)

    def result(self, handle: Any) -> Any:
        return handle.get()

    def map(self, function: Callable[[Any], Any], items: Sequence[Any], chunk: int | None) -> Iterable[Any]:
        return self._view.map(function, items, chunksize=chunk, block=True)

    def map_shared(self, function: Callable[..., Any], array: np.ndarray, parts: int) -> Iterable[Any]:
        self._client[:].push({"shared": array}, block=True)
        shared = ipyparallel.Reference("shared")
        tasks = [self._view.apply_async(function, shared, part, parts) for part in range(parts)]
        return [task.get() for task in tasks]

    def result_after_death(self, die: Callable[..., Any], path: str, function: Callable[[], Any]) -> Any:  # noqa: ARG002
        raise Cannot("an engine that died is not replaced")
