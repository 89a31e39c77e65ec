"""`mwpy.Executor`: slaves behind the interface of `concurrent.futures`.

`submit` encodes a call in the thread that calls it, and submits it to the master. A thread of the executor unpickles
the values and calls the callbacks of futures. It owns a master, or shares that of a master algorithm (see
`_roles/users.py`).

Only the I/O thread of the master knows which tasks were sent. So `Future.cancel` asks it to cancel a task that was not
sent, and waits for the answer.

A future in the arguments is a reference to a result, as `mwpy.result`: the core blocks the task until the value is
there. The core keeps the value of a task from the first reference until the task has ended; then the thread of the
executor gives it the value, if it came too late. Later references take the value from the future.

The thread does not refer to the executor. When nobody refers to the executor any more, it is shut down. When the
interpreter ends, all executors are shut down, and the interpreter waits for their tasks, as `concurrent.futures` does.
"""

from __future__ import annotations

import concurrent.futures
import os
import sys
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, _base
from functools import partial
from itertools import chain, islice
from queue import Empty
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, Unpack

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.state import Actions, CancelTasks, GiveResult, HoldResults, ReleaseResults, Running
from mwpy._roles.computation import Computation, follow_cells, open_local
from mwpy._roles.inbox import FORKED, SHOW_S, Access, given_by, raise_failure
from mwpy._roles.master_io import MasterIo
from mwpy._roles.progress import Figures, OpenProgress, Progress, ShowProgress, careful, progress_of
from mwpy._roles.submission import Calls
from mwpy._roles.users import User
from mwpy._system import clock, live_line
from mwpy._transport.codec import Codec
from mwpy._values.algorithm import REGISTRY, Algorithm, Initialized, TaskCall, algorithm_of
from mwpy._values.bounds import Buffer
from mwpy._values.errors import DependencyFailed, OutOfTime, TaskCancelled, TaskFailed, UsageError, shown_in_ipython
from mwpy._values.items import Grid
from mwpy._values.phrases import counted, text_of
from mwpy._values.policy import Policies, TaskPolicy, check_keywords, merged
from mwpy._values.task import ReferringBuffers, Result, ResultReference, UnrunnableTask, failed

__all__ = ["Executor", "Future"]

P = ParamSpec("P")
T = TypeVar("T")

MOST_ELSEWHERE = 100
"""How many slaves of other machines an executor of a master algorithm seems to have. It is as many as the default of
`max_jobs`."""

NO_POLICY: Policies = {}
"""What a call has that gives no policy. Nobody changes it."""


Row = tuple[Any, ...] | dict[str, Any]
"""The arguments of a call of `Executor.map`: positional ones, or keywords."""

SHUT_DOWN = "cannot schedule new futures after shutdown"

INTERPRETER_ENDS = "cannot schedule new futures after interpreter shutdown"

Begin = Callable[[], tuple[MasterIo, Codec, Computation | None]]
"""Begins to use a master: returns its I/O thread, what encodes, and the computation if it is the executor's own."""


