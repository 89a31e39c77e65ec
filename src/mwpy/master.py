"""The master, as a master algorithm sees it.

A master has two threads: the thread of the master algorithm, which calls the methods here, and the `mwpy-io` thread,
which owns the core and the link (see `_roles/master_io.py`). They share submitted tasks, definitions, commands and
outcomes. For each of them, one thread appends and the other empties it, so no lock is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NoReturn, ParamSpec, TypeVar, TypeVarTuple, Unpack, cast, overload

from mwpy._core.master.commands import AllocateSlaves, DeallocateSlaves, FreeSlave
from mwpy._roles.access import USED_BY_A_TASK, Access
from mwpy._roles.code_watch import CodeWatch
from mwpy._roles.definitions import Definitions
from mwpy._roles.held_results import HeldResults
from mwpy._roles.inbox import Inbox, LoopCounts
from mwpy._roles.map_run import MapOptions, MapRun, algorithm_of_call, most_of
from mwpy._roles.portions import MOST_ITEMS, Call, MapItems, items_of, with_terms
from mwpy._roles.progress import Progress, Report, progress_of
from mwpy._roles.targets import TargetNumbers, kind_of_slave, whole_number
from mwpy._roles.terms import TermsOf
from mwpy._system.modules import is_interactive
from mwpy._transport import shared_objects
from mwpy._transport.codec import Codec
from mwpy._values.algorithm import TaskCall, algorithm_of
from mwpy._values.errors import UsageError
from mwpy._values.ids import SlaveId, TaskId
from mwpy._values.max_failures import FailureLimit, MaxFailures
from mwpy._values.policy import Policies, TaskPolicy, check_sid
from mwpy._values.seeds import Seeds
from mwpy._values.task import Result, UnrunnableTask

__all__ = ["LoopCounts", "Master"]

A = TypeVar("A")
B = TypeVar("B")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

KindName = Literal["ordered", "intermingle", "unordered"]


class Master:
    """What a master algorithm drives. Made by `mwpy.main` or `mwpy.local_master`, used only by the thread that made it.

    Example:
        >>> @mwpy.master_algorithm                             # doctest: +SKIP
        ... def master(mw: mwpy.Master, argv: list[str]) -> int:
        ...     print(sum(mw.map(square, range(100))))
        ...     return 0
    """

    def __init__(self, access: Access, codec: Codec, main_by_value: bool, for_all: Policies) -> None:
        self._access = access
        self._codec = codec
        watch = CodeWatch(access) if main_by_value and is_interactive() else None
        self._definitions = Definitions(codec, main_by_value, watch)
        self._terms = TermsOf(self._definitions, for_all, codec)
        self._inbox = Inbox(access, access.io.core.state.settings)
        self._held = HeldResults(access, self._inbox)
        self._seeds = Seeds()
        self._targets = TargetNumbers()

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
        algorithm = algorithm_of_call(call, "mw.submit")
        terms = self._terms
        defined, (checked, extras) = terms.defined(algorithm), terms.default
        payload, buffers = self._codec.dumps_call(call.args, call.kwargs, defined.name)
        refers = self._held.refer(buffers) if buffers else ()
        if policy or algorithm.policy:
            checked, extras = terms.policy(algorithm, policy)
        if extras is not None:
            payload = extras.add(payload, None if extras.seed is None else self._seeds.next(extras.seed))
        io = self._access.io
        if refers:
            task_id = io.submissions.add_referring(defined, checked, payload, buffers, tag, refers)
        else:
            task_id = io.submissions.add(defined, checked, payload, buffers, tag)
        if io.link.asleep:
            io.link.wake()
        return task_id

    def share(self, obj: T) -> T:
        """Keep a large object for many tasks, and return a handle that stands for it in their arguments.

        The task gets the object itself. It is sent once to each agent, and all slaves there use the same memory. So
        NumPy arrays are read-only. Other objects are unpickled once in each slave: a task must not change them.

        Args:
            obj: it is pickled now: later changes do not reach the tasks.

        Returns:
            The handle; for type checkers, it has the type of the object. When it is gone, the object is dropped.

        Raises:
            ArgumentNotPicklable: the object cannot be pickled; the caller's fault.

        Example:
            >>> table = mw.share(numpy.load("table.npy"))      # doctest: +SKIP
            >>> values = mw.map(look_up, items, itertools.repeat(table))  # doctest: +SKIP
        """
        self._access.check()
        return cast(T, shared_objects.share(obj, self._codec))

    def with_task_policy(
        self, function: Callable[P, Any], tag: Any = None, **policy: Unpack[Policies]
    ) -> Callable[P, TaskId]:
        """Make a function that submits calls of `function` under a policy: for the builtin `map` and the like.

        Args:
            tag: as for `submit`; the same for all calls.
            policy: the policies of `submit`.

        Raises:
            UsageError: a policy is unknown or wrong, and the message names it.

        Example:
            >>> submit = mw.with_task_policy(square, retry=False)  # doctest: +SKIP
            >>> ids = [submit(x) for x in range(10)]               # doctest: +SKIP
        """
        TaskPolicy.of(**policy)
        algorithm = self._definitions.prepare(algorithm_of(function))

        def submit(*args: P.args, **kwargs: P.kwargs) -> TaskId:
            call: TaskCall[Any] = TaskCall(algorithm, args, kwargs)
            return self.submit(call, tag, **policy)

        return submit

    # ---- maps ---------------------------------------------------------------------------------------------

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
        progress: bool | Report | None = None,
        total: int | None = None,
        **policy: Unpack[Policies],
    ) -> Generator[R, None, None]:
        """Apply a function to each item on the slaves, and yield the values in the order of the items.

        The first items are submitted by this call. The others are read one after the other, and a limited number of
        them is in flight, so an iterable may be endless. The tasks end with the generator: when it is closed, when it
        raises, or when nobody refers to it any more, tasks that have not ended are cancelled.

        Args:
            function: a task algorithm or any other function.
            iterables: one iterable for each argument of the function. The shortest one ends the map.
            chunksize: the most items that may travel together, for code that was written for other pools. Each item is
                a task, and mwpy chooses how many of them travel together.
            progress: True shows a line on standard error. A function `(done, total)` is called at most ten times a
                second, in this thread, while values are requested.
            total: how many items there are, for `progress`; None asks the iterables. It may be unknown.
            policy: the policies of `submit`. The seed of a task depends on `seed` and on the position of its item.

        Raises:
            UsageError: an argument or a policy is wrong, and the message names it. This call raises it.
            ArgumentNotPicklable: an item cannot be pickled. Raised when the item is read.
            TaskFailed: a task failed, when its value is requested. It names the item, the slave and the host. The map
                is closed then; use `map_results` to go on after failures.

        Example:
            >>> sum(mw.map(square, range(1000)))               # doctest: +SKIP
            332833500
        """
        most = most_of(chunksize)
        items = self._items(function, iterables, policy)
        shown = progress_of(progress, total, iterables, algorithm_of(function).name)
        return self._run(items, ordered=True, values=True, progress=shown, most=most)

    def starmap(
        self,
        function: Callable[[Unpack[Ts]], R],
        tuples: Iterable[tuple[Unpack[Ts]]],  # noqa: UP044  # `*Ts` has another text in each version of Python
        chunksize: int | None = None,
        **policy: Unpack[Policies],
    ) -> Generator[R, None, None]:
        """Like `map`, but each item is a tuple of all arguments of a call.

        Example:
            >>> list(mw.starmap(pow, [(2, 5), (3, 2)]))        # doctest: +SKIP
            [32, 9]
        """
        most, terms = most_of(chunksize), self._terms.of_map(function, policy)
        items = with_terms(terms, iter(tuples), partial(map, tuple), self._inbox.settings)
        return self._run(items, ordered=True, values=True, most=most)

    def imap_unordered(
        self,
        function: Callable[[A], R],
        iterable: Iterable[A],
        chunksize: int | None = None,
        **policy: Unpack[Policies],
    ) -> Generator[R, None, None]:
        """Like `map` with one iterable, but yield the values as they arrive."""
        most = most_of(chunksize)
        return self._run(self._items(function, (iterable,), policy), ordered=False, values=True, most=most)

    @overload
    def map_results(
        self,
        function: Callable[[A], R],
        iterable: Iterable[A],
        /,
        *,
        ordered: bool = False,
        max_failures: FailureLimit = None,
        **policy: Unpack[Policies],
    ) -> Generator[Result[R], None, None]: ...

    @overload
    def map_results(
        self,
        function: Callable[..., R],
        iterable: Iterable[Any],
        second: Iterable[Any],
        /,
        *more: Iterable[Any],
        ordered: bool = False,
        max_failures: FailureLimit = None,
        **policy: Unpack[Policies],
    ) -> Generator[Result[R], None, None]: ...

    def map_results(
        self,
        function: Callable[..., R],
        *iterables: Iterable[Any],
        ordered: bool = False,
        max_failures: FailureLimit = None,
        **policy: Unpack[Policies],
    ) -> Generator[Result[R], None, None]:
        """Like `map`, but yield a `Result` for each item: it says how the task ended, and failures close nothing.

        Args:
            ordered: whether the results come in the order of the items, or as they arrive.
            max_failures: at how many failures the map stops: `10`, or a percentage such as "5%", which counts from 100
                ended tasks on. This kills the tasks that run; with "10,finish" they may finish. None for no limit.

        Returns:
            A generator of results. The tag of each is its item; with several iterables, the tuple of its items.

        Raises:
            TooManyFailures: the map was stopped. All results that arrived were given out. `remaining` has the items
                that did not run: `mw.map_results(f, error.remaining)` continues.
        """
        limit = MaxFailures.of(max_failures)
        return self._run(self._items(function, iterables, policy), ordered=ordered, limit=limit)

    def as_completed(
        self, calls: Iterable[TaskCall[R]], max_failures: FailureLimit = None, **policy: Unpack[Policies]
    ) -> Generator[Result[R], None, None]:
        """Submit calls of any task algorithms, and yield their results as they arrive. Otherwise it is like `map`.

        Args:
            calls: what `f.task(...)` and `mwpy.task(f, ...)` made; it is read lazily.
            max_failures: as for `map_results`. `remaining` of the error has calls.

        Returns:
            A generator of results. The tag of each is its call.

        Example:
            >>> for result in mw.as_completed([square.task(2), cube.task(3)]):  # doctest: +SKIP
            ...     print(result.algorithm, result.value)
        """
        TaskPolicy.of(**policy)

        def named(some: Sequence[TaskCall[R]]) -> Iterator[Call]:
            for call in some:
                terms = self._terms.of(algorithm_of_call(call, "mw.as_completed"), policy)
                yield *terms, call.args, call.kwargs

        return self._run(MapItems(iter(calls), named), ordered=False, limit=MaxFailures.of(max_failures))

    def _items(self, function: Callable[..., Any], iterables: tuple[Iterable[Any], ...], policy: Policies) -> MapItems:
        return items_of(self._terms.of_map(function, policy), iterables, self._inbox.settings)

    def _run(
        self,
        items: MapItems,
        *,
        ordered: bool,
        values: bool = False,
        progress: Progress | None = None,
        limit: MaxFailures | None = None,
        most: int = MOST_ITEMS,
    ) -> Generator[Any, None, None]:
        shared = self._access, self._inbox, self._held, self._codec
        return MapRun(*shared, items, ordered, values, progress, limit, most).start()

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
        return LoopCounts(*self._inbox.loop(timeout))

    def loop_iterate(self, timeout: float = 0.05) -> LoopCounts:
        """Like `loop`, but return after `timeout` seconds in any case."""
        return LoopCounts(*self._inbox.loop(timeout))

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
        self._held.fetched(fetched)
        return fetched

    def unrunnable_tasks(self) -> list[UnrunnableTask]:
        """Return all unrunnable tasks that `results` did not return; each is returned once.

        Call `results(unrunnable=False)` beside it.
        """
        fetched = self._inbox.fetch(self._inbox.unrunnable)
        self._held.fetched(fetched)
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

        Example:
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
        self._access.io.command(AllocateSlaves(whole_number(amount), kind_of_slave(kind)))

    def deallocate_slaves(self, amount: int = 0, kind: KindName = "unordered") -> None:
        """Want fewer slaves of a kind; no slave is stopped.

        Raises:
            UsageError: there is no such kind, or the amount is not a whole number.
        """
        self._access.io.command(DeallocateSlaves(whole_number(amount), kind_of_slave(kind)))

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
        self._targets.set(number, algorithm)

    def get_target_number(self, algorithm: Callable[..., Any] | None = None) -> int:
        """The target number (of one algorithm, or of all); 0 if it was never set."""
        return self._targets.get(algorithm)

    def pending_tasks(self, algorithm: Callable[..., Any] | None = None) -> int:
        """How many tasks (of one algorithm, or of all) are submitted and not sent to a slave."""
        self._inbox.receive()
        if algorithm is None:
            return self._access.io.submissions.pending()
        return self._access.io.submissions.pending(self._definitions.define(algorithm_of(algorithm)))

    def upto_target_number(self, algorithm: Callable[..., Any] | None = None) -> int:
        """How many tasks must be submitted to reach the target number; never negative."""
        return max(0, self.get_target_number(algorithm) - self.pending_tasks(algorithm))

    def num_runnable_tasks(self) -> int:
        """How many tasks are pending, blocked, delayed or at slaves."""
        self._inbox.receive()
        return self._access.io.submissions.runnable()

    def num_unrunnable_tasks(self) -> int:
        """How many unrunnable tasks can be fetched."""
        self._inbox.receive()
        return len(self._inbox.unrunnable)
