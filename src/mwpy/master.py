"""The master, as a master algorithm sees it.

A master has two threads: the thread of the master algorithm, which calls the methods here, and the `mwpy-io` thread,
which owns the core and the link (see `_roles/master_io.py`). They share submitted tasks, definitions, commands and
outcomes. For each of them, one thread appends and the other empties it, so no lock is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, ParamSpec, Self, TypeVar, TypeVarTuple, Unpack, cast, overload

from mwpy._core.master.state import AllocateSlaves, FreeSlave, TakeReports, Tell
from mwpy._core.master.totals import summary_of
from mwpy._roles.computation import CellTasks, Computation, follow_cells
from mwpy._roles.inbox import USED_BY_A_TASK, Access, Inbox, LoopCounts, kind_of_slave, whole_number
from mwpy._roles.maps import Call, MapItems, MapRun, items_of, sizes_of
from mwpy._roles.master_io import MasterIo
from mwpy._roles.progress import Figures, Progress, ShowProgress, progress_of, total_of
from mwpy._roles.submission import Calls, algorithm_of_call, check_map_key
from mwpy._system import clock, shadows
from mwpy._transport import shared_objects
from mwpy._transport.codec import Codec
from mwpy._values.algorithm import TaskCall, algorithm_of
from mwpy._values.bounds import SlaveId, TaskId
from mwpy._values.errors import UsageError
from mwpy._values.items import Grid
from mwpy._values.messagepack import PLAIN
from mwpy._values.messages import Report
from mwpy._values.options import LOOPBACK, page_address
from mwpy._values.phrases import counted
from mwpy._values.policy import FailureLimit, MaxFailures, Policies, TaskPolicy, check_sid
from mwpy._values.task import Result, UnrunnableTask

if TYPE_CHECKING:
    from mwpy.executor import Executor

__all__ = ["LocalMaster", "LoopCounts", "Master"]

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class ShownOptions(Policies, total=False):
    """The keywords of all maps, for type checkers."""

    progress: ShowProgress
    total: int | None


class MapOptions(ShownOptions, total=False):
    """The keywords of `Master.map`, for type checkers."""

    chunksize: int | None


class ResultOptions(ShownOptions, total=False):
    """The keywords of `Master.map_results`, for type checkers."""

    ordered: bool
    max_failures: FailureLimit


KindName = Literal["ordered", "intermingle", "unordered"]


class Master:
    """What a master algorithm drives. Made by `mwpy.main` or `mwpy.local_master`, used only by the thread that made it.

    Examples:
        >>> @mwpy.master_algorithm                             # doctest: +SKIP
        ... def master(mw: mwpy.Master, argv: list[str]) -> int:
        ...     print(sum(mw.map(square, range(100))))
        ...     return 0
    """

    def __init__(self, access: Access, codec: Codec, for_all: Policies) -> None:
        self._access = access
        self._inbox = Inbox(access, access.io.core.state.settings)
        self._calls = Calls.of(access.io, codec, for_all, self._inbox.refer)
        self._cell = CellTasks(access, self._inbox)
        if codec.main_by_value:
            follow_cells(self._cell)
        self._targets: dict[Callable[..., Any] | None, int] = {}
        """How many pending tasks are wanted, of one algorithm or (None) of all."""
        self._progress: Progress | None = None
        self._followed: dict[tuple[TaskId, int, str], int] = {}
        """How many bytes of each file `follow` has returned, by task, attempt and name."""

    def __reduce__(self) -> NoReturn:
        raise UsageError(USED_BY_A_TASK)

    # ---- submitting --------------------------------------------------------------------------------------

    def submit(self, call: TaskCall[Any], tag: Any = None, **policy: Unpack[Policies]) -> TaskId:
        """Submit a task, which some slave will run.

        Args:
            call: what `f.task(...)` or `mwpy.task(f, ...)` made. Its arguments are pickled now, and its function too if
                it travels by value. Results of earlier tasks among the arguments are `mwpy.result(task_id)`.
            tag: any object; it comes back unchanged with the result, and never leaves the master.
            policy: the keywords of `mwpy.Policies`. They override those of `@task_algorithm`. The seed of a task
                depends on `seed` and on how many tasks were submitted with the same seed before.

        Returns:
            The task's id.

        Raises:
            ArgumentNotPicklable: an argument cannot be pickled, and the message names it; the caller's fault.
            UsageError: a policy is unknown or wrong, or there is no result to which an argument refers, and the message
                names it; the caller's fault.
        """
        calls, io = self._calls, self._access.io
        terms = calls.terms(algorithm_of_call(call, "mw.submit"), policy)
        payload, buffers, key, refers = calls.task(terms, call.args, call.kwargs)
        with io.submitting:
            task_id = io.submissions.add(terms[0], terms[1], payload, buffers, tag, key, refers)
        if calls.keys:
            calls.keys.referable[task_id] = terms[0], key, payload if key is None else b""
        if io.link.asleep:
            io.link.wake()
        return task_id

    def share(self, obj: T) -> T:
        """Keep a large object for many tasks, and return a handle that stands for it in their arguments.

        Each task gets an object of its own. The object is sent once to each agent, and all slaves there use the same
        memory for its NumPy arrays, which are read-only. If what is not an array takes 1 MiB or more, all tasks of a
        slave get the same object, and must not change it. A notice says so.

        Args:
            obj: it is pickled now: later changes do not reach the tasks.

        Returns:
            The handle; for type checkers, it has the type of the object. When it is gone, the object is dropped.

        Raises:
            ArgumentNotPicklable: the object cannot be pickled; the caller's fault.

        Examples:
            >>> table = mw.share(numpy.load("table.npy"))      # doctest: +SKIP
            >>> values = mw.map(look_up, items, itertools.repeat(table))  # doctest: +SKIP
        """
        io = self._access.io  # only the owner may go on
        handle = shared_objects.handle_of(obj, self._calls.codec)
        if type(obj) not in PLAIN and shared_objects.is_for_each_slave(handle):
            kind = type(obj).__qualname__
            io.command(
                Tell(
                    f"mw.share: this {kind} has 1 MiB or more beside its arrays, so all tasks of a slave use the same "
                    f"object: they must not change it, but may change a copy of it"
                )
            )
        return cast(T, handle)

    def _fetched(self, ended: Sequence[Result[Any] | UnrunnableTask]) -> None:
        """The ends of tasks were fetched, so later tasks cannot refer to them."""
        self._inbox.fetched(ended)
        if self._calls.keys is not None:
            self._calls.keys.forget([each.task_id for each in ended])

    def with_task_policy(
        self, function: Callable[P, Any], tag: Any = None, **policy: Unpack[Policies]
    ) -> Callable[P, TaskId]:
        """Make a function that submits calls of `function` under a policy: for the builtin `map` and the like.

        Args:
            tag: as for `submit`; the same for all calls.
            policy: the policies of `submit`.

        Raises:
            UsageError: a policy is unknown or wrong, and the message names it.

        Examples:
            >>> submit = mw.with_task_policy(square, retry=False)  # doctest: +SKIP
            >>> ids = [submit(x) for x in range(10)]               # doctest: +SKIP
        """
        TaskPolicy.of(**policy)
        algorithm = self._calls.definitions.prepare(algorithm_of(function))

        def submit(*args: P.args, **kwargs: P.kwargs) -> TaskId:
            call: TaskCall[Any] = TaskCall(algorithm, args, kwargs)
            return self.submit(call, tag, **policy)

        return submit

    # ---- maps ----------------------------------------------------------------------------------------------

    @overload
    def map(
        self, function: Callable[..., R], points: Grid, /, **options: Unpack[MapOptions]
    ) -> Generator[R, None, None]: ...

    @overload
    def map(
        self, function: Callable[[A], R], iterable: Iterable[A], /, **options: Unpack[MapOptions]
    ) -> Generator[R, None, None]: ...

    @overload
    def map(
        self,
        function: Callable[[A, B], R],
        iterable: Iterable[A],
        second: Iterable[B],
        /,
        **options: Unpack[MapOptions],
    ) -> Generator[R, None, None]: ...

    @overload
    def map(
        self,
        function: Callable[..., R],
        iterable: Iterable[Any],
        second: Iterable[Any],
        third: Iterable[Any],
        /,
        *more: Iterable[Any],
        **options: Unpack[MapOptions],
    ) -> Generator[R, None, None]: ...

    def map(
        self,
        function: Callable[..., R],
        *iterables: Iterable[Any],
        chunksize: int | None = None,
        progress: ShowProgress = None,
        total: int | None = None,
        **policy: Unpack[Policies],
    ) -> Generator[R, None, None]:
        """Apply a function to each item on the slaves, and yield the values in the order of the items.

        The first items are submitted by this call. The others are read one after the other, and a limited number of
        them is in flight, so an iterable may be endless. The tasks end with the generator: when it is closed, when it
        raises, or when nobody refers to it any more, tasks that have not ended are cancelled.

        Args:
            function: a task algorithm or any other function.
            iterables: one iterable for each argument of the function. The shortest one ends the map. If the only one is
                a `mwpy.grid`, its items are keyword arguments.
            chunksize: the most items that may travel together, for code that was written for other pools. Each item is
                a task, and mwpy chooses how many of them travel together.
            progress: True shows a line on standard error if that is a terminal, a bar in a notebook, and in a log file
                or a pipe lines at growing intervals: the first after 10 s, and nothing for a map that ends within 2 s.
                "text" writes such lines everywhere, and the last one always. A function `(done, total)` is called at
                most ten times a second, in this thread, while values are requested.
            total: how many items there are, for `progress` and for `mwpy status`; None asks the iterables. It may be
                unknown.
            policy: the policies of `submit`. The seed of a task depends on `seed` and on the position of its item.

        Raises:
            UsageError: an argument or a policy is wrong, and the message names it. This call raises it.
            ArgumentNotPicklable: an item cannot be pickled. Raised when the item is read.
            TaskFailed: a task failed, when its value is requested. It names the item, the slave and the host. The map
                is closed then; use `map_results` to go on after failures.

        Examples:
            >>> sum(mw.map(square, range(1000)))               # doctest: +SKIP
            332833500
        """
        settings: Any = {"values": True, "sizes": sizes_of(chunksize)}
        return self._map(function, iterables, policy, progress, total, ordered=True, **settings)

    @overload
    def starmap(
        self,
        function: Callable[[Unpack[Ts]], R],
        items: Iterable[tuple[Unpack[Ts]]],  # noqa: UP044  # `*Ts` has another text in each version of Python
        chunksize: int | None = None,
        **options: Unpack[ShownOptions],
    ) -> Generator[R, None, None]: ...

    @overload
    def starmap(
        self,
        function: Callable[..., R],
        items: Iterable[Mapping[str, Any]],
        chunksize: int | None = None,
        **options: Unpack[ShownOptions],
    ) -> Generator[R, None, None]: ...

    def starmap(
        self,
        function: Callable[..., R],
        items: Iterable[Any],
        chunksize: int | None = None,
        *,
        progress: ShowProgress = None,
        total: int | None = None,
        **policy: Unpack[Policies],
    ) -> Generator[R, None, None]:
        """Like `map`, but each item has all arguments of a call: a tuple of them, or a dict of keyword arguments.

        Examples:
            >>> list(mw.starmap(pow, [(2, 5), {"base": 3, "exp": 2}]))  # doctest: +SKIP
            [32, 9]
        """
        settings: Any = {"values": True, "sizes": sizes_of(chunksize)}
        return self._map(function, (items,), policy, progress, total, star=True, ordered=True, **settings)

    @overload
    def imap_unordered(
        self,
        function: Callable[..., R],
        iterable: Grid,
        chunksize: int | None = None,
        **options: Unpack[ShownOptions],
    ) -> Generator[R, None, None]: ...

    @overload
    def imap_unordered(
        self,
        function: Callable[[A], R],
        iterable: Iterable[A],
        chunksize: int | None = None,
        **options: Unpack[ShownOptions],
    ) -> Generator[R, None, None]: ...

    def imap_unordered(
        self,
        function: Callable[..., R],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        *,
        progress: ShowProgress = None,
        total: int | None = None,
        **policy: Unpack[Policies],
    ) -> Generator[R, None, None]:
        """Like `map` with one iterable, but yield the values as they arrive."""
        settings: Any = {"values": True, "sizes": sizes_of(chunksize)}
        return self._map(function, (iterable,), policy, progress, total, ordered=False, **settings)

    @overload
    def map_results(
        self,
        function: Callable[..., R],
        points: Grid,
        /,
        **options: Unpack[ResultOptions],
    ) -> Generator[Result[R], None, None]: ...

    @overload
    def map_results(
        self,
        function: Callable[[A], R],
        iterable: Iterable[A],
        /,
        **options: Unpack[ResultOptions],
    ) -> Generator[Result[R], None, None]: ...

    @overload
    def map_results(
        self,
        function: Callable[..., R],
        iterable: Iterable[Any],
        second: Iterable[Any],
        /,
        *more: Iterable[Any],
        **options: Unpack[ResultOptions],
    ) -> Generator[Result[R], None, None]: ...

    def map_results(
        self,
        function: Callable[..., R],
        *iterables: Iterable[Any],
        ordered: bool = False,
        max_failures: FailureLimit = None,
        progress: ShowProgress = None,
        total: int | None = None,
        **policy: Unpack[Policies],
    ) -> Generator[Result[R], None, None]:
        """Like `map`, but yield a `Result` for each item: it says how the task ended, and failures close nothing.

        Args:
            ordered: whether the results come in the order of the items, or as they arrive.
            max_failures: at how many failures the map stops: `10`, or a percentage such as "5%", which counts from 100
                ended tasks on. This kills the tasks that run; with "10,finish" they may finish. None for no limit.
            progress: as for `map`; so is `total`.

        Returns:
            A generator of results. The tag of each is its item, and for a `mwpy.grid` the dict. With several iterables,
            it is the tuple of its items: a named tuple with the names of the function's parameters, if they are known.

        Raises:
            TooManyFailures: the map was stopped. All results that arrived were given out. `remaining` has the items
                that did not run: `mw.map_results(f, error.remaining)` continues; with several iterables,
                `mw.starmap_results(f, error.remaining)`.

        Examples:
            >>> points = mwpy.grid(mass=[1, 2], charge=range(3))       # doctest: +SKIP
            >>> table = mwpy.to_frame(mw.map_results(simulate, points))  # doctest: +SKIP
        """
        most = MaxFailures.of("max_failures", max_failures)
        return self._map(function, iterables, policy, progress, total, ordered=ordered, max_failures=most)

    @overload
    def starmap_results(
        self,
        function: Callable[[Unpack[Ts]], R],
        items: Iterable[tuple[Unpack[Ts]]],  # noqa: UP044  # as in `starmap`
        **options: Unpack[ResultOptions],
    ) -> Generator[Result[R], None, None]: ...

    @overload
    def starmap_results(
        self,
        function: Callable[..., R],
        items: Iterable[Mapping[str, Any]],
        **options: Unpack[ResultOptions],
    ) -> Generator[Result[R], None, None]: ...

    def starmap_results(
        self,
        function: Callable[..., R],
        items: Iterable[Any],
        *,
        ordered: bool = False,
        max_failures: FailureLimit = None,
        progress: ShowProgress = None,
        total: int | None = None,
        **policy: Unpack[Policies],
    ) -> Generator[Result[R], None, None]:
        """Like `map_results`, but each item has all arguments of a call, as for `starmap`.

        Args:
            items: tuples of positional arguments, or dicts of keyword arguments.
            ordered, max_failures, progress, total: as for `map_results`.

        Returns:
            A generator of results. The tag of each is its item; a tuple is a named tuple, as for `map_results`.

        Raises:
            TooManyFailures: as `map_results`. `mw.starmap_results(f, error.remaining)` continues.

        Examples:
            >>> points = [{"mass": 1}, {"mass": 1, "charge": 2}]       # doctest: +SKIP
            >>> table = mwpy.to_frame(mw.starmap_results(simulate, points))  # doctest: +SKIP
        """
        most = MaxFailures.of("max_failures", max_failures)
        return self._map(function, (items,), policy, progress, total, star=True, ordered=ordered, max_failures=most)

    def as_completed(
        self,
        calls: Iterable[TaskCall[R]],
        max_failures: FailureLimit = None,
        *,
        progress: ShowProgress = None,
        total: int | None = None,
        **policy: Unpack[Policies],
    ) -> Generator[Result[R], None, None]:
        """Submit calls of any task algorithms, and yield their results as they arrive. Otherwise it is like `map`.

        Args:
            calls: what `f.task(...)` and `mwpy.task(f, ...)` made; it is read lazily.
            max_failures: as for `map_results`. `remaining` of the error has calls.
            progress: as for `map`; so is `total`.

        Returns:
            A generator of results. The tag of each is its call.

            Each call may have another function and other policies, so each is a task of its own. For many short calls
            of one function, `imap_unordered` and `map_results` are faster.

        Examples:
            >>> for result in mw.as_completed([square.task(2), cube.task(3)]):  # doctest: +SKIP
            ...     print(result.algorithm, result.value)
        """
        TaskPolicy.of(**policy)
        check_map_key(policy)

        def call_of(call: TaskCall[R]) -> Call:
            return self._calls.terms(algorithm_of_call(call, "mw.as_completed"), policy), call.args, call.kwargs

        items = MapItems(iter(calls), call_of)
        shown, count, most = (
            progress_of(progress, "tasks"),
            total_of(total, (calls,)),
            MaxFailures.of("max_failures", max_failures),
        )
        return self._run(items, progress=shown, total=count, ordered=False, max_failures=most)

    def executor(
        self,
        *,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        progress: ShowProgress = None,
        **policy: Unpack[Policies],
    ) -> Executor:
        """Return an executor of `concurrent.futures` that runs its tasks on the slaves of this master.

        It is like `mwpy.Executor`, and has a thread of its own. So any thread may use it, and this thread may wait for
        its futures, use maps and submit tasks meanwhile. Its tasks end only as futures: `results` and `loop` leave
        them out. `shutdown`, or the end of a `with` block, ends only the executor: the master keeps its slaves. When
        the master ends without an exception, it waits for the tasks of its executors; otherwise it cancels them.

        Args:
            initializer: called once in each slave, before the first task of this executor there.
            initargs: the arguments of the initializer.
            progress: as for `mwpy.Executor`.
            policy: the policies of all tasks of the executor. They override those of the master.

        Raises:
            UsageError: an argument is wrong, or the tasks of this master run in this thread (`slaves=0`).

        Examples:
            >>> with mw.executor() as executor:                # doctest: +SKIP
            ...     future = executor.submit(pow, 2, 10)
            ...     squares = list(mw.map(square, range(10)))
            ...     print(future.result())
            1024
        """
        from mwpy.executor import executor_of_master

        return executor_of_master(self._access, self._calls, initializer, initargs, progress, policy)

    def _map(
        self,
        function: Callable[..., Any],
        iterables: tuple[Iterable[Any], ...],
        policy: Policies,
        progress: ShowProgress,
        total: int | None,
        star: bool = False,
        **settings: Any,
    ) -> Generator[Any, None, None]:
        """Start a map of a function. `star` says that each item has all arguments of a call, and `settings` are those
        of `MapRun`."""
        terms = self._calls.terms_of_map(function, policy)
        items = items_of(terms, function, iterables, self._inbox.settings, star=star)
        shown, count = progress_of(progress, algorithm_of(function).name), total_of(total, iterables)
        return self._run(items, progress=shown, total=count, **settings)

    def _run(self, items: MapItems, **settings: Any) -> Generator[Any, None, None]:
        return MapRun(self._access, self._inbox, self._calls, items, **settings).start()

    # ---- waiting ------------------------------------------------------------------------------------------

    def loop(self, timeout: float | None = None) -> LoopCounts:
        """Wait until something can be fetched: results, unrunnable tasks, or ordered slaves that connected or
        disconnected.

        Args:
            timeout: how long to wait at most, in seconds; None for as long as it takes.

        Returns:
            How much of each can be fetched.

        Raises:
            TooManyFailures: `max_failures` stops the whole computation. Other calls may raise it, too.
            UsageError: the timeout is not a number.
        """
        return self._inbox.loop(timeout)

    def loop_iterate(self, timeout: float = 0.05) -> LoopCounts:
        """Like `loop`, but return after `timeout` seconds in any case."""
        return self._inbox.loop(timeout)

    def results(self, *, unrunnable: bool = True) -> list[Result[Any]]:
        """Return how all tasks ended that have ended since the last call; each is returned once.

        Args:
            unrunnable: whether an unrunnable task is returned as a failed result, whose error is a `TaskUnrunnable`.
                False leaves these tasks to `unrunnable_tasks`.

        Returns:
            The results, oldest first; then those of unrunnable tasks. No result of a map is among them.
        """
        inbox = self._inbox
        fetched = inbox.fetch(inbox.results)
        if unrunnable and inbox.unrunnable:
            fetched += [task.result() for task in inbox.fetch(inbox.unrunnable)]
        self._fetched(fetched)
        return fetched

    def unrunnable_tasks(self) -> list[UnrunnableTask]:
        """Return all unrunnable tasks that `results` did not return; each is returned once.

        Call `results(unrunnable=False)` beside it.
        """
        fetched = self._inbox.fetch(self._inbox.unrunnable)
        self._fetched(fetched)
        return fetched

    def connected_ordered_slaves(self) -> list[SlaveId]:
        """Return the ordered and intermingle slaves that connected; each is returned once."""
        return self._inbox.fetch(self._inbox.connected)

    def disconnected_ordered_slaves(self) -> list[SlaveId]:
        """Return the ordered and intermingle slaves that are gone; each is returned once."""
        return self._inbox.fetch(self._inbox.disconnected)

    def cancel(self, task_ids: Iterable[TaskId], running: Literal["kill", "finish"] = "kill") -> list[TaskId]:
        """Cancel tasks.

        Tasks that have not started never start. Each cancelled task comes back as a failed result, whose `error` is
        `TaskCancelled`. Nobody is charged: the other tasks of a slave that is killed run again.

        Args:
            task_ids: what `submit` returned. Tasks that have ended stay as they are.
            running: what happens to those that run. `kill`: they are cancelled, and the slave that runs one is replaced
                by another. `finish`: they may finish, and their results come as usual. If their slave is lost before,
                they are cancelled.

        Returns:
            The ids of those tasks that had not ended, in ascending order. With `kill`, each of them is cancelled. With
            `finish`, `results` tells later which of them are.

        Raises:
            UsageError: there was no such task, or there is no such treatment of running tasks; the caller's fault.

        Examples:
            >>> cancelled = mw.cancel(ids)                     # doctest: +SKIP
            >>> for result in mw.results():                    # doctest: +SKIP
            ...     if isinstance(result.error, mwpy.TaskCancelled):
            ...         print("cancelled:", result.tag)
        """
        return self._inbox.cancel(task_ids, running)

    # ---- slaves ---------------------------------------------------------------------------------------------

    def allocate_slaves(self, amount: int = 1000, kind: KindName = "unordered") -> None:
        """Want more slaves of a kind; the resource file passes the number on to batch systems.

        Before the first call for unordered slaves, the master wants as many of them as there are tasks.

        Args:
            amount: how many more.
            kind: `ordered`, `intermingle` or `unordered`.

        Raises:
            UsageError: there is no such kind, or the amount is not a whole number.
        """
        self._access.io.command(AllocateSlaves(whole_number("amount", amount), kind_of_slave(kind)))

    def deallocate_slaves(self, amount: int = 0, kind: KindName = "unordered") -> None:
        """Want fewer slaves of a kind; no slave is stopped.

        Raises:
            UsageError: there is no such kind, or the amount is not a whole number.
        """
        self._access.io.command(AllocateSlaves(-whole_number("amount", amount), kind_of_slave(kind)))

    def free_slave(self, sid: SlaveId) -> None:
        """Make an ordered or intermingle slave unordered, as soon as it has finished the tasks that it holds.

        Raises:
            UsageError: the id is not a string.
        """
        check_sid("sid", sid)
        self._access.io.command(FreeSlave(sid))

    # ---- figures ----------------------------------------------------------------------------------------------

    def set_target_number(self, number: int, algorithm: Callable[..., Any] | None = None) -> None:
        """Set how many pending tasks (of one algorithm, or of all) you want in memory; advisory.

        Raises:
            UsageError: the number is not a whole number.
        """
        self._targets[algorithm] = whole_number("number", number)

    def get_target_number(self, algorithm: Callable[..., Any] | None = None) -> int:
        """The target number (of one algorithm, or of all); 0 if it was never set."""
        return self._targets.get(algorithm, 0)

    def pending_tasks(self, algorithm: Callable[..., Any] | None = None) -> int:
        """How many tasks (of one algorithm, or of all) are submitted and not sent to a slave, also by executors."""
        self._inbox.receive()
        if algorithm is None:
            return self._access.io.submissions.pending()
        defined = self._calls.definitions.define(algorithm_of(algorithm))
        with self._access.io.submitting:
            return self._access.io.submissions.pending(defined)

    def upto_target_number(self, algorithm: Callable[..., Any] | None = None) -> int:
        """How many tasks must be submitted to reach the target number; never negative."""
        return max(0, self.get_target_number(algorithm) - self.pending_tasks(algorithm))

    def num_runnable_tasks(self) -> int:
        """How many tasks are pending, blocked, delayed or at slaves. Those of executors do not count.

        A task that has ended does not count, although its result may not have been fetched, or may only arrive later.
        So a loop that ends when this is 0 can leave the last results behind: count the results that were fetched.
        """
        self._inbox.receive()
        return self._access.io.runnable()

    def num_unrunnable_tasks(self) -> int:
        """How many unrunnable tasks can be fetched."""
        self._inbox.receive()
        return len(self._inbox.unrunnable)

    def progress(self, show: ShowProgress = True, *, total: int | None = None) -> None:
        """Show the progress of all tasks from now on, until the computation ends.

        It is shown while the master waits, as for `map`, or for a future of `executor`. `--mw-progress` calls this
        before the master algorithm starts.

        Args:
            show: as `progress` of `map`; False shows it no longer.
            total: how many tasks there will be, also for `mwpy status`; None counts those that were submitted, and
                the items of open maps.

        Raises:
            UsageError: an argument has a wrong type; the caller's fault.

        Examples:
            >>> mw.progress(total=2000)                        # doctest: +SKIP
        """
        expected, shown, io = total_of(total), progress_of(show, "tasks", is_whole=True), self._access.io
        if self._progress is not None:
            io.users.algorithm.progress.end(self._progress)
        self._progress, io.expected = shown, expected

        def figures() -> Figures:
            jar, total = io.core.state.jar, expected
            if total is None and (unsubmitted := io.unsubmitted()) is not None:
                total = io.submissions.total + unsubmitted
            return Figures(jar.ended, total, jar.failed, io.num_slaves, jar.ends.reused)

        if shown is not None:
            shown.is_shared = not callable(show)
            io.users.algorithm.progress.begin(shown, figures)

    def reports(self) -> list[Report]:
        """Return what running tasks have sent with `mwpy.report` since the last call: the newest report of each.

        `loop` does not return for a report, because there may be many: wait with `mw.loop(timeout=1)`. In a map, call
        this between the results.

        Returns:
            The reports, oldest first, each once. Reports of attempts that have ended are left out, and so are those of
            executors. With `slaves=0` there are none, because this thread runs the tasks.

        Raises:
            TooManyFailures: `max_failures` stops the whole computation.

        Examples:
            >>> ids = [mw.submit(train.task(rate), tag=rate) for rate in rates]  # doctest: +SKIP
            >>> left = len(ids)                                # doctest: +SKIP
            >>> while left:                                    # doctest: +SKIP
            ...     mw.loop(timeout=1)
            ...     mw.cancel(report.task_id for report in mw.reports() if report.values["loss"] > 100)
            ...     left -= len(mw.results())
        """
        inbox = self._inbox
        inbox.receive()
        inbox.ask(TakeReports())
        fetched, inbox.reports = inbox.reports, {}
        wanted = [(tasks, report) for tasks, report in fetched.values() if tasks is None or not tasks.closed]
        for tasks, report in wanted:
            if tasks is not None:
                report.tag = tasks.item(report.task_id)
        return [report for _, report in wanted]

    def follow(self, task_id: TaskId) -> dict[str, bytes]:
        """Return what a running program has written since the last call, by the names in `follow` of its command.

        Its slave looks once a second. `loop` does not return for this: wait with `mw.loop(timeout=1)`. When the program
        has ended, the rest is in the result: `Outcome.followed` has the size and the end of each of these files.

        Args:
            task_id: a task of an `mwpy.command` with `follow`.

        Returns:
            The bytes, without the files that have not grown; empty if the task does not run. Of a file that grows by
            more than 48 KiB between two calls, a line says how many bytes are left out.

        Raises:
            UsageError: the task reports something else; the caller's fault.

        Examples:
            >>> sim = mwpy.command("simulate {alpha}", follow=["STDOUT"])          # doctest: +SKIP
            >>> task = mw.submit(sim.task(alpha=0.1))          # doctest: +SKIP
            >>> while not (results := mw.results()):           # doctest: +SKIP
            ...     mw.loop(timeout=1)
            ...     print(mw.follow(task).get("STDOUT", b"").decode(), end="")
        """
        inbox = self._inbox
        inbox.receive()
        inbox.ask(TakeReports())
        found = [report for _, report in inbox.reports.values() if report.task_id == task_id]
        for report in found:
            del inbox.reports[report.sid]
        if not found:
            return {}
        newest = max(found, key=lambda report: report.attempt)
        if not all(isinstance(value, tuple) for value in newest.values.values()):
            raise UsageError(f"task {task_id} reports values of its own: mw.reports() returns them")
        return {name: self._new_part((task_id, newest.attempt, name), *grown) for name, grown in newest.values.items()}

    def _new_part(self, file: tuple[TaskId, int, str], size: int, end: bytes) -> bytes:
        new = size - self._followed.get(file, 0)
        self._followed[file] = size
        left_out = b"[%d bytes are left out]\n" % (new - len(end)) if new > len(end) else b""
        return left_out + end[max(0, len(end) - new) :]

    def page(self, port: int | str = 0, *, host: str = LOOPBACK) -> Any:
        """Show a live page of this master in a browser: progress, rate, failures with their tracebacks, hosts, slaves,
        what each of them does, and why nothing moves. Print its address. `--mw-page` calls this.

        It needs `pip install 'mwpy-cluster[page]'`. Everybody who knows the token in the address can read the page. It
        ends with the master. A second call returns the same page.

        Args:
            port: the port on which it listens; 0 for any that is free. Or a text `PORT` or `HOST:PORT`.
            host: the interface: its name or address. By default, only this machine can reach the page.

        Returns:
            The page (`mwpy.page.Page`): `.url` is its address, and `.close()` ends it. A notebook shows a link.

        Raises:
            UsageError: the port is in use, or what it needs is not installed; the caller's fault.

        Examples:
            >>> mw.page(8787)                                  # doctest: +SKIP
            <mwpy page http://127.0.0.1:8787/?token=kXp1...>
        """
        if isinstance(port, str):
            host, port = page_address("port", port)
        return self._access.io.open_page(host, port)

    def status(self, *, detailed: bool = False) -> dict[str, Any]:
        """Return what the master does now: what `mwpy status RESOURCE_FILE --json` prints.

        Args:
            detailed: whether to include what each slave does, and what failed and was logged lately.

        Raises:
            MasterUnreachable: the master gave no answer for ten seconds.

        Examples:
            >>> mw.status()["tasks"]["pending"]                # doctest: +SKIP
            17
        """
        return self._access.io.status(detailed=detailed, is_here=self._access.drive is not None)

    def summary(self) -> str:
        """Return what was done until now, as a text of several lines: for each algorithm on each host the tasks, their
        failures by kind, and the lost attempts by cause.

        `--mw-summary` writes it to standard error at the end.

        Examples:
            >>> print(mw.summary())                            # doctest: +SKIP
        """
        return summary_of(self._access.io.core.totals)


# The master of a REPL, a notebook or a plain script: it has its slaves on this machine, and no script of its own.
#
# What it shows of itself: its slaves, its tasks, its rate and its last failure, as text.
#
# The figures are those that the core keeps anyway. They are read in the thread of the master algorithm while the I/O
# thread changes them, so a figure may be one group of tasks behind another one.


def _shown(io: MasterIo, is_closed: bool) -> str:
    """Show a master, also after its end and to threads that cannot use it."""
    jar, answers = io.core.state.jar, io.core.answers
    failed, cancelled, ended = jar.failed, jar.cancelled, jar.ended
    running = sum(bool(held.spans) for held in list(jar.held.values()))
    waiting, done = max(0, io.submissions.total - ended - running), max(0, ended - failed - cancelled)
    state = "closed" if is_closed else counted(io.num_slaves, "slave")
    tasks = f"{waiting} waiting, {running} running, {done} done, {failed} failed, {cancelled} cancelled"
    rate = 0.0 if is_closed else answers.rate.at(clock.monotonic())
    last = "".join(map(str, list(answers.failures.newest.values())[-1:]))
    failure = f"; last failure: {last}" if last else ""
    return f"<mwpy: {state}; tasks: {tasks}, {rate:.3g} per second{failure}>"


class LocalMaster(Master):
    """A master with slaves on this machine. Made by `mwpy.local_master`, or by `mwpy.open`, which is the same function.

    Its slaves end with the `with` block. Without a block, they end with `close()`, when nothing refers to the master
    any more, or with this process.

    Examples:
        >>> mw = mwpy.local_master(slaves=2)                   # doctest: +SKIP
        >>> sum(mw.map(square, range(100)))                    # doctest: +SKIP
        328350
        >>> mw                                                 # doctest: +SKIP
        <mwpy: 2 slaves; tasks: 0 waiting, 0 running, 100 done, 0 failed, 0 cancelled, 950 per second>
        >>> mw.close()                                         # doctest: +SKIP
    """

    def __init__(self, computation: Computation, codec: Codec, policy: Policies) -> None:
        super().__init__(computation.access, codec, for_all=policy)
        self._computation = computation
        self._io = computation.access.io
        self._is_closed = False

    def close(self) -> None:
        """End the computation and its slaves. A second call does nothing.

        Tasks that have not ended are lost, except those of `executor`: this call waits for them.

        Raises:
            UsageError: another thread made this master.
        """
        self._end(finished=True)

    def __repr__(self) -> str:
        return _shown(self._io, self._is_closed)

    def _repr_html_(self) -> str:
        from html import escape  # only here, because it takes time to load

        page = None if self._is_closed else self._io.page
        return f"<pre>{escape(repr(self))}</pre>{'mw.page() shows more' if page is None else page._repr_html_()}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            shadows.explain(error)
        self._end(finished=error is None)

    def _end(self, finished: bool) -> None:
        ended = False
        try:
            if finished and not self._is_closed:
                self._computation.end_executors(give_up=False)
            ended = finished
        finally:
            self._computation.end(ended)
            self._is_closed = True
