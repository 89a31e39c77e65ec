"""joblib with its default backend, loky."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from bench.peers.peer import Peer
from joblib import Parallel, delayed
from joblib.executor import get_memmapping_executor
from joblib.externals.loky.process_executor import TerminatedWorkerError

if TYPE_CHECKING:
    import numpy as np


class JoblibLoky(Peer):
    """`Parallel` has no call for a single task, so these are submitted to its executor."""

    chunks = (None, 1, 10, 100, 1000, 10_000)

    def start(self, workers: int) -> None:
        self._workers = workers

    def stop(self) -> None:
        get_memmapping_executor(self._workers).terminate(kill_workers=True)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return get_memmapping_executor(self._workers).submit(function, *arguments)

    def result(self, handle: Any) -> Any:
        return handle.result()

    def map(self, function: Callable[[Any], Any], items: Sequence[Any], chunk: int | None) -> Iterable[Any]:
        return self._parallel(chunk)(delayed(function)(item) for item in items)

    def map_shared(self, function: Callable[..., Any], array: np.ndarray, parts: int) -> Iterable[Any]:
        tasks = (delayed(function)(array, part, parts) for part in range(parts))
        return self._parallel()(tasks)  # it writes large arrays to files, which the workers map

    def _parallel(self, chunk: int | None = None) -> Parallel:
        return Parallel(n_jobs=self._workers, batch_size=chunk or "auto", return_as="generator_unordered")

    def result_after_death(self, die: Callable[..., Any], path: str, function: Callable[[], Any]) -> Any:
        with suppress(TerminatedWorkerError):
            self.result(self.submit(die, path))
        return self.result(self.submit(function))
