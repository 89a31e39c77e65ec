"""`mwpy.Executor`: slaves behind the interface of `concurrent.futures`."""

from __future__ import annotations

import concurrent.futures
import os
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, Unpack

from msgspec.structs import replace

from mwpy._roles.computation import MasterParts, start_local
from mwpy._roles.executor import Demand, ExecutorThread, OwnComputation, SharedComputation
from mwpy._roles.executor_future import Future
from mwpy._roles.own_overseer import own_overseer
from mwpy._roles.progress import ShowProgress, progress_of
from mwpy._system import clock, script
from mwpy._system.process import count_cores
from mwpy._system.script import loaded_script
from mwpy._transport.codec import codec_of
from mwpy._values.algorithm import REGISTRY, Initialized, TaskCall, refusal
from mwpy._values.errors import UsageError
from mwpy._values.options import Options
from mwpy._values.policy import Policies, TaskPolicy, check_keywords

__all__ = ["Executor", "Future"]

P = ParamSpec("P")
T = TypeVar("T")

MOST_ELSEWHERE = 100
"""For how many tasks in the queue of an executor of a master algorithm the master wants slaves, if slaves of other
machines can join it. It is as many as the default of `max_jobs`."""

OF_POOLS = {
    "max_workers": "slaves=N to mwpy.Executor (or, for mw.executor, to mwpy.local_master)",
    "max_tasks_per_child": "slave_max_tasks=N to mwpy.Executor or mwpy.local_master",
    "mp_context": 'slave_start="fork" or "spawn" to mwpy.Executor or mwpy.local_master',
}
"""Arguments of other executors, and what to give instead."""

NO_POLICY: Policies = {}
"""What a call has that gives no policy. Nobody changes it."""


