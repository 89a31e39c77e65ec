"""The master, as a master algorithm sees it.

A master has two threads: the thread of the master algorithm, which calls the methods here, and the `mwpy-io` thread,
which owns the core and the link (see `_roles/master_io.py`). They share submitted tasks, definitions, commands and
outcomes. For each of them, one thread appends and the other empties it, so no lock is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from operator import index
from typing import Any, Literal, NamedTuple, TypeVar, Unpack

from mwpy._core.master.commands import AllocateSlaves, CancelTasks, DeallocateSlaves, FreeSlave, Running
from mwpy._roles.access import Access
from mwpy._roles.code_watch import CodeWatch
from mwpy._roles.definitions import Definitions
from mwpy._roles.inbox import Inbox
from mwpy._roles.map_run import MapRun, MapTag
from mwpy._system import clock
from mwpy._system.modules import is_interactive
from mwpy._transport.codec import Codec, with_seed
from mwpy._values.algorithm import TaskCall, algorithm_of
from mwpy._values.errors import UsageError
from mwpy._values.ids import SlaveId, TaskId
from mwpy._values.messages import spans_of
from mwpy._values.seeds import Seeds, seed_at
from mwpy._values.task import DEFAULT_POLICY, Policies, Result, SlaveKind, TaskPolicy, UnrunnableTask

__all__ = ["LoopCounts", "Master"]

R = TypeVar("R")

KindName = Literal["ordered", "intermingle", "unordered"]


class LoopCounts(NamedTuple):
    """What `Master.loop` returns: how much can be fetched."""

    unrunnable_tasks: int
    results: int
    connected_ordered_slaves: int
    disconnected_ordered_slaves: int


class Master:
    """What a master algorithm drives. Made by `mwpy.main` or `mwpy.local_master`, used only by the thread that made it.

    Example:
        >>> @mwpy.master_algorithm                             # doctest: +SKIP
        ... def master(mw: mwpy.Master, argv: list[str]) -> int:
        ...     for result in mw.map(square, range(100)):
        ...         print(result.value)
        ...     return 0
    """

    def __init__(self, access: Access, codec: Codec, main_by_value: bool) -> None:
        self._access = access
        self._codec = codec
        watch = CodeWatch(access) if main_by_value and is_interactive() else None
        self._definitions = Definitions(codec, main_by_value, watch)
        self._inbox = Inbox(access)
        self._seeds = Seeds()
        self._targets: dict[Any, int] = {}

    # ---- submitting --------------------------------------------------------------------------------------

    def submit(self, call: TaskCall[Any], tag: Any = None, **policy: Unpack[Policies]) -> TaskId:
        """Submit a task, which some slave will run.

        Args:
            call: what `f.task(...)` or `mwpy.task(f, ...)` made. Its arguments are pickled now, and its function too if
                it travels by value.
            tag: any object; it comes back unchanged with the result, and never leaves the master.
            policy: these keywords. They override those of `@task_algorithm`.
                `sid`: the slave that must run the task (an ordered task), or None for any slave.
                `retry`: whether the task may run again after it was lost with its slave; True by default.
                `do_it_anyway`: whether an ordered task may run elsewhere when its slave is gone; False by default.
                `seed`: a whole number, or None. `mwpy.task_seed()` in the task returns a number that depends on it,
                and on how many tasks were submitted with the same seed before.

        Returns:
            The task's id.

        Raises:
            ArgumentNotPicklable: an argument cannot be pickled, and the message names it; the caller's fault.
            UsageError: a policy is unknown or wrong, and the message names it; the caller's fault.
        """
        try:
            algorithm = call.algorithm
        except AttributeError:
            raise UsageError(
                f"mw.submit needs a call that was not made yet, not a {type(call).__qualname__}: write "
                f"mw.submit(f.task(x)), or mw.submit(mwpy.task(f, x))"
            ) from None
        defined = self._definitions.known.get(algorithm) or self._definitions.define(algorithm)
        payload, buffers = self._codec.dumps_call(call.args, call.kwargs, algorithm.name)
        if type(tag) is MapTag:
            tag.size = len(payload) + sum(map(len, buffers)) if buffers else len(payload)
        checked = DEFAULT_POLICY
        if policy or algorithm.policy:
            policy = {**algorithm.policy, **policy}
            checked = TaskPolicy.of(**policy)
            seed = policy.get("seed")
            if seed is not None:
                in_map = type(tag) is MapTag
                payload = with_seed(payload, seed_at(seed, tag.index) if in_map else self._seeds.next(seed))
        io = self._access.io
        task_id = io.submissions.add(defined, checked, payload, buffers, tag)
        if io.link.asleep:
            io.link.wake()
        return task_id

    def with_task_policy(self, function: Callable[..., Any], **policy: Any) -> Callable[..., TaskId]:
        """Make a function that submits calls of `function` under a policy: for the builtin `map` and the like.

        Args:
            policy: `tag`, and the policies of `submit`.

        Raises:
            UsageError: a policy is unknown or wrong, and the message names it.

        Example:
            >>> submit = mw.with_task_policy(square, retry=False)  # doctest: +SKIP
            >>> ids = [submit(x) for x in range(10)]               # doctest: +SKIP
        """
        tag = policy.pop("tag", None)
        TaskPolicy.of(**policy)
        algorithm = self._definitions.prepare(algorithm_of(function))

        def submit(*args: Any, **kwargs: Any) -> TaskId:
            call: TaskCall[Any] = TaskCall(algorithm, args, kwargs)
            return self.submit(call, tag, **policy)

        return submit

    def map(
        self, function: Callable[..., R], iterable: Iterable[Any], *, ordered: bool = False, **policy: Unpack[Policies]
    ) -> Generator[Result[R], None, None]:
        """Apply a function to each item, on the slaves.

        The items are taken one after the other, and a limited number of them is in flight, so `iterable` may be
        endless.

        Args:
            function: a function of one argument; a task algorithm or any other.
            ordered: whether results come in the order of the items, or in the order in which they finish.
            policy: the policies of `submit`. The seed of a task depends on `seed` and on the position of its item.

        Returns:
            A generator of one `Result` for each item. Its `tag` is the item. A task that became unrunnable is a
            failed result.

        Raises:
            UsageError: a policy is unknown or wrong, and the message names it. This call raises it, not the first item.
        """
        TaskPolicy.of(**policy)
        self._inbox.has_mapped = True
        run: MapRun[R] = MapRun(self.submit, self._access, self._inbox.wait)
        algorithm = self._definitions.prepare(algorithm_of(function))
        return run.results(algorithm, iter(iterable), ordered, policy)

    # ---- waiting ------------------------------------------------------------------------------------------

    def loop(self, timeout: float | None = None) -> LoopCounts:
        """Wait until something can be fetched: results, unrunnable tasks, or ordered slaves that connected or
        disconnected.

        Args:
            timeout: how long to wait at most, in seconds; None for as long as it takes.

        Returns:
            How much of each can be fetched.

        Raises:
            UsageError: the timeout is not a number.
        """
        inbox = self._inbox
        inbox.receive()
        try:
            deadline = None if timeout is None else clock.monotonic() + timeout
        except TypeError:
            raise UsageError(f"the timeout must be a number of seconds or None, not {timeout!r}") from None
        while not any(counts := inbox.counts()):
            left = None if deadline is None else deadline - clock.monotonic()
            if left is not None and left <= 0:
                break
            inbox.wait(left)
        return LoopCounts(*counts)

    def loop_iterate(self, timeout: float = 0.05) -> LoopCounts:
        """Like `loop`, but return after `timeout` seconds in any case."""
        return self.loop(timeout)

    def results(self) -> list[Result[Any]]:
        """Return all results that arrived, oldest first; each is returned once."""
        inbox = self._inbox
        inbox.receive()
        fetched, inbox.results = inbox.results, []
        return fetched

    def unrunnable_tasks(self) -> list[UnrunnableTask]:
        """Return all tasks that became unrunnable; each is returned once."""
        inbox = self._inbox
        inbox.receive()
        fetched, inbox.unrunnable = inbox.unrunnable, []
        return fetched

    def connected_ordered_slaves(self) -> list[SlaveId]:
        """Return the ordered and intermingle slaves that connected; each is returned once."""
        inbox = self._inbox
        inbox.receive()
        fetched, inbox.connected = inbox.connected, []
        return fetched

    def disconnected_ordered_slaves(self) -> list[SlaveId]:
        """Return the ordered and intermingle slaves that are gone; each is returned once."""
        inbox = self._inbox
        inbox.receive()
        fetched, inbox.disconnected = inbox.disconnected, []
        return fetched

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
        if running not in ("kill", "finish"):
            raise UsageError(f"running tasks cannot be treated as {running!r}: use 'kill' or 'finish'")
        try:
            ids = sorted({index(number) for number in task_ids})
        except TypeError:
            raise UsageError("mw.cancel needs the ids that mw.submit returned, in a list or another iterable") from None
        last = self._access.io.submissions.total
        if ids and not 1 <= ids[0] <= ids[-1] <= last:
            wrong = ids[0] if ids[0] < 1 else ids[-1]
            raise UsageError(f"there is no task {wrong} to cancel: the ids of the submitted tasks are 1 to {last}")
        firsts, counts, _ = spans_of(ids, [0] * len(ids))
        return self._inbox.cancel(CancelTasks([*zip(firsts, counts, strict=True)], Running(running)))

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
        self._access.io.command(AllocateSlaves(_count(amount), _kind(kind)))

    def deallocate_slaves(self, amount: int = 0, kind: KindName = "unordered") -> None:
        """Want fewer slaves of a kind; no slave is stopped.

        Raises:
            UsageError: there is no such kind, or the amount is not a whole number.
        """
        self._access.io.command(DeallocateSlaves(_count(amount), _kind(kind)))

    def free_slave(self, sid: SlaveId) -> None:
        """Make an ordered or intermingle slave unordered, as soon as it has finished the tasks that it holds."""
        self._access.io.command(FreeSlave(sid))

    # ---- figures ----------------------------------------------------------------------------------------------

    def set_target_number(self, number: int, algorithm: Callable[..., Any] | None = None) -> None:
        """Set how many pending tasks (of one algorithm, or of all) you want in memory; advisory.

        Raises:
            UsageError: the number is not a whole number.
        """
        self._targets[_key(algorithm)] = _count(number)

    def get_target_number(self, algorithm: Callable[..., Any] | None = None) -> int:
        """The target number (of one algorithm, or of all); 0 if it was never set."""
        return self._targets.get(_key(algorithm), 0)

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
        """How many tasks are pending or at slaves."""
        self._inbox.receive()
        return self._access.io.submissions.runnable()

    def num_unrunnable_tasks(self) -> int:
        """How many unrunnable tasks can be fetched."""
        self._inbox.receive()
        return len(self._inbox.unrunnable)


def _key(algorithm: Callable[..., Any] | None) -> Any:
    """What a target number is stored under: the function, or its id if it has no hash."""
    try:
        hash(algorithm)
    except TypeError:
        return id(algorithm)
    return algorithm


def _count(number: int) -> int:
    try:
        return max(0, index(number))
    except TypeError:
        raise UsageError(f"a whole number is needed here, not {number!r}") from None


def _kind(kind: str) -> SlaveKind:
    try:
        return SlaveKind(kind)
    except ValueError:
        raise UsageError(f"there is no kind of slave {kind!r}: ordered, intermingle or unordered") from None