class Future(concurrent.futures.Future[T], ResultReference):
    """The end of a task that an executor runs, as `concurrent.futures.Future` has it. `cancel` can also kill. In the
    arguments of a later task of the same executor, it stands for its value, as `mwpy.result` does.

    Its attributes cost memory for each pending task, so those that most futures do not need are defaults of the class.
    """

    task_id: int = 0
    """The id of the task in the master; 0 if it cannot be submitted."""
    tasks: Tasks | None
    """Those of the executor."""
    unwanted: bool = False
    """Whether somebody has cancelled it, or is about to."""
    call: tuple[Defined, bytes | None, bytes] | None = None
    """With a run database: the algorithm, the key and the encoded call, as `TaskKeys.referable`."""
    _state: str
    _condition: threading.Condition
    """The state of the base class, and the lock that all its changes need."""

    def __init__(self, tasks: Tasks | None) -> None:
        concurrent.futures.Future.__init__(self)
        self.tasks = tasks

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def cancel(self, *, kill: bool = False) -> bool:
        """Cancel the task.

        Args:
            kill: whether a task that was sent is cancelled, too. The slave that runs it is replaced by another. Without
                this, a task that was sent goes on.

        Returns:
            Whether the task is cancelled.
        """
        if self.tasks is not None and not self.done():
            self.tasks.cancel([self], kill=kill)
        return self.cancelled()

    def running(self) -> bool:
        """Whether a slave has the task. Then only `cancel(kill=True)` cancels it."""
        return not self.done() and self.tasks is not None and self.tasks.has_slave(self.task_id)

    def be_cancelled(self) -> None:
        """The task will not run to its end. Those that wait for it learn this now."""
        if super().cancel():
            with self._condition:
                if self._state == _base.CANCELLED:
                    self.set_running_or_notify_cancel()

    def finish(self, result: Result[Any]) -> None:
        """The task has ended. Unpickling its value may raise anything, and this concerns no other task."""
        result.tag = None  # this future, which says nothing in an error
        try:
            value = result.value
        except TaskFailed as failure:
            if self.unwanted and isinstance(failure, TaskCancelled):
                return self.be_cancelled()
            self.end(error=exception_of(failure.with_traceback(None)))
        except BaseException as error:
            self.end(error=error)
        else:
            self.end(value)

    def end(self, value: Any = None, error: BaseException | None = None) -> None:
        """Set the value or the error, unless the future is cancelled. A callback that raises harms no other future."""
        try:
            if error is None:
                self.set_result(value)
            else:
                self.set_exception(error)
        except (concurrent.futures.InvalidStateError, SystemExit):  # SystemExit ends a thread in silence elsewhere
            pass
        except BaseException as raised:
            own = threading.current_thread()
            threading.excepthook(threading.ExceptHookArgs((type(raised), raised, raised.__traceback__, own)))


def exception_of(failure: TaskFailed) -> BaseException:
    """Return the exception of the task itself, if it could be rebuilt here. Its cause is the `TaskFailed`.

    In IPython, it has one attribute more, because nothing else tells IPython which frames to show.
    """
    raised = failure.__cause__
    if raised is None or not failure.remote_traceback:
        return failure
    failure.__cause__, raised.__cause__ = None, failure
    if live_line.shell_of_ipython() and not hasattr(raised, "_render_traceback_"):
        object.__setattr__(raised, "_render_traceback_", partial(shown_in_ipython, raised))
    return raised


