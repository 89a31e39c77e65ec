"""The master, as a master algorithm sees it.

A master has two threads: the thread of the master algorithm, which calls the methods here, and the `mwpy-io` thread,
which owns the core and the link (see `_roles/master_io.py`). They share submitted tasks, definitions, commands and
outcomes. For each of them, one thread appends and the other empties it, so no lock is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NoReturn, ParamSpec, TypeVar, Unpack, cast

from mwpy._core.master.state import AllocateSlaves, FreeSlave, Tell
from mwpy._roles.computation import MasterParts
from mwpy._roles.definitions import Terms
from mwpy._roles.inbox import USED_BY_A_TASK, Access, LoopCounts, TargetNumbers, kind_of_slave, whole_number
from mwpy._roles.maps import Maps, algorithm_of_call
from mwpy._transport import shared_objects
from mwpy._transport.codec import Codec
from mwpy._values.algorithm import TaskCall, algorithm_of
from mwpy._values.bounds import Buffer, SlaveId, TaskId
from mwpy._values.errors import UsageError
from mwpy._values.messagepack import PLAIN
from mwpy._values.policy import Policies, TaskPolicy, check_sid
from mwpy._values.shares import PLAIN_CALLS
from mwpy._values.task import Result, Seeds, UnrunnableTask

__all__ = ["LoopCounts", "Master"]

P = ParamSpec("P")
T = TypeVar("T")

KindName = Literal["ordered", "intermingle", "unordered"]


class Master(Maps):
    """What a master algorithm drives. Made by `mwpy.main` or `mwpy.local_master`, used only by the thread that made it.

    Examples:
        >>> @mwpy.master_algorithm                             # doctest: +SKIP
        ... def master(mw: mwpy.Master, argv: list[str]) -> int:
        ...     print(sum(mw.map(square, range(100))))
        ...     return 0
    """

    def __init__(self, access: Access, codec: Codec, for_all: Policies) -> None:
        parts = MasterParts.of(access, codec, for_all)
        super().__init__(parts)
        self._access = access
        self._codec = codec
        self._definitions = parts.definitions
        self._terms = parts.terms
        self._inbox = parts.inbox
        self._held = parts.held
        self._keys = parts.keys
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
        defined = self._definitions.known.get(algorithm) or self._terms.defined(algorithm)
        checked, extras = self._terms.default
        payload, buffers = self._codec.dumps_call(call.args, call.kwargs, defined.name)
        if policy or algorithm.policy:
            checked, extras = self._terms.policy(algorithm, policy)
        io, keys = self._access.io, self._keys
        if buffers or extras or io.users.executors or (keys and payload[0] not in PLAIN_CALLS):
            task_id = self._submit(call, (defined, checked, extras), payload, buffers, tag)
        else:  # most tasks: without the rest, submitting takes a quarter less
            task_id = io.submissions.add(defined, checked, payload, buffers, tag)
            if keys:
                keys.referable[task_id] = defined, None, payload
        if io.link.asleep:
            io.link.wake()
        return task_id

    def _submit(
        self, call: TaskCall[Any], terms: Terms, payload: bytes, buffers: Sequence[Buffer], tag: object
    ) -> TaskId:
        """Submit an encoded call, whatever is special about it."""
        io, keys, (defined, checked, extras), encoded = self._access.io, self._keys, terms, payload
        refers = self._held.refer(buffers) if buffers else ()
        seed = None if extras is None or extras.seed is None else self._seeds.next(extras.seed)
        key = None if keys is None else keys.of(defined, call.args, call.kwargs, encoded, extras, seed)
        if extras is not None:
            payload = extras.add(payload, seed)
        with io.submitting:
            task_id = io.submissions.add_keyed(defined, checked, payload, buffers, tag, key, refers)
        if keys is not None:
            keys.referable[task_id] = defined, key, encoded if key is None else b""
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
        self._access.check()
        handle = shared_objects.handle_of(obj, self._codec)
        if type(obj) not in PLAIN and shared_objects.is_for_each_slave(handle):
            kind = type(obj).__qualname__
            self._access.io.command(
                Tell(
                    f"mw.share: this {kind} has 1 MiB or more beside its arrays, so all tasks of a slave use the same "
                    f"object: they must not change it, but may change a copy of it"
                )
            )
        return cast(T, handle)

    def _fetched(self, ended: Sequence[Result[Any] | UnrunnableTask]) -> None:
        """The ends of tasks were fetched, so later tasks cannot refer to them."""
        self._held.fetched(ended)
        if self._keys is not None:
            self._keys.forget([each.task_id for each in ended])

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
        algorithm = self._definitions.prepare(algorithm_of(function))

        def submit(*args: P.args, **kwargs: P.kwargs) -> TaskId:
            call: TaskCall[Any] = TaskCall(algorithm, args, kwargs)
            return self.submit(call, tag, **policy)

        return submit

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
        self._access.io.command(AllocateSlaves(whole_number(amount), kind_of_slave(kind)))

    def deallocate_slaves(self, amount: int = 0, kind: KindName = "unordered") -> None:
        """Want fewer slaves of a kind; no slave is stopped.

        Raises:
            UsageError: there is no such kind, or the amount is not a whole number.
        """
        self._access.io.command(AllocateSlaves(-whole_number(amount), kind_of_slave(kind)))

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
        """How many tasks (of one algorithm, or of all) are submitted and not sent to a slave, also by executors."""
        self._inbox.receive()
        if algorithm is None:
            return self._access.io.submissions.pending()
        defined = self._definitions.define(algorithm_of(algorithm))
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
