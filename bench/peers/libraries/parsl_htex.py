"""Parsl with its HighThroughputExecutor."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import parsl
from bench.peers.peer import Peer
from parsl.executors import HighThroughputExecutor
from parsl.executors.high_throughput.errors import WorkerLost
from parsl.providers import LocalProvider

if TYPE_CHECKING:
    import numpy as np


class ParslHtex(Peer):
    chunks = (None,)
    each = None
    sends_each_time = True

    def start(self, workers: int) -> None:
        executor = HighThroughputExecutor(
            address="127.0.0.1",
            max_workers_per_node=workers,
            cores_per_worker=1e-6,
            provider=LocalProvider(init_blocks=1, min_blocks=1, max_blocks=1),
        )
        config = parsl.Config(
            [executor], run_dir=tempfile.mkdtemp(prefix="parsl-"), usage_tracking=0, strategy="none", retries=0
        )
        self._kernel = parsl.load(config)
        self._app = cache(parsl.python_app)

    def stop(self) -> None:
        self._kernel.cleanup()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._app(function)(*arguments)

    def result(self, handle: Any) -> Any:
        return handle.result()

    def map(self, function: Callable[[Any], Any], items: Sequence[Any], chunk: int | None) -> Iterable[Any]:  # noqa: ARG002
        return self.submit_each(function, items)  # it has no call for tasks in bulk

    def map_shared(self, function: Callable[..., Any], array: np.ndarray, parts: int) -> Iterable[Any]:
        tasks = [self.submit(function, array, part, parts) for part in range(parts)]
        return map(self.result, tasks)

    def result_after_death(self, die: Callable[..., Any], path: str, function: Callable[[], Any]) -> Any:
        handle = self.submit(die, path)
        assert isinstance(handle.exception(), WorkerLost)
        return self.result(self.submit(function))