class Tasks:
    """The tasks of one executor: any thread submits them, and a thread of their own gives results to futures.

    As the owner of tasks, it gets their ends.

    Args:
        begin: begins to use the master, in this thread.
        wrap: makes the function that a slave runs for a function that was submitted; None if it is the same.
        progress: what shows the progress of all tasks.
        policy: the policies of all tasks.
    """

    io: MasterIo
    user: User
    _calls: Calls

    def __init__(
        self,
        begin: Begin,
        wrap: Callable[[Callable[..., Any]], Callable[..., Any]] | None,
        progress: Progress | None,
        policy: Policies,
    ) -> None:
        self._begin: Begin | None = begin
        self._wrap = wrap
        self._progress = progress
        self._policy = policy
        self._computation: Computation | None = None
        self.open: dict[int, Future[Any]] = {}
        """The tasks that have not ended, by their ids."""
        self._held: set[int] = set()
        """Those of them whose values the core keeps, because later tasks refer to them."""
        self._given: list[int] = []
        """The ended tasks to which the task refers that is submitted just now."""
        self._process = os.getpid()
        self._closing = False
        self._refusal: Exception | None = None
        """Why no task can be submitted any more."""
        self.broken: Exception | None = None
        """Why no task of this executor could end any more."""
        self._lock = threading.RLock()
        """Held to submit a call, to take a task out of `open`, and to decide that nothing is submitted any more. A
        signal handler or the garbage collection may use the executor while the same thread holds it."""
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        """Why the computation did not start."""
        self._ended = self._failed = 0
        """How many tasks have ended, and how many of them have failed. A cancelled task has not failed."""
        self._before_cell = 0
        """The last task that was submitted before the cell of a notebook that runs."""
        self._wrapped: tuple[object, Algorithm | None] = None, None
        """With an initializer: the function that was submitted last and that slaves find by its name, and what they
        run."""
        self.thread = threading.Thread(target=self._run, name="mwpy-executor", daemon=False)

    # ---- for any thread ----

    def start(self) -> None:
        """Start, and wait until the computation has started.

        Raises:
            MwpyError: it cannot start.
        """
        _all.add(self)
        self.thread.start()
        try:
            self._ready.wait()
        except BaseException:  # Ctrl-C: nobody gets this executor
            self.leave()
            raise
        if self._failure is not None:
            self.thread.join()
            raise self._failure
        follow_cells(self)

    def submit(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], policy: Policies
    ) -> Future[Any]:
        """Submit a task. If it cannot be pickled, its future says so.

        Raises:
            RuntimeError: the executor is shut down or broken.
            UsageError: this process was forked from that of the executor.
        """
        if os.getpid() != self._process:
            raise UsageError(FORKED)  # its thread is not here
        future: Future[Any] = Future(self)
        with self._lock:
            if self._refusal is not None:
                raise self._refusal.with_traceback(None)  # else each call would add to the traceback of the ones before
            io, keys = self.io, self._calls.keys
            refers: Sequence[int] = ()
            outer, self._given = self._given, []  # a signal handler may submit within this call
            try:
                terms = self._calls.terms(self._algorithm(function), policy)
                payload, buffers, key, refers = self._calls.task(terms, args, kwargs)
                if keys is not None:
                    future.call = terms[0], key, payload if key is None else b""
                with io.submitting:
                    before, number = io.submissions.total, 0
                    try:
                        number = io.submissions.add(terms[0], terms[1], payload, buffers, future, key, refers, self)
                    finally:  # Ctrl-C may have come when the task was added; no call is here
                        if not number and io.submissions.total > before:
                            number = io.submissions.total
                        if number:
                            future.task_id = number
                            self.open[number] = future
                            io.users.submitted += self._computation is None
            except Exception as error:
                future.end(error=error)
                return future
            finally:
                if keys is not None:
                    keys.forget(refers)
                if self._given:
                    io.command(ReleaseResults(self._given, io.submissions.total))
                self._given = outer
        if io.link.asleep:
            io.link.wake()
        return future

    def _refer(self, buffers: Sequence[Buffer]) -> Sequence[int]:
        """Make the core keep the values of the futures in the arguments of a call. Return the ids of their tasks.

        Raises:
            UsageError: one is of another executor, or is no future; the caller's fault.
        """
        futures = _futures_in(buffers)
        if any(future.tasks is not self for future in futures):
            raise UsageError(
                "a future of another executor is in the arguments: pass its value (future.result()), or submit both "
                "tasks to the same executor"
            )
        for future in futures:
            number = future.task_id
            if self._calls.keys is not None and future.call is not None:
                self._calls.keys.referable[number] = future.call
            if number not in self.open:
                self.io.command(self._end_of(future))
                self._given.append(number)
            elif number not in self._held:
                self._held.add(number)
                self.io.command(HoldResults([number]))
        return sorted({future.task_id for future in futures})

    def _end_of(self, future: Future[Any]) -> GiveResult:
        """Wait for a future that is about to end, and return its end as the core keeps it."""
        number = future.task_id
        error = CancelledError() if future.cancelled() else future.exception()
        if error is None:
            entry, large = self._calls.codec.dumps_value(future.result())
            return GiveResult(number, [entry, *map(bytes, large)])  # copies, because the value may be changed
        if isinstance(error, DependencyFailed):
            return GiveResult(number, (), error.cause, error.dependency)
        which = f"task {number}" if number else "a task that was never sent"
        how = "was cancelled" if isinstance(error, CancelledError) else f"failed: {type(error).__qualname__}"
        return GiveResult(number, (), f"{which} {how}: {text_of(error)}".splitlines()[0].removesuffix(": "), number)

    def cancel(self, futures: Sequence[Future[Any]], *, kill: bool) -> None:
        """Cancel tasks that were not sent, or all with `kill`.

        The I/O thread does not wait for its own answer: the garbage collection may call this there.
        """
        futures = [future for future in futures if not future.done()]
        for future in futures:
            future.unwanted = True
        ids = sorted(future.task_id for future in futures if future.task_id)
        if not ids:
            return
        command = CancelTasks.of(ids, Running.KILL if kill else Running.LEAVE)
        if kill:
            self.io.command(command)
        cancelled = {*(ids if kill else self.io.cancel_unsent(command))}
        for future in futures:
            if future.task_id in cancelled:
                future.be_cancelled()

    def has_slave(self, number: int) -> bool:
        """Whether a slave has a task, as far as this thread can see."""
        held = [span for tasks in list(self.io.core.state.jar.held.values()) for span in list(tasks.spans)]
        return any(number in span.ids for span in held)

    def _algorithm(self, function: Callable[..., Any]) -> Algorithm:
        """Return the algorithm of a function, with the initializer."""
        if self._wrap is None:
            return algorithm_of(function)
        known, algorithm = self._wrapped
        if algorithm is None or known is not function:
            definitions = self._calls.definitions
            algorithm = definitions.prepare(algorithm_of(self._wrap(function)))
            if definitions.reference_of(algorithm_of(function)):  # else it may change between two calls
                self._wrapped = function, algorithm
        return algorithm

    def close(self, cancel: bool = False) -> None:
        """Take no more tasks, and end when all tasks have ended.

        Args:
            cancel: whether the tasks that were not sent are cancelled.
        """
        if os.getpid() != self._process:
            return  # this process was forked, perhaps while the executor's thread, which is not here, had the lock
        with self._lock:
            self._refuse(RuntimeError(SHUT_DOWN))
        if cancel:
            self.cancel([*self.open.values()], kill=False)
        self.leave()

    def leave(self) -> None:
        """Take no more tasks, as `close`, when nobody can submit any. The garbage collection may call this."""
        self._closing = True
        if self._ready.is_set() and self._failure is None:
            self.user.outcomes.put(Actions())

    def join(self) -> None:
        """Wait until the thread has ended. A callback of a future, which this thread calls, does not wait."""
        if threading.current_thread() is not self.thread:
            self.thread.join()

    def give_up(self) -> None:
        """Cancel all tasks, and kill those that run."""
        if os.getpid() != self._process:
            return  # as in `close`
        self.close()
        self.cancel([*self.open.values()], kill=True)

    def cell_begins(self) -> None:
        """Remember which tasks are of earlier cells of a notebook."""
        self._before_cell = self.io.submissions.total

    def cell_interrupted(self) -> None:
        """Cancel the tasks that were submitted since the cell began, and kill those that run."""
        self.cancel([future for number, future in self.open.copy().items() if number > self._before_cell], kill=True)

    def end_with_interpreter(self) -> None:
        """Wait for all tasks at the end of the interpreter, and say so if it takes long. Ctrl-C gives them up."""
        if not self.thread.is_alive():
            return
        with self._lock:
            self._refuse(RuntimeError(INTERPRETER_ENDS))
        self.leave()
        try:
            self.thread.join(SHOW_S)
            if count := len(self.open):
                left = counted(count, "task")
                print(
                    f"mwpy: this process waits for {left} of an executor; Ctrl-C cancels", file=sys.stderr, flush=True
                )
            self.thread.join()
        except KeyboardInterrupt:
            self.give_up()
            raise

    def _refuse(self, reason: Exception) -> None:
        if self._refusal is None:
            self._refusal = reason

    # ---- the thread itself ----

    def _run(self) -> None:
        try:
            self._start()
        except BaseException as error:
            self._failure = error
            return
        finally:
            self._ready.set()
        finished = False
        try:
            while not self._is_over():
                self._serve()
            finished = True
        except BaseException as error:
            self._break(error)
        finally:
            self._end(finished)

    def _start(self) -> None:
        assert self._begin is not None
        self.io, codec, self._computation = self._begin()
        self._calls, users = Calls.of(self.io, codec, self._policy, self._refer), self.io.users
        self.user = users.algorithm if self._computation else User(progress=OpenProgress(users.algorithm.progress))
        self.user.owner = self
        if self._computation is None:
            users.executors.append(self.user)
        if self._progress is not None:
            shown = Progress(careful(self._progress.display))
            self.user.progress.begin(shown, self._figures)

    def _end(self, finished: bool) -> None:
        try:
            if self._computation is not None:
                self._computation.end(finished)
            else:
                self.io.users.executors.remove(self.user)
                self.user.progress.end_all()
        finally:
            self._begin = None  # this may end the computation of a master algorithm

    def _figures(self) -> Figures:
        return Figures(self._ended, self._ended + len(self.open), self._failed, self.io.num_slaves)

    def _is_over(self) -> bool:
        """Whether all tasks have ended, and no other can come."""
        with self._lock:
            if not self._closing or self.open:
                return False
            self._refuse(RuntimeError(SHUT_DOWN))
            return True

    def _serve(self) -> None:
        """Wait for ends of tasks, and give them to their futures."""
        user = self.user
        try:
            outcome = user.outcomes.get(timeout=SHOW_S if user.progress else None)
        except Empty:
            outcome = Actions()
        if isinstance(outcome, BaseException):
            raise_failure(outcome)
        if outcome.logged:
            from mwpy._roles.log_records import give  # only here, because it loads logging

            for group in outcome.logged:
                give(group, self.io)
        for ended in outcome.owned.get(self, ()):
            with self._lock:
                if ended.task_id in self._held:
                    self._held.discard(ended.task_id)
                    self.io.command(given_by(ended))
                    self.io.command(ReleaseResults([ended.task_id], self.io.submissions.total))
                future = self.open.pop(ended.task_id)  # last, so that `_break` finds it
            result = ended.result() if isinstance(ended, UnrunnableTask) else ended
            future.finish(result)
            self._ended += 1
            self._failed += failed(result) and not future.cancelled()
        if outcome.ends_at is not None:
            raise OutOfTime(max(0.0, outcome.ends_at - clock.monotonic()), self.io.submissions.runnable())
        user.progress.update()

    def _break(self, error: BaseException) -> None:
        """The master is out of time, or has failed: our fault. No task of this executor can end any more."""
        broken: Exception
        if isinstance(error, OutOfTime):
            broken = error
        else:
            broken = BrokenExecutor(f"the executor is broken: {error}")
            broken.__cause__ = error
        with self._lock:
            self._refusal = self.broken = broken
            left = self.open.copy()
        self.io.command(CancelTasks.of(sorted(left), Running.KILL))
        for future in left.values():
            future.end(error=broken)


