"""The master: what a master algorithm drives, and the thread that does what the core decides.

The algorithm's thread and the `mwpy-io` thread share three things and no lock: submitted tasks, a deque
of commands, and a queue of outcomes. Each is appended to by one thread and emptied by the other. The I/O thread
owns the core and the link (see `_master_io.py`).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from queue import Empty
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast

from attrs import define, field

from mwpy._core.master.commands import AllocateSlaves, DeallocateSlaves, Definition, FreeSlave
from mwpy._core.master.silence import Waiting
from mwpy._system import clock, packages
from mwpy._transport.codec import Codec
from mwpy._values.algorithm import Algorithm, TaskCall, algorithm_of
from mwpy._values.errors import InternalError, TaskFailed, UsageError
from mwpy._values.ids import SlaveId, TaskId
from mwpy._values.last_words import story_of
from mwpy._values.messages import AlgorithmDefinition
from mwpy._values.task import DEFAULT_POLICY, Result, SlaveKind, TaskPolicy, UnrunnableTask

if TYPE_CHECKING:
    from mwpy._core.master.core import Actions
    from mwpy._roles.master_io import MasterIo

__all__ = ["LoopCounts", "Master"]

R = TypeVar("R")

KindName = Literal["ordered", "intermingle", "unordered"]

MAP_PENDING = 1000
"""Tasks that `map` keeps waiting in the master, beyond those that slaves hold."""

MAP_BYTES = 256 << 20
"""Bytes of arguments in flight at which `map` submits no more."""

MAP_WINDOW = 20_000
"""Items that an ordered `map` may run ahead of the one that it waits for."""

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


class LoopCounts(NamedTuple):
    """What `Master.loop` returns: how much waits to be fetched."""

    unrunnable_tasks: int
    results: int
    connected_ordered_slaves: int
    disconnected_ordered_slaves: int


@define(eq=False)
class _Map:
    """One running `map`: what came back for it."""

    came: deque[Result[Any]] = field(factory=deque)
    bytes_in_flight: int = 0


@define(eq=False)
class _Place:
    """The tag of a task that `map` submitted: whose it is, and which."""

    owner: _Map
    index: int
    item: Any
    size: int = 0
    """Bytes of its arguments."""


class _Ended:
    """Stands for the I/O thread when there is none any more."""

    def __getattr__(self, name: str) -> object:
        raise UsageError("the computation is over, and so is this master: start another (mwpy.local_master, mwpy.main)")


class Master:
    """What a master algorithm drives. Made by `mwpy.main` or `mwpy.local_master`, used by one thread.

    Example:
        >>> @mwpy.master_algorithm                             # doctest: +SKIP
        ... def master(mw: mwpy.Master, argv: list[str]) -> int:
        ...     for result in mw.map(square, range(100)):
        ...         print(result.value)
        ...     return 0
    """

    def __init__(self, io: MasterIo, codec: Codec, main_by_value: bool) -> None:
        self._io = io
        self._codec = codec
        self._main_by_value = main_by_value
        self._defined: set[Algorithm] = set()
        """The algorithms whose definitions the core has; there are as many as the next one's number."""
        self._has_mapped = False
        self._targets: dict[Algorithm | None, int] = {}
        self._results: list[Result[Any]] = []
        self._unrunnable: list[UnrunnableTask] = []
        self._connected: list[SlaveId] = []
        self._disconnected: list[SlaveId] = []

    def _end(self) -> None:
        """Nothing can be asked of it any more: an error is better than waiting for ever."""
        self._io = cast("MasterIo", _Ended())

    # ---- submitting --------------------------------------------------------------------------------------

    def submit(
        self,
        call: TaskCall[Any],
        tag: Any = None,
        sid: SlaveId | None = None,
        retry: bool = True,
        do_it_anyway: bool = False,
    ) -> TaskId:
        """Hand a task over to be run by some slave.

        Args:
            call: what `f.task(...)` or `mwpy.task(f, ...)` made. The arguments are pickled now.
            tag: any object; it comes back unchanged with the result, and never leaves the master.
            sid: the slave that the task is for (an ordered task), or None for any.
            retry: whether it may be tried again when it was lost with its slave.
            do_it_anyway: whether an ordered task may run elsewhere when its slave is gone.

        Returns:
            The task's id.

        Raises:
            ArgumentNotPicklable: naming the argument; the caller's fault.
        """
        try:
            algorithm = call.algorithm
        except AttributeError:
            raise UsageError(
                f"mw.submit wants a call that is yet to be made, not a {type(call).__qualname__}: write "
                f"mw.submit(f.task(x)), or mw.submit(mwpy.task(f, x))"
            ) from None
        if algorithm not in self._defined:
            self._define(algorithm)
        payload, buffers = self._codec.dumps_call(call.args, call.kwargs, algorithm.name)
        if type(tag) is _Place:
            tag.size = len(payload) + sum(map(len, buffers)) if buffers else len(payload)
        plain = sid is None and retry and not do_it_anyway
        policy = DEFAULT_POLICY if plain else TaskPolicy(sid, bool(retry), bool(do_it_anyway))
        io = self._io
        task_id = io.submissions.add(algorithm, policy, payload, buffers, tag)
        if io.link.asleep:
            io.link.wake()
        return task_id

    def _define(self, algorithm: Algorithm) -> None:
        reference = algorithm.reference
        if self._main_by_value and reference.startswith("__main__:"):
            reference = ""
        function = b"" if reference else self._codec.dumps_function(algorithm.function, algorithm.name)
        header = AlgorithmDefinition(
            number=len(self._defined),
            name=algorithm.name,
            reference=reference,
            digest=algorithm.digest if reference else "",
            python=PYTHON,
            packages=packages.used_by(algorithm.function, by_value=not reference),
        )
        self._io.definitions.append(Definition(algorithm, header, function))
        self._defined.add(algorithm)

    def with_task_policy(self, function: Callable[..., Any], **policy: Any) -> Callable[..., TaskId]:
        """A function that submits calls of `function` under a policy: for the builtin `map` and the like.

        Args:
            policy: `tag` and what `TaskPolicy` has.

        Raises:
            UsageError: an unknown policy; it is named.

        Example:
            >>> submit = mw.with_task_policy(square, retry=False)  # doctest: +SKIP
            >>> ids = [submit(x) for x in range(10)]               # doctest: +SKIP
        """
        tag = policy.pop("tag", None)
        checked = TaskPolicy.of(**policy)
        algorithm = algorithm_of(function)

        def submit(*args: Any, **kwargs: Any) -> TaskId:
            call: TaskCall[Any] = TaskCall(algorithm, args, kwargs)
            return self.submit(call, tag, checked.sid, checked.retry, checked.do_it_anyway)

        return submit

    def map(
        self, function: Callable[..., R], iterable: Iterable[Any], *, ordered: bool = False, **policy: Any
    ) -> Generator[Result[R], None, None]:
        """Apply a function to each item, on the slaves.

        Pulls the items lazily and keeps a bounded number in flight, so `iterable` may be endless.

        Args:
            function: of one argument; a task algorithm or any other.
            ordered: whether results come in the order of the items, or as they finish.
            policy: as for `with_task_policy`, without `tag`.

        Returns:
            A generator of one `Result` an item, whose `tag` is the item. A task that became unrunnable is a
            failed result.

        Raises:
            UsageError: an unknown policy; it is named. At this line, not at the first item.
        """
        checked = TaskPolicy.of(**policy)
        self._has_mapped = True
        return self._map(algorithm_of(function), iter(iterable), ordered, checked)

    def _map(
        self, algorithm: Algorithm, items: Iterator[Any], ordered: bool, policy: TaskPolicy
    ) -> Generator[Result[R], None, None]:
        mine = _Map()
        submitted = yielded = 0
        early: dict[int, Result[R]] = {}
        exhausted = False
        while not exhausted or yielded < submitted:
            room = MAP_PENDING - self.pending_tasks()
            if ordered:
                room = min(room, MAP_WINDOW - (submitted - yielded))
            while room > 0 and not exhausted and mine.bytes_in_flight < MAP_BYTES:
                try:
                    item = next(items)
                except StopIteration:
                    exhausted = True
                    break
                place = _Place(mine, submitted, item)
                call: TaskCall[R] = TaskCall(algorithm, (item,), {})
                self.submit(call, place, policy.sid, policy.retry, policy.do_it_anyway)
                mine.bytes_in_flight += place.size
                submitted += 1
                room -= 1
            if not mine.came and yielded < submitted:
                self._absorb(wait=True, timeout=None)
            while mine.came:
                result = mine.came.popleft()
                place = result.tag
                mine.bytes_in_flight -= place.size
                result.tag = place.item
                if not ordered:
                    yielded += 1
                    yield result
                    continue
                early[place.index] = result
                while (ready := early.pop(yielded, None)) is not None:
                    yielded += 1
                    yield ready

    # ---- waiting ------------------------------------------------------------------------------------------

    def loop(self, timeout: float | None = None) -> LoopCounts:
        """Wait until something can be fetched: results, unrunnable tasks, ordered slaves come or gone.

        Args:
            timeout: how long at the most, in seconds; None for as long as it takes.

        Returns:
            How much of each can be fetched.
        """
        self._absorb(wait=False, timeout=0.0)
        deadline = None if timeout is None else clock.monotonic() + timeout
        while not any(counts := self._counts()):
            left = None if deadline is None else deadline - clock.monotonic()
            if left is not None and left <= 0:
                break
            self._absorb(wait=True, timeout=left)
        return counts

    def loop_iterate(self, timeout: float = 0.05) -> LoopCounts:
        """As `loop`, but come back after `timeout` seconds whatever happened."""
        return self.loop(timeout)

    def results(self) -> list[Result[Any]]:
        """All results that arrived, oldest first, each once."""
        self._absorb(wait=False, timeout=0.0)
        fetched, self._results = self._results, []
        return fetched

    def unrunnable_tasks(self) -> list[UnrunnableTask]:
        """All tasks that became unrunnable, each once."""
        self._absorb(wait=False, timeout=0.0)
        fetched, self._unrunnable = self._unrunnable, []
        return fetched

    def connected_ordered_slaves(self) -> list[SlaveId]:
        """The ordered and intermingle slaves that came, each once."""
        self._absorb(wait=False, timeout=0.0)
        fetched, self._connected = self._connected, []
        return fetched

    def disconnected_ordered_slaves(self) -> list[SlaveId]:
        """The ordered and intermingle slaves that are gone, each once."""
        self._absorb(wait=False, timeout=0.0)
        fetched, self._disconnected = self._disconnected, []
        return fetched

    def _counts(self) -> LoopCounts:
        return LoopCounts(len(self._unrunnable), len(self._results), len(self._connected), len(self._disconnected))

    def _absorb(self, wait: bool, timeout: float | None) -> None:
        """Take over what the I/O thread has for us; wait for it if there is nothing."""
        outcomes = self._io.outcomes
        if wait and outcomes.empty():
            self._io.waiting = Waiting.FOR_EVER if timeout is None else Waiting.FOR_A_WHILE
            try:
                self._take(outcomes.get(timeout=timeout))
            except Empty:
                return
            finally:
                self._io.waiting = Waiting.NOT
        while not outcomes.empty():
            self._take(outcomes.get_nowait())

    def _take(self, outcome: Actions | BaseException) -> None:
        if isinstance(outcome, BaseException):
            raise InternalError(f"the I/O thread of mwpy died: {outcome!r}; please report this") from outcome
        if self._has_mapped:
            for result in outcome.results:
                place = result.tag
                if type(place) is _Place:
                    place.owner.came.append(result)
                else:
                    self._results.append(result)
        else:
            self._results.extend(outcome.results)
        for task in outcome.unrunnable:
            if type(task.tag) is _Place:
                task.tag.owner.came.append(_failed_result(task))
            else:
                self._unrunnable.append(task)
        self._connected.extend(outcome.connected)
        self._disconnected.extend(outcome.disconnected)

    # ---- slaves ---------------------------------------------------------------------------------------------

    def allocate_slaves(self, amount: int = 1000, kind: KindName = "unordered") -> None:
        """Want more slaves of a kind; the resource file tells batch systems of it.

        Until it is first called for unordered slaves, as many of them are wanted as there are tasks.

        Args:
            amount: how many more.
            kind: `ordered`, `intermingle` or `unordered`.

        Raises:
            UsageError: there is no such kind.
        """
        self._io.command(AllocateSlaves(max(0, amount), _kind(kind)))

    def deallocate_slaves(self, amount: int = 0, kind: KindName = "unordered") -> None:
        """Want fewer slaves of a kind; none is stopped.

        Raises:
            UsageError: there is no such kind.
        """
        self._io.command(DeallocateSlaves(max(0, amount), _kind(kind)))

    def free_slave(self, sid: SlaveId) -> None:
        """Make an ordered or intermingle slave unordered, once it has finished the tasks that it holds."""
        self._io.command(FreeSlave(sid))

    # ---- figures ----------------------------------------------------------------------------------------------

    def set_target_number(self, number: int, algorithm: Callable[..., Any] | None = None) -> None:
        """Say how many pending tasks (of one algorithm, or of all) you want in memory; advisory."""
        self._targets[_key(algorithm)] = max(0, number)

    def get_target_number(self, algorithm: Callable[..., Any] | None = None) -> int:
        """The target number (of one algorithm, or of all); 0 if it was never set."""
        return self._targets.get(_key(algorithm), 0)

    def pending_tasks(self, algorithm: Callable[..., Any] | None = None) -> int:
        """How many tasks (of one algorithm, or of all) are submitted and not sent to a slave."""
        return self._io.submissions.pending(_key(algorithm))

    def upto_target_number(self, algorithm: Callable[..., Any] | None = None) -> int:
        """How many tasks are missing to the target number; never negative."""
        return max(0, self.get_target_number(algorithm) - self.pending_tasks(algorithm))

    def num_runnable_tasks(self) -> int:
        """How many tasks are pending or at slaves."""
        return self._io.submissions.runnable()

    def num_unrunnable_tasks(self) -> int:
        """How many unrunnable tasks wait to be fetched."""
        self._absorb(wait=False, timeout=0.0)
        return len(self._unrunnable)


def _key(algorithm: Callable[..., Any] | None) -> Algorithm | None:
    return None if algorithm is None else algorithm_of(algorithm)


def _kind(kind: str) -> SlaveKind:
    try:
        return SlaveKind(kind)
    except ValueError:
        raise UsageError(f"there is no kind of slave {kind!r}: ordered, intermingle or unordered") from None


def _failed_result(task: UnrunnableTask) -> Result[Any]:
    failure = TaskFailed(task.algorithm, task.sid, "UnrunnableTask", task.reason, story_of(task.deaths))
    failure.deaths = task.deaths
    return Result(task.task_id, task.algorithm, task.sid, task.tag, 0.0, True, _value=failure)
