"""How a master applies functions to items: `map` and its variants, the first part of `mwpy.Master`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack, overload

from mwpy._roles.map_run import MapOptions, MapRun, algorithm_of_call, most_of
from mwpy._roles.parts import MasterParts
from mwpy._roles.portions import MOST_ITEMS, Call, MapItems, items_of, with_terms
from mwpy._roles.progress import Progress, ShowProgress, progress_of
from mwpy._roles.terms import check_map_key
from mwpy._roles.watching import Watching
from mwpy._values.algorithm import TaskCall, algorithm_of
from mwpy._values.max_failures import FailureLimit, MaxFailures
from mwpy._values.policy import Policies, TaskPolicy
from mwpy._values.task import Result

if TYPE_CHECKING:
    from mwpy.executor import Executor

__all__ = ["Maps"]

A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class Maps(Watching):
    """The maps of a master. `mwpy.Master` adds everything else that a master algorithm drives."""

    def __init__(self, parts: MasterParts) -> None:
        super().__init__(parts.access, parts.inbox)
        self._parts = parts

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
            iterables: one iterable for each argument of the function. The shortest one ends the map.
            chunksize: the most items that may travel together, for code that was written for other pools. Each item is
                a task, and mwpy chooses how many of them travel together.
            progress: True shows a line on standard error if that is a terminal, a bar in a notebook, and lines at
                growing intervals in a log file; in a pipe it shows nothing. "text" writes these lines everywhere. A
                function `(done, total)` is called at most ten times a second, in this thread, while values are
                requested.
            total: how many items there are, for `progress`; None asks the iterables. It may be unknown.
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
        most = most_of(chunksize)
        items = self._items(function, iterables, policy)
        shown = progress_of(progress, total, iterables, algorithm_of(function).name)
        return self._run(items, ordered=True, values=True, progress=shown, most=most)

    def starmap(
        self,
        function: Callable[[Unpack[Ts]], R],
        tuples: Iterable[tuple[Unpack[Ts]]],  # noqa: UP044  # `*Ts` has another text in each version of Python
        chunksize: int | None = None,
        *,
        progress: ShowProgress = None,
        total: int | None = None,
        **policy: Unpack[Policies],
    ) -> Generator[R, None, None]:
        """Like `map`, but each item is a tuple of all arguments of a call.

        Examples:
            >>> list(mw.starmap(pow, [(2, 5), (3, 2)]))        # doctest: +SKIP
            [32, 9]
        """
        most, terms = most_of(chunksize), self._parts.terms.of_map(function, policy)
        items = with_terms(terms, iter(tuples), partial(map, tuple), self._parts.inbox.settings)
        shown = progress_of(progress, total, (tuples,), algorithm_of(function).name)
        return self._run(items, ordered=True, values=True, progress=shown, most=most)

    def imap_unordered(
        self,
        function: Callable[[A], R],
        iterable: Iterable[A],
        chunksize: int | None = None,
        *,
        progress: ShowProgress = None,
        total: int | None = None,
        **policy: Unpack[Policies],
    ) -> Generator[R, None, None]:
        """Like `map` with one iterable, but yield the values as they arrive."""
        most, items = most_of(chunksize), self._items(function, (iterable,), policy)
        shown = progress_of(progress, total, (iterable,), algorithm_of(function).name)
        return self._run(items, ordered=False, values=True, progress=shown, most=most)

    @overload
    def map_results(
        self,
        function: Callable[[A], R],
        iterable: Iterable[A],
        /,
        *,
        ordered: bool = False,
        max_failures: FailureLimit = None,
        progress: ShowProgress = None,
        total: int | None = None,
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
        progress: ShowProgress = None,
        total: int | None = None,
        **policy: Unpack[Policies],
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
            A generator of results. The tag of each is its item; with several iterables, the tuple of its items.

        Raises:
            TooManyFailures: the map was stopped. All results that arrived were given out. `remaining` has the items
                that did not run: `mw.map_results(f, error.remaining)` continues.
        """
        limit, items = MaxFailures.of(max_failures), self._items(function, iterables, policy)
        shown = progress_of(progress, total, iterables, algorithm_of(function).name)
        return self._run(items, ordered=ordered, progress=shown, limit=limit)

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

        def named(some: Sequence[TaskCall[R]]) -> Iterator[Call]:
            for call in some:
                terms = self._parts.terms.of(algorithm_of_call(call, "mw.as_completed"), policy)
                yield *terms, call.args, call.kwargs

        limit, shown = MaxFailures.of(max_failures), progress_of(progress, total, (calls,), "tasks")
        return self._run(MapItems(iter(calls), named), ordered=False, progress=shown, limit=limit)

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

        return executor_of_master(self._parts, initializer, initargs, progress, policy)

    def _items(self, function: Callable[..., Any], iterables: tuple[Iterable[Any], ...], policy: Policies) -> MapItems:
        return items_of(self._parts.terms.of_map(function, policy), iterables, self._parts.inbox.settings)

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
        parts = self._parts
        shared = parts.access, parts.inbox, parts.held, parts.codec
        return MapRun(*shared, items, ordered, values, progress, limit, most, parts.keys).start()