_all: weakref.WeakSet[Tasks] = weakref.WeakSet()
"""Those of this process."""


def _end_all() -> None:
    for each in list(_all):
        each.end_with_interpreter()


threading._register_atexit(_end_all)  # type: ignore[attr-defined]  # as concurrent.futures; atexit is too late


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
            `"htcondor"`, `"slurm"`, `"sge"`, `"pbs"`, `"ssh"` (with `overseer_options=["--hosts", "hosts.txt"]`) or
            `"local"`. It needs a resource file. None for no overseer.
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
        given = {**locals()}
        for name in ("self", "policy"):
            del given[name]
        REGISTRY.enter("mwpy.Executor()")
        check_keywords("mwpy.Executor()", given, policy)
        wrap = _wrap(given.pop("initializer"), given.pop("initargs"))
        shown = progress_of(given.pop("progress"), "tasks")

        def begin() -> tuple[MasterIo, Codec, Computation]:
            computation, codec = open_local(**given, least=1)
            return computation.access.io, codec, computation

        self._start(Tasks(begin, wrap, shown, policy), max_jobs)

    def _start(self, tasks: Tasks, most_elsewhere: int) -> None:
        self._tasks = tasks
        tasks.start()
        elsewhere = 0 if tasks.io.core.state.settings.only_here else most_elsewhere
        self._max_workers = max(1, tasks.io.local_slaves + elsewhere)  # some libraries ask each executor for this
        weakref.finalize(self, tasks.leave).atexit = False

    @property
    def num_slaves(self) -> int:
        """How many slaves are connected now. At the beginning none is, because slaves take a moment to start."""
        return self._tasks.io.num_slaves

    @property
    def max_slaves(self) -> int:
        """How many slaves it wants at most: those on this machine, and `max_jobs` elsewhere. They may not be there yet,
        and others may join."""
        return self._max_workers

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit a call, which some slave will run.

        Args:
            fn: any function. It and the arguments are pickled now: later changes do not reach the task. If one of them
                cannot be pickled, the future says so.

        Returns:
            The future of the call. Its `cancel` cancels the task if it was not sent, and `cancel(kill=True)` also if
            it runs.

        Raises:
            RuntimeError: the executor is shut down.
        """
        return self._tasks.submit(fn, args, kwargs, NO_POLICY)

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
        return self._tasks.submit(call.algorithm.function, call.args, call.kwargs, policy)

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
            iterables: one iterable for each argument of the function. If the only one is a `mwpy.grid`, its items are
                keyword arguments.
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
        is_grid = len(iterables) == 1 and isinstance(iterables[0], Grid)
        rows: Iterator[Row] = iter(iterables[0]) if is_grid else zip(*iterables, strict=False)
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
        self._tasks.close(cancel_futures)
        if wait:
            self._tasks.join()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the block as `shutdown` does. Ctrl-C also ends the tasks: it does not reach the slaves by itself."""
        if isinstance(error, KeyboardInterrupt):
            self._tasks.give_up()
        self.shutdown()

    def terminate_workers(self) -> None:
        """Shut down at once: all tasks are cancelled, and the slaves that run one are killed."""
        self._tasks.give_up()

    kill_workers = terminate_workers


