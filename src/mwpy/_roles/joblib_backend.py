"""The backend `mwpy` of joblib: a call of `joblib.Parallel` runs its tasks on slaves.

joblib reads the user's tasks, makes batches of them, and dispatches a batch whenever another has ended. So this backend
decides little: how many tasks a batch has (as many as some portions of a map, see `_roles/maps.py`), how many batches
are submitted at once, and which arrays are shared.

joblib calls this object in the thread that called `Parallel`, and in the executor's thread when a batch has ended. An
exception of `submit` in the latter would be lost, and the call would wait forever. So `submit` raises nothing: a batch
that cannot be submitted is a batch that has failed.

A batch runs in a slave under joblib's sequential backend. A nested call therefore never waits for slaves that wait for
it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from functools import cache, partial
from typing import Any
from weakref import finalize, ref

from attrs import Factory, define
from joblib.parallel import (
    BatchedCalls,
    FallbackToBackend,
    ParallelBackendBase,
    SequentialBackend,
    register_parallel_backend,
)

from mwpy._roles.maps import PORTION_BYTES, PortionSizes
from mwpy._system import clock, script
from mwpy._transport import shared_objects
from mwpy._transport.codec import Codec
from mwpy._values.algorithm import REGISTRY
from mwpy._values.bounds import LARGE_BYTES
from mwpy._values.errors import UsageError
from mwpy._values.shares import Shared
from mwpy.executor import Executor, Future

NAME = "mwpy"

PORTIONS = 4
"""How many portions of a map a batch is. joblib needs more time for a batch than mwpy for a portion: with one portion,
a thousand tasks of 1 ms took a tenth longer on a busy machine."""

OF_JOBLIB = ("context", "max_nbytes", "mmap_mode", "prefer", "require", "temp_folder", "verbose")
"""What joblib passes to every backend. All other keywords are those of an executor."""


def register(make_default: bool = False) -> None:
    """Add the backend to joblib's table."""
    register_parallel_backend(NAME, MwpyBackend, make_default=make_default)


def run_batch(batch: BatchedCalls) -> tuple[float, list[Any]]:
    """Run a batch in a slave. Return how many seconds this took, and the values of its tasks."""
    register()  # a task may name this backend in a nested call
    began = clock.monotonic()
    values = batch()
    return clock.monotonic() - began, values


def is_nested(level: int | None) -> bool:
    """Whether this is a task in a slave, or in a process that another backend has started."""
    return REGISTRY.is_slave or (bool(level) and script.is_child_of_multiprocessing())


_MAKING = threading.Lock()
"""Held to make the executor of a process."""


@cache
def _executor_of(_process: int) -> Executor:
    return Executor()


def kept_executor() -> Executor:
    """Return the executor of all calls that name no other: slaves should not start again for each of them.

    It is made at the first call, and ends with this process. A process that was forked from another makes its own.
    """
    with _MAKING:
        return _executor_of(os.getpid())


