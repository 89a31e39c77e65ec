"""The batches of a joblib backend on their way to an executor, and the arrays that several of them have.

joblib keeps a number of batches dispatched. It says with `n_jobs` how many tasks may run at once, so no more batches
than that are submitted. If there are no more slaves than that, all are submitted, so that each slave has its next batch
already.

`Parallel` is often called with one array in the arguments of all tasks. The first time it travels as any argument. When
it comes again, it is shared: sent once to each agent, and used in place by all slaves there. As with joblib's own
backends, such an array is read-only for the tasks, and a change of it during the call may not reach them.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from weakref import ref

from msgspec import Struct, field

from mwpy._system.script import MAIN
from mwpy._transport import shared_objects
from mwpy._transport.codec import Codec
from mwpy._values.bounds import LARGE_BYTES
from mwpy._values.shares import Shared
from mwpy.executor import Executor, Future

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""One task of joblib: a function and its arguments."""

PATIENCE_S = 2.0
"""Seconds that a call waits for the first slave before it says so."""

WAITS = (
    "mwpy: joblib waits for a slave, and none has connected yet. Slaves on this machine take some seconds to start. "
    "Elsewhere, start slaves with the resource file; `mwpy doctor` finds out why they do not come"
)
"""What a call says that waits."""

Done = Callable[[Future[Any]], object]
"""What is called with the future of a batch that has ended."""


class Batches(Struct, eq=False):
    """The batches that were dispatched and have not ended. Any thread may use it.

    Args:
        executor: runs the batches.
        run: the function that runs a batch in a slave.
        most: how many batches may run at once.
    """

    executor: Executor
    run: Callable[[Any], Any]
    most: int = 1
    _waiting: deque[tuple[Any, Done]] = field(default_factory=deque)
    _running: int = 0
    """How many batches are submitted, or will be at once."""
    _submitted: set[Future[Any]] = field(default_factory=set)
    _cancels: int = 0
    """How often all batches were cancelled."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Not held while other code runs, because `done` may add the next batch."""

    def add(self, batch: Any, done: Done) -> None:
        """Submit a batch as soon as it may run, and call `done` when it has ended. If it cannot be submitted, it has
        ended with the error."""
        self._waiting.append((batch, done))
        self._submit()

    def cancel(self) -> None:
        """Forget the batches that wait, and end the others. Slaves that run one of them are killed."""
        with self._lock:
            self._cancels += 1
            self._waiting.clear()
            submitted = [*self._submitted]
        for future in submitted:
            future.cancel(kill=True)

    def wait_for_slave(self) -> None:
        """Wait until a slave has connected. After `PATIENCE_S`, say on standard error that one is missing."""
        if self.executor.num_slaves:
            return
        ready = self.executor.submit(_nothing)
        try:
            ready.result(PATIENCE_S)
        except TimeoutError:
            print(WAITS, file=sys.stderr)
            ready.result()
        finally:
            ready.cancel()

    def _submit(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or (self._running >= self.most and self.most < self.executor.num_slaves):
                    return
                batch, done = self._waiting.popleft()
                self._running += 1
                cancels = self._cancels
            try:
                future = self.executor.submit(self.run, batch)
            except Exception as error:
                future = Future(_nothing_runs)
                future.set_exception(error)
            with self._lock:
                self._submitted.add(future)
                cancelled = self._cancels > cancels
            if cancelled:
                future.cancel(kill=True)
            future.add_done_callback(partial(self._ended, done))

    def _ended(self, done: Done, future: Future[Any]) -> None:
        with self._lock:
            self._running -= 1
            self._submitted.discard(future)
        self._submit()
        done(future)


def _nothing_runs(_future: Future[Any]) -> None:
    """Kill nothing: the task of this future was not submitted."""


def _nothing() -> None:
    """Do nothing: its end shows that there is a slave."""


class RepeatedArrays(Struct, eq=False):
    """Finds arrays that come again in the arguments of the tasks of a call.

    Args:
        least_bytes: the size from which an array is shared; None if no array is.
        codec: pickles what is shared.
    """

    least_bytes: int | None
    codec: Codec = field(default_factory=Codec)
    _seen: dict[int, tuple[ref[Any], Shared | None]] = field(default_factory=dict)
    """The arrays by `id`, and their handles if they came again. An entry is dropped with its array."""

    def shared(self, calls: Iterable[Call]) -> list[Call]:
        """Replace arrays that came before by handles. Only arrays that are arguments themselves are found."""
        numpy = sys.modules.get("numpy")
        if numpy is None or self.least_bytes is None:
            return [*calls]
        return [
            (
                function,
                tuple(self._share(value) if isinstance(value, numpy.ndarray) else value for value in args),
                {
                    name: self._share(value) if isinstance(value, numpy.ndarray) else value
                    for name, value in kwargs.items()
                },
            )
            for function, args, kwargs in calls
        ]

    def _share(self, array: Any) -> Any:
        assert self.least_bytes is not None
        if array.nbytes < max(self.least_bytes, LARGE_BYTES) or array.dtype.hasobject:
            return array
        if type(array).__module__ == MAIN:  # slaves may not find its class
            return array
        key = id(array)
        array_ref, handle = self._seen.get(key, (None, None))
        if array_ref is None or array_ref() is not array:
            self._seen[key] = ref(array, partial(self._drop, key)), None
            return array
        if handle is None:
            handle = shared_objects.handle_of(array, self.codec)
            self._seen[key] = array_ref, handle
        return handle

    def _drop(self, key: int, gone: ref[Any]) -> None:
        known = self._seen.get(key)
        if known is not None and known[0] is gone:
            del self._seen[key]