def executor_of_master(
    access: Access,
    calls: Calls,
    initializer: Callable[..., object] | None,
    initargs: tuple[Any, ...],
    progress: ShowProgress,
    policy: Policies,
) -> Executor:
    """Make an executor that shares the slaves of a master. `Master.executor` explains the arguments."""
    io = access.io
    if access.drive is not None:
        raise UsageError(
            "mw.executor() needs slaves, and the tasks of this master run in the thread of the master itself: give "
            "slaves=1 (or --mw-local 1) instead of 0"
        )
    wrap, shown = _wrap(initializer, initargs), progress_of(progress, "tasks")
    check_keywords("mw.executor()", ("initializer", "initargs", "progress"), policy)
    policies = merged(calls.for_all, policy)

    def begin(_: Access = access) -> tuple[MasterIo, Codec, None]:  # this argument keeps the master alive
        return io, calls.codec, None

    executor = Executor.__new__(Executor)
    executor._start(Tasks(begin, wrap, shown, policies), MOST_ELSEWHERE)
    return executor


def _futures_in(buffers: Sequence[Buffer]) -> list[Future[Any]]:
    """Return the futures in the arguments of a call.

    Raises:
        UsageError: there is another reference to a result: no thread knows which task of the master it means.
    """
    references = buffers.references if isinstance(buffers, ReferringBuffers) else ()
    if any(type(each) is ResultReference for each in references):
        raise UsageError("mwpy.result has no meaning in an executor: pass the future of the other task itself")
    return [each for each in references if isinstance(each, Future)]