# joblib keeps a number of batches dispatched. It says with `n_jobs` how many tasks may run at once, so no more batches
# than that are submitted. If there are no more slaves than that, all are submitted, so that each slave has its next
# batch already.
#
# `Parallel` is often called with one array in the arguments of all tasks. The first time it travels as any argument.
# When it comes again, it is shared: sent once to each agent, and used in place by all slaves there. As with joblib's
# own backends, such an array is read-only for the tasks, and a change of it during the call may not reach them.


Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""One task of joblib: a function and its arguments."""

Done = Callable[[Future[Any]], object]
"""What is called with the future of a batch that has ended."""


@define(eq=False, repr=False)
class Batches:
    """The batches that were dispatched and have not ended. Any thread may use it.

    Args:
        executor: runs the batches.
        run: the function that runs a batch in a slave.
        most: how many batches may run at once.
    """

    executor: Executor
    run: Callable[[Any], Any]
    most: int = 1
    _waiting: deque[tuple[Any, Done]] = Factory(deque)
    _submitted: set[Future[Any]] = Factory(set)
    _lock: threading.Lock = Factory(threading.Lock)
    """Not held while `done` is called, because it may add the next batch."""

    def add(self, batch: Any, done: Done) -> None:
        """Submit a batch as soon as it may run, and call `done` when it has ended. If it cannot be submitted, it has
        ended with the error."""
        self._waiting.append((batch, done))
        self._submit()

    def cancel(self) -> None:
        """Forget the batches that wait, and end the others. Slaves that run one of them are killed."""
        with self._lock:
            self._waiting.clear()
            submitted = [*self._submitted]
        for future in submitted:
            future.cancel(kill=True)

    def _submit(self) -> None:
        while True:
            with self._lock:
                most, running = self.most, len(self._submitted)
                slaves = max(self.executor.max_slaves, self.executor.num_slaves)
                if not self._waiting or (most <= running and most < slaves):
                    return
                batch, done = self._waiting.popleft()
                try:
                    future = self.executor.submit(self.run, batch)
                except Exception as error:
                    future = Future(None)
                    future.set_exception(error)
                self._submitted.add(future)
            future.add_done_callback(partial(self._ended, done))

    def _ended(self, done: Done, future: Future[Any]) -> None:
        with self._lock:
            self._submitted.discard(future)
        self._submit()
        done(future)


@define(eq=False, repr=False)
class RepeatedArrays:
    """Finds arrays that come again in the arguments of the tasks of a call.

    Args:
        least_bytes: the size from which an array is shared; None if no array is.
        codec: pickles what is shared.
    """

    least_bytes: int | None
    codec: Codec = Factory(Codec)
    _seen: dict[int, tuple[ref[Any], Shared | None]] = Factory(dict)
    """The arrays by `id`, and their handles if they came again. An entry is dropped with its array."""

    def shared(self, calls: Iterable[Call]) -> list[Call]:
        """Replace arrays that came before by handles. Only arrays that are arguments themselves are found."""
        if "numpy" not in sys.modules or self.least_bytes is None:
            return [*calls]
        return [
            (function, (*map(self._share, args),), {name: self._share(value) for name, value in kwargs.items()})
            for function, args, kwargs in calls
        ]

    def _share(self, array: Any) -> Any:
        if not isinstance(array, sys.modules["numpy"].ndarray) or array.dtype.hasobject:
            return array
        if array.nbytes < max(self.least_bytes or 0, LARGE_BYTES):
            return array
        if type(array).__module__ == script.MAIN:  # slaves may not find its class
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


class MwpyBackend(ParallelBackendBase):  # type: ignore[misc]  # joblib has no types
    """What `parallel_config(backend="mwpy")` makes. joblib calls its methods, and their names are joblib's.

    Args:
        nesting_level: how many parallel calls this one is nested in; None if joblib sets it later.
        inner_max_num_threads: refused by joblib, because mwpy divides the cores itself.
        executor: runs the tasks.
        options: the keywords of an executor that is made for this object.

    Raises:
        UsageError: an executor and options are given; the caller's fault.
    """

    supports_retrieve_callback = True
    default_n_jobs = -1

    def __init__(
        self,
        nesting_level: int | None = None,
        inner_max_num_threads: int | None = None,
        *,
        executor: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads)
        if executor is not None and options:
            raise UsageError(f"the backend mwpy got executor and {', '.join(options)}: give only one of both")
        if executor is not None and not isinstance(executor, Executor):
            remedy = "mw.executor()" if hasattr(executor, "executor") else "mwpy.Executor(...)"
            raise UsageError(f"the backend mwpy got a {type(executor).__name__} as executor: give executor={remedy}")
        self._options = options
        self._given: Executor | None = executor
        self._batches: Batches | None = None
        self._n_jobs = 1
        self._sizes = PortionSizes()
        self._arrays = RepeatedArrays(None)

    # ---- how many ------------------------------------------------------------------------------------------

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """How many tasks can run at once. It is 1 where joblib should run them in this process itself.

        None and negative numbers count from all slaves, as joblib counts from all cores. Those that the executor wants
        count, because few of them may be connected when a call begins. The number is 2 at least: one slave is no reason
        to run the tasks here.

        Raises:
            ValueError: `n_jobs` is 0.
        """
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs == 1 or is_nested(self.nesting_level):
            return 1
        if n_jobs is not None and n_jobs > 1:
            return n_jobs
        executor = self._opened().executor
        slaves = max(executor.max_slaves, executor.num_slaves)
        return max(2, slaves + 1 + (-1 if n_jobs is None else n_jobs))

    def compute_batch_size(self) -> int:
        """How many tasks the next batch has: one until a batch has ended, then as many as some portions of a map."""
        return self._sizes.next(None, PORTION_BYTES, self._n_jobs)

    def get_nested_backend(self) -> tuple[SequentialBackend, None]:
        """What nested calls use: they run serially in the slave."""
        return SequentialBackend(nesting_level=(self.nesting_level or 0) + 1), None

    # ---- a call --------------------------------------------------------------------------------------------

    def configure(self, n_jobs: int = 1, parallel: Any = None, **options: Any) -> int:
        """Get ready for calls, and return how many tasks can run at once.

        Raises:
            FallbackToBackend: joblib should run the tasks in this process.
        """
        self._options = self._options | {name: value for name, value in options.items() if name not in OF_JOBLIB}
        number = self.effective_n_jobs(n_jobs)
        if number == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        self.parallel = parallel
        self._n_jobs = self._opened().most = number
        shares = options.get("mmap_mode", "r") == "r"
        self._arrays = RepeatedArrays(options.get("max_nbytes") if shares else None)
        return number

    def start_call(self) -> None:
        """joblib calls this at the beginning of each call. Arrays may have changed since the last one."""
        self._arrays = RepeatedArrays(self._arrays.least_bytes)

    def submit(self, func: BatchedCalls, callback: Done) -> None:
        """Run a batch on a slave, and call `callback` with its future when it has ended."""
        func.items = self._arrays.shared(func.items)
        self._opened().add(func, callback)

    apply_async = submit  # its name before joblib 1.5

    def retrieve_result_callback(self, out: Future[tuple[float, list[Any]]]) -> list[Any]:
        """Return the values of a batch that has ended, or raise its error."""
        try:
            seconds, values = out.result()
        except CancelledError:
            raise RuntimeError(
                "the tasks were cancelled, because another call failed in the same block of parallel_config: give each "
                "of the calls that run at the same time a block of its own"
            ) from None
        self._sizes.ended(len(values), seconds / PORTIONS)
        self._sizes.read(len(values), len(values), 0.0, 1.0)
        return values

    def abort_everything(self, ensure_ready: bool = True) -> None:  # noqa: ARG002
        """End all tasks: the call has failed, or nobody wants its results any more. Later calls are possible."""
        if self._batches is not None:
            self._batches.cancel()

    def terminate(self) -> None:
        """A call has ended, or the `with` block of several calls. The executor stays open for later ones."""
        self.parallel = None
        self._sizes = PortionSizes()
        self._arrays = RepeatedArrays(None)

    # ---- the executor --------------------------------------------------------------------------------------

    def _opened(self) -> Batches:
        """The way to the executor, which is made now if it was not needed before."""
        if self._batches is None:
            executor = self._given
            if executor is None and self._options:
                executor = Executor(**self._options)
                finalize(self, executor.shutdown, wait=False)  # the garbage collection may call this in any thread
            self._batches = Batches(kept_executor() if executor is None else executor, run_batch)
        return self._batches