class Executor(concurrent.futures.Executor):
    """Runs calls on slaves, as the executors of `concurrent.futures` do.

    Any thread may use it. If a task kills its slave, only its own future fails, and another slave starts. If a script
    makes it inside `if __name__ == "__main__":`, the slaves load the script, but not what is inside the guard.
    Everywhere else functions and classes of `__main__` travel by value, and so do lambdas.

    Args:
        slaves: how many slave processes on this machine; None for one per core, or for none with a resource file.
        resource_file: the file that is written for agents on other machines. They get modules by name, and everything
            that is defined in the script by value.
        system: the batch system in which an overseer of this executor keeps as many agents as the tasks need:
            `"htcondor"`, `"slurm"`, `"ssh"` (with `overseer_options=["--hosts", "hosts.txt"]`) or `"local"`. It needs a
            resource file. None for no overseer.
        max_jobs: how many jobs the overseer has in the queue at most. Each is an agent with one slave.
        overseer_options: more options of `mwpy oversee`, such as `["--line", "request_memory = 4GB"]`.
        initializer: called once in each slave, before its first task. If it raises an error, so does the task, and the
            next task of this slave calls it again.
        initargs: the arguments of the initializer.
        progress: whether the progress of all tasks is shown, as for `Master.map`. A function is called in a thread of
            the executor.
        slave_max_tasks, slave_max_memory, slave_start_timeout, slave_start: as for `mwpy.local_master`.
        run_database, run_database_sync, rerun, reuse_changed_code: as for `mwpy.local_master`.
        policy: the policies of all tasks, with the keywords of `mwpy.Policies`.

    Raises:
        UsageError: an argument is wrong, or this process is a slave.
        MwpyError: it cannot start.

    Examples:
        >>> with mwpy.Executor(slaves=2) as executor:          # doctest: +SKIP
        ...     futures = [executor.submit(pow, x, 2) for x in range(10)]
        ...     print(sum(future.result() for future in futures))
        285
    """

    def __init__(
        self,
        slaves: int | None = None,
        *,
        resource_file: str | os.PathLike[str] | None = None,
        system: str | None = None,
        max_jobs: int = 100,
        overseer_options: Sequence[str] = (),
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        progress: ShowProgress = None,
        slave_max_tasks: int | None = None,
        slave_max_memory: int | str | None = None,
        slave_start_timeout: float | None = None,
        slave_start: str | None = None,
        run_database: str | os.PathLike[str] | None = None,
        run_database_sync: str | None = None,
        rerun: str | None = None,
        reuse_changed_code: bool = False,
        **policy: Unpack[Policies],
    ) -> None:
        REGISTRY.enter("mwpy.Executor()")
        if script.is_imported_by_multiprocessing():
            raise refusal("mwpy.Executor()", "while multiprocessing imported the script")
        if slaves is not None and (not hasattr(slaves, "__index__") or slaves < (0 if resource_file else 1)):
            raise UsageError(f"an executor cannot have {slaves!r} slaves: give 1 or more, or None for one per core")
        wrap, shown = _wrap(initializer, initargs), progress_of(progress, None, name="tasks")
        _check(policy, ("slaves", *(Executor.__init__.__kwdefaults__ or ())))
        options = Options.of(
            slave_max_tasks=slave_max_tasks,
            slave_max_memory=slave_max_memory,
            slave_start_timeout=slave_start_timeout,
            slave_start=slave_start,
            run_database=None if run_database is None else os.fspath(run_database),
            run_database_sync=run_database_sync,
            rerun=rerun,
        )
        options = replace(options, reuse_changed_code=reuse_changed_code)
        if resource_file is None:
            if system is not None:
                raise UsageError(f"system={system!r} needs a resource file for its jobs: give resource_file, too")
            most = slaves or count_cores()
            loaded = loaded_script()
            computation = OwnComputation(partial(start_local, most, options, loaded), codec_of(loaded))
            thread = ExecutorThread(computation, policy, wrap, most)
        else:
            path = Path(resource_file).absolute()
            overseer = own_overseer(str(path), system, max_jobs, overseer_options)
            most = max_jobs + (slaves or 0)
            options = replace(options, resource_file=str(path))
            computation = OwnComputation(partial(start_local, slaves or 0, options, None), codec_of(None))
            thread = ExecutorThread(computation, policy, wrap, slaves or 0, Demand(most), overseer)
        thread.progress = shown
        self._start(thread, most)

    def _start(self, thread: ExecutorThread, most: int) -> None:
        self._max_workers = most  # some libraries ask each executor for this
        self._thread = thread
        self._kill, self._submit = thread.kill, thread.submit
        thread.start()
        weakref.finalize(self, thread.leave).atexit = False

    @property
    def num_slaves(self) -> int:
        """How many slaves are connected now. At the beginning none is, because slaves take a moment to start."""
        return self._thread.num_slaves

    @property
    def max_slaves(self) -> int:
        """How many slaves it wants at most: those on this machine, and `max_jobs` elsewhere. They may not be there yet,
        and others may join."""
        return self._max_workers

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit a call, which some slave will run.

        Args:
            fn: any function. It and the arguments are pickled in another thread, soon after this call: do not change
                them before the future is done. If one of them cannot be pickled, the future says so.

        Returns:
            The future of the call. Its `cancel` cancels the task if it was not sent, and `cancel(kill=True)` also if
            it runs.

        Raises:
            RuntimeError: the executor is shut down.
        """
        future: Future[T] = Future(self._kill)
        self._submit((future, fn, args, kwargs, NO_POLICY))
        return future

    def submit_call(self, call: TaskCall[T], **policy: Unpack[Policies]) -> Future[T]:
        """Like `submit`, with policies for this task.

        Args:
            call: what `f.task(...)` or `mwpy.task(f, ...)` made.
            policy: the keywords of `mwpy.Policies`. They override those of the executor.

        Raises:
            UsageError: a policy is unknown or wrong, and the message names it.

        Examples:
            >>> future = executor.submit_call(mwpy.task(pow, 2, 10), retry=False)  # doctest: +SKIP
        """
        TaskPolicy.of(**policy)
        future: Future[T] = Future(self._kill)
        self._submit((future, call.algorithm.function, call.args, call.kwargs, policy))
        return future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """Apply a function to each item on the slaves, and yield the values in the order of the items.

        Args:
            timeout: seconds after this call at which a value that is missing is a `TimeoutError`; None for no limit.
            chunksize: how many items are one task. With 1, short tasks travel together as well.
            buffersize: how many tasks may be submitted and not yielded. The iterables are read as values are yielded
                then, so they may be endless. None submits all items now.

        Raises:
            TypeError, ValueError: an argument is wrong.
        """
        if buffersize is not None and not isinstance(buffersize, int):
            raise TypeError("buffersize must be an integer or None")
        if buffersize is not None and buffersize < 1:
            raise ValueError("buffersize must be None or > 0")
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        until = None if timeout is None else clock.monotonic() + timeout
        rows: Iterator[tuple[Any, ...]] = zip(*iterables, strict=False)
        if chunksize == 1:
            return _values(self, fn, rows, buffersize, until)
        chunks = iter(lambda: (tuple(islice(rows, chunksize)),), ((),))
        return chain.from_iterable(_values(self, partial(_of_chunk, fn), chunks, buffersize, until))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls, and end the slaves when all tasks have ended. A second call does no harm.

        Args:
            wait: whether to wait for that.
            cancel_futures: whether the tasks that were not sent are cancelled.
        """
        self._thread.close(cancel_futures)
        if wait:
            self._thread.join()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the block as `shutdown` does. Ctrl-C also ends the tasks: it does not reach the slaves by itself."""
        if isinstance(error, KeyboardInterrupt):
            self._thread.give_up()
        self.shutdown()

    def terminate_workers(self) -> None:
        """Shut down at once: all tasks are cancelled, and the slaves that run one are killed."""
        self._thread.give_up()

    def kill_workers(self) -> None:
        """The same as `terminate_workers`."""
        self._thread.give_up()


def executor_of_master(
    master: MasterParts,
    initializer: Callable[..., object] | None,
    initargs: tuple[Any, ...],
    progress: ShowProgress,
    policy: Policies,
) -> Executor:
    """Make an executor that shares the slaves of a master. `Master.executor` explains the arguments."""
    io = master.access.io
    if master.access.drive is not None:
        raise UsageError(
            "mw.executor() needs slaves, and the tasks of this master run in the thread of the master itself: give "
            "slaves=1 (or --mw-local 1) instead of 0"
        )
    wrap, shown = _wrap(initializer, initargs), progress_of(progress, None, name="tasks")
    _check(policy)
    elsewhere = 0 if io.core.state.settings.only_here else MOST_ELSEWHERE
    thread = ExecutorThread(SharedComputation(master, io), policy, wrap, io.local_slaves, Demand(elsewhere))
    thread.progress = shown
    executor = Executor.__new__(Executor)
    executor._start(thread, max(1, io.local_slaves + elsewhere))
    return executor


def _check(policy: Policies, own: Sequence[str] = ()) -> None:
    """Check the policies of an executor.

    Args:
        own: the other keywords, if the caller has called `mwpy.Executor`.

    Raises:
        UsageError: one is unknown or wrong, or an argument of another executor; the caller's fault.
    """
    for name, instead in OF_POOLS.items():
        if name in policy:
            raise UsageError(f"{name!r} is no argument of an executor of mwpy: give {instead}")
    if own:
        check_keywords("mwpy.Executor()", own, policy)
    else:
        TaskPolicy.of(**policy)


def _values(
    executor: Executor,
    function: Callable[..., Any],
    rows: Iterator[tuple[Any, ...]],
    buffersize: int | None,
    until: float | None,
) -> Iterator[Any]:
    """Submit the calls now, and return an iterator of their values. It does not keep the executor alive."""
    futures = deque(executor.submit(function, *row) for row in islice(rows, buffersize))
    owner = weakref.ref(executor)

    def values() -> Iterator[Any]:
        try:
            while futures:
                if buffersize is not None and (alive := owner()) is not None:
                    futures.extend(alive.submit(function, *row) for row in islice(rows, 1))
                    del alive
                yield _value(futures.popleft(), until)
        finally:
            for future in futures:
                future.cancel()

    return values()


def _value(future: Future[Any], until: float | None) -> Any:
    """Wait for a value. Without it, the task is cancelled. Nothing here refers to the value after that."""
    try:
        try:
            return future.result(None if until is None else until - clock.monotonic())
        finally:
            future.cancel()
    finally:
        del future


def _of_chunk(function: Callable[..., T], rows: Iterable[tuple[Any, ...]]) -> list[T]:
    return [function(*row) for row in rows]


def _wrap(
    initializer: Callable[..., object] | None, initargs: tuple[Any, ...]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What makes the function that a slave runs for a function that was submitted."""
    if initializer is None:
        return _as_it_is
    if not callable(initializer):
        raise TypeError("initializer must be a callable")
    return partial(Initialized, uuid.uuid4().hex, initializer, initargs)


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function