def _values(
    executor: Executor,
    function: Callable[..., Any],
    rows: Iterator[Row],
    buffersize: int | None,
    until: float | None,
) -> Iterator[Any]:
    """Submit the calls now, and return an iterator of their values. It does not keep the executor alive."""
    futures = deque(_with_row(executor.submit, row, function) for row in islice(rows, buffersize))
    owner, tasks = weakref.ref(executor), executor._tasks

    def values() -> Iterator[Any]:
        try:
            while futures:
                if buffersize is not None and (alive := owner()) is not None:
                    futures.extend(_with_row(alive.submit, row, function) for row in islice(rows, 1))
                    del alive
                yield _value(futures.popleft(), until)
        finally:
            tasks.cancel(futures, kill=False)

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


def _with_row(function: Callable[..., T], row: Row, *first: Any) -> T:
    """Call a function with the arguments of a row, after other ones."""
    return function(*first, **row) if isinstance(row, dict) else function(*first, *row)


def _of_chunk(function: Callable[..., T], rows: Iterable[Row]) -> list[T]:
    return [_with_row(function, row) for row in rows]


def _wrap(
    initializer: Callable[..., object] | None, initargs: tuple[Any, ...]
) -> Callable[[Callable[..., Any]], Callable[..., Any]] | None:
    """What makes the function that a slave runs for a function that was submitted; None if it is the same."""
    if initializer is None:
        return None
    if not callable(initializer):
        raise TypeError("initializer must be a callable")
    return partial(Initialized, uuid.uuid4().hex, initializer, initargs)
