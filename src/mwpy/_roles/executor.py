"""The thread of an executor: it owns a master, submits tasks when slaves need them, and gives results to futures.

Any thread may submit, but only one thread may use a master. So `submit` only appends to a queue, and this thread takes
everything that is there when it wakes up. It waits for the outcomes of the master. Another thread wakes it with an
empty outcome, and only if it waits for tasks: a thread that submits thousands of tasks wakes it once.

Most tasks stay in the queue until the slaves need them (see `Window`), so that they can be cancelled.

The master is the executor's own, or that of a master algorithm, whose tasks it then shares the slaves with (see
`users.py`).

The thread does not refer to the executor. When nobody refers to the executor any more, it is shut down. When the
interpreter ends, all executors are shut down, and the interpreter waits for their tasks, as `concurrent.futures` does.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sized
from concurrent.futures import BrokenExecutor
from functools import partial
from typing import Any, Protocol, cast
from weakref import WeakSet

from msgspec import Struct

from mwpy._core.master.dispatch import learn
from mwpy._core.master.state import Actions, CancelTasks, ExpectTasks, Running
from mwpy._roles.computation import Computation, MasterParts, follow_cells
from mwpy._roles.definitions import Terms
from mwpy._roles.executor_future import Future
from mwpy._roles.inbox import FORKED, Access
from mwpy._roles.master_io import MasterIo
from mwpy._roles.own_overseer import OwnOverseer
from mwpy._roles.progress import Careful, Figures, OpenProgress, Progress
from mwpy._roles.users import Owner, User
from mwpy._transport.codec import Codec
from mwpy._values.algorithm import algorithm_of
from mwpy._values.errors import OutOfTime, UsageError
from mwpy._values.policy import Policies
from mwpy._values.task import Result, Seeds, failed

Work = tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any], Policies]
"""A task that waits in the queue: its future, function, arguments, and the policies that are given with the call. It is
a plain tuple, because there is one for each task."""


# The computation of an executor: one of its own, or one that a master algorithm has opened.


class ExecutorComputation(Protocol):
    """What the thread of an executor has of its computation."""

    def begin(self, owner: Owner, policy: Policies) -> MasterParts:
        """Begin to use the computation, in the thread of the executor.

        Args:
            owner: the executor.
            policy: the policies of all its tasks.

        Raises:
            MwpyError: it cannot start.
        """

    def end(self, finished: bool) -> None:
        """Use the computation no more. If it did not begin, do nothing.

        Args:
            finished: whether all tasks have ended.
        """


class OwnComputation(Struct, eq=False):
    """A computation that begins and ends with its executor.

    Args:
        start: starts it.
        codec: pickles what its tasks need.
    """

    _start: Callable[[], Computation]
    _codec: Codec
    _computation: Computation | None = None

    def begin(self, owner: Owner, policy: Policies) -> MasterParts:  # noqa: ARG002  # all tasks are those of the owner
        self._computation = self._start()
        return MasterParts.of(self._computation.access, self._codec, for_all=policy)

    def end(self, finished: bool) -> None:
        if self._computation is not None:
            self._computation.end(finished)


class SharedComputation(Struct, eq=False):
    """The computation of a master algorithm. It goes on until the master and all its executors have ended.

    Args:
        master: the parts of the master.
        io: its I/O thread.
    """

    _master: MasterParts | None
    _io: MasterIo
    _parts: MasterParts | None = None

    def begin(self, owner: Owner, policy: Policies) -> MasterParts:
        master = self._master
        assert master is not None
        users = self._io.users
        user = User(owner, progress=OpenProgress(users.algorithm.progress))
        access = Access(self._io, threading.current_thread(), user=user)
        policies = cast(Policies, {**master.terms.for_all, **policy})
        self._parts = MasterParts.of(access, master.codec, policies, master.inbox.failed)
        users.executors.append(user)
        return self._parts

    def end(self, finished: bool) -> None:
        if self._parts is None:
            return
        access = self._parts.access
        try:
            if finished:  # the answer comes behind all records of `logging`
                self._parts.inbox.ask(CancelTasks([], Running.KILL))
            access.user.progress.end_all()
        finally:
            self._io.users.executors.remove(access.user)
            access.close()
            self._master = None  # last, because this may end the computation


# How many tasks of an executor have ended, for its progress.


class Counts(Struct, eq=False):
    """Counts the tasks that have ended."""

    ended: int = 0
    failed: int = 0

    def note(self, result: Result[Any], future: Future[Any]) -> None:
        """A task has ended. If it was cancelled, it has not failed."""
        self.ended += 1
        self.failed += failed(result) and not future.cancelled()

    def figures(self, sent: Sized, waiting: Sized, slaves: int) -> Figures:
        """What the progress shows if some tasks have been sent to the master, and others wait."""
        return Figures(self.ended, self.ended + len(sent) + len(waiting), self.failed, slaves)


# How many slaves an executor wants from a batch system.
#
# Most tasks of an executor are not with its master, so the master must be asked to want slaves for them, too.


class Demand(Struct, eq=False):
    """The tasks in the queue of an executor, as far as its master knows them.

    Args:
        most: for how many tasks there can be a slave; 0 if the number of slaves is fixed.
    """

    most: int = 0
    _expected: int = 0

    def settle(self, io: MasterIo, waiting: int) -> None:
        """This number of tasks waits in the queue."""
        expected = min(self.most, waiting)
        if expected != self._expected:
            io.command(ExpectTasks(expected - self._expected))
            self._expected = expected


# How many tasks of an executor are with its master.
#
# A task that is with the master may be sent at any moment, and then it cannot be cancelled any more without a kill. So
# an executor keeps most tasks itself, and hands over only what keeps the slaves busy until it gets the next results.


AHEAD_S = 0.02
"""Seconds of work that each slave has in addition to the task that it runs. Two threads must wake up in this time."""

MOST_AHEAD = 1000
"""The largest number of tasks that each slave has in addition."""

OVERHEAD_S = 2e-6
"""Seconds that a task costs a slave in addition to its compute time."""


class Window(Struct, eq=False):
    """Decides how many tasks may be with the master."""

    _task_s: float | None = None
    """How long a task takes in a slave, in seconds; None if none has ended."""

    def size(self, slaves: int) -> int:
        """How many tasks may be with the master, if it has this number of slaves.

        Before the first task has ended, each slave gets one task in addition to the one that it runs.
        """
        ahead = 1 if self._task_s is None else max(1, min(MOST_AHEAD, int(AHEAD_S / self._task_s)))
        return slaves * (1 + ahead)

    def ended(self, count: int, seconds: float) -> None:
        """This many tasks have ended, which took some seconds together."""
        self._task_s = learn(self._task_s, seconds / count, OVERHEAD_S)


SHUT_DOWN = "cannot schedule new futures after shutdown"

_NO_WORK: Any = (None,) * 5

INTERPRETER_ENDS = "cannot schedule new futures after interpreter shutdown"


class ExecutorThread:
    """The thread of one executor, and what other threads may ask of it.

    Args:
        computation: it begins in this thread, so that the thread owns it.
        policy: the policies of all tasks.
        wrap: makes the function that a slave runs for a function that was submitted.
        expected: how many slaves will connect soon.
        demand: makes the master want slaves for the tasks in the queue.
        overseer: what submits their jobs.
    """

    def __init__(
        self,
        computation: ExecutorComputation,
        policy: Policies,
        wrap: Callable[[Callable[..., Any]], Callable[..., Any]],
        expected: int,
        demand: Demand | None = None,
        overseer: OwnOverseer | None = None,
    ) -> None:
        self.computation = computation
        self.policy = policy
        self.wrap = wrap
        self.expected = expected
        self.demand = Demand() if demand is None else demand
        self.overseer = overseer
        self.progress: Progress | None = None
        """What shows the progress of all tasks. It is set before the start."""
        self.open: dict[int, Future[Any]] = {}
        """The tasks that are with the master, by their ids."""
        self.works: deque[Work] = deque()
        self._kills: deque[Future[Any]] = deque()
        self._closing = False
        self._refusal: Exception | None = None
        """Why no task can be submitted any more."""
        self.broken: Exception | None = None
        """Why no task of this executor could end any more."""
        self._wants = False
        """Whether the thread waits, and would take a task. The thread that resets it wakes this one."""
        self._lock = threading.RLock()
        """Held to append to the queue, and to decide that nothing is appended any more. A signal handler or the garbage
        collection may use the executor while the same thread holds it."""
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        """Why the computation did not start."""
        self._next: Future[Any] | None = None
        """The task that is neither in the queue nor with the master, because it is handed over now."""
        self._counts = Counts()
        self._window = Window()
        self._seeds = Seeds()
        self._submitted = 0
        """How many tasks were ever submitted. It is changed while the lock is held."""
        self._before_cell = 0
        """How many of them were submitted before the cell of a notebook that runs."""
        # the thread sets these three when the computation has begun
        self._parts: MasterParts
        self._wake: Callable[[], None]
        self._count_slaves: Callable[[], int]
        self._thread = threading.Thread(target=self._run, name="mwpy-executor", daemon=False)

    # ---- for any thread ----

    @property
    def num_slaves(self) -> int:
        """How many slaves are connected."""
        return self._count_slaves()

    def start(self) -> None:
        """Start, and wait until the computation has started.

        Raises:
            MwpyError: it cannot start.
        """
        _all.add(self)
        self._thread.start()
        try:
            self._ready.wait()
        except BaseException:  # Ctrl-C: nobody gets this executor
            self.leave()
            raise
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        follow_cells(self)

    def submit(self, work: Work) -> None:
        """Append a task.

        Raises:
            RuntimeError: the executor is shut down or broken.
            UsageError: this process was forked from that of the executor.
        """
        with self._lock:
            if self._refusal is not None:
                raise self._refusal
            self._submitted = work[0].place = self._submitted + 1
            self.works.append(work)
            if self._wants:
                self._wake()  # first: after an interrupt in between, the next task wakes the thread again
                self._wants = False

    def kill(self, future: Future[Any]) -> None:
        """End a task that is with the master, and whose future is cancelled."""
        self._kills.append(future)
        self._wake()

    def close(self, cancel: bool = False) -> None:
        """Take no more tasks, and end when all tasks have ended.

        Args:
            cancel: whether the tasks that are not with the master are cancelled.
        """
        with self._lock:
            self._refuse(RuntimeError(SHUT_DOWN))
        if cancel:
            for work in self.works.copy():  # the thread takes some away meanwhile
                work[0].cancel()
        self.leave()

    def leave(self) -> None:
        """Take no more tasks, as `close`, when nobody can submit any. The garbage collection may call this."""
        self._closing = True
        if self._ready.is_set() and self._failure is None:
            self._wake()

    def join(self) -> None:
        """Wait until the thread has ended. A callback of a future, which this thread calls, does not wait."""
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def give_up(self) -> None:
        """Cancel all tasks, and kill those that run."""
        self.close()
        self._cancel_after(0)

    def _cancel_after(self, place: int) -> None:
        """Cancel all tasks after this one of the executor, and kill those that run."""
        waiting = [work[0] for work in self.works.copy()]
        handed_over = self._next  # in this order, because a task moves from one to the next
        for future in [*waiting, handed_over, *self.open.values()]:
            if future is not None and future.place > place:
                future.cancel(kill=True)

    def cell_begins(self) -> None:
        """Remember which tasks are of earlier cells of a notebook."""
        self._before_cell = self._submitted

    def cell_interrupted(self) -> None:
        """Cancel the tasks that were submitted since the cell began, and kill those that run."""
        self._cancel_after(self._before_cell)

    def end_with_interpreter(self) -> None:
        """Wait for all tasks at the end of the interpreter. Ctrl-C gives them up."""
        if not self._thread.is_alive():
            return
        with self._lock:
            self._refuse(RuntimeError(INTERPRETER_ENDS))
        self.leave()
        try:
            self._thread.join()
        except KeyboardInterrupt:
            self.give_up()
            raise

    def leave_to_parent(self) -> None:
        """This process was forked just now, and this thread is not in it."""
        self._lock = threading.RLock()
        self._refusal = UsageError(FORKED)

    def _refuse(self, reason: Exception) -> None:
        if self._refusal is None:
            self._refusal = reason

    # ---- the thread itself ----

    def _run(self) -> None:
        try:
            self._begin()
        except BaseException as error:
            self._failure = error
            return
        finally:
            self._ready.set()
        finished = False
        try:
            while self._serve():
                pass
            finished = True
        except BaseException as error:
            self._break(error)
        finally:
            self._end(finished)

    def _begin(self) -> None:
        try:
            self._parts = self.computation.begin(self, self.policy)
            if self.overseer is not None:
                self.overseer.start()
        except BaseException:
            self.computation.end(finished=False)
            raise
        io, user = self._parts.access.io, self._parts.access.user
        if self.progress is not None:
            shown = Progress(Careful(self.progress.display), self.progress.total)
            counts = partial(self._counts.figures, self.open, self.works)
            user.progress.begin(shown, lambda: counts(io.num_slaves))
        user.follows_slaves = True
        self._wake = lambda: user.outcomes.put(Actions())
        self._count_slaves = lambda: io.num_slaves

    def _end(self, finished: bool) -> None:
        try:
            self.computation.end(finished)
        finally:
            if self.overseer is not None:
                self.overseer.end()

    def _serve(self) -> bool:
        """Hand over tasks, wait, and give out results. Return whether there is more to do."""
        if self._kills:
            self._cancel_in_master()
        room = self._hand_over()
        self.demand.settle(self._parts.access.io, len(self.works))
        with self._lock:
            if self._closing and not self.works and not self.open:
                self._refuse(RuntimeError(SHUT_DOWN))
                return False
            if self.works and room > 0:
                return True
            self._wants = room > 0 or len(self.works) < self.demand.most  # another task may need another slave
        inbox = self._parts.inbox
        if not (inbox.results or inbox.unrunnable):  # a command may have waited, and received some
            inbox.wait(idle=not self.open)
        self._wants = False
        self._give_out()
        return True

    def _hand_over(self) -> int:
        """Hand tasks over to the master, as many as its slaves need. Return for how many more there is room."""
        io = self._parts.access.io
        room = self._window.size(max(self.expected, io.num_slaves)) - len(self.open)
        works, last = self.works, _NO_WORK
        while works and (room > 0 or works[0][0].cancelled()):
            self._next = future = works[0][0]
            work = works.popleft()
            if not future.start():
                continue
            try:
                if work[1] is not last[1] or work[4] is not last[4]:
                    last = _NO_WORK  # if the terms are wrong
                    terms = self._terms_of(work)  # once for all calls of a function that follow
                    last = work
                future.task_id = number = self._submit(work, terms)
            except BaseException as error:
                future.end(error=error)
            else:
                self.open[number] = future
                room -= 1
        self._next = None
        if io.link.asleep:
            io.link.wake()
        return room

    def _terms_of(self, work: Work) -> Terms:
        """The algorithm and the policies of a task."""
        prepared = self._parts.definitions.prepare(algorithm_of(self.wrap(work[1])))
        return self._parts.terms.of(prepared, work[4])

    def _submit(self, work: Work, terms: Terms) -> int:
        """Submit a task, and return its id. Whatever is wrong with its arguments is raised."""
        parts, (defined, policy, extras), (future, _, args, kwargs, _) = self._parts, terms, work
        payload, buffers = parts.codec.dumps_call(args, kwargs, defined.name)
        if buffers and parts.held.refer(buffers):
            raise UsageError("mwpy.result has no meaning in an executor: pass the value of the other task itself")
        seed = None if extras is None or extras.seed is None else self._seeds.next(extras.seed)
        key = None if parts.keys is None else parts.keys.of(defined, args, kwargs, payload, extras, seed)
        if extras is not None:
            payload = extras.add(payload, seed)
        io = parts.access.io
        with io.submitting:
            io.users.submits(parts.access.user, io.submissions.total + 1)
            return io.submissions.add_keyed(defined, policy, payload, buffers, future, key)

    def _cancel_in_master(self) -> None:
        """Cancel tasks that are with the master. Those that have ended stay as they are."""
        futures = [self._kills.popleft() for _ in range(len(self._kills))]
        ids = [future.task_id for future in futures if future.task_id in self.open]
        if ids:
            self._parts.inbox.cancel(ids, "kill")  # type: ignore[arg-type]

    def _give_out(self) -> None:
        inbox = self._parts.inbox
        results: list[Result[Any]] = inbox.fetch(inbox.results)
        results += [task.result() for task in inbox.fetch(inbox.unrunnable)]
        if results:
            self._window.ended(len(results), sum(result.compute_seconds for result in results))
        for result in results:
            future = self.open.pop(result.task_id)
            future.finish(result)
            self._counts.note(result, future)

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
            left = [*self.open.values(), *(work[0] for work in self.works if work[0].start())]
            self.works.clear()
        io = self._parts.access.io
        io.command(CancelTasks.of(sorted(self.open), Running.KILL))
        self.demand.settle(io, 0)
        for future in left:
            future.end(error=broken)


_all: WeakSet[ExecutorThread] = WeakSet()
"""The threads of this process."""


def _end_all() -> None:
    for each in list(_all):
        each.end_with_interpreter()


def _leave_all_to_parent() -> None:
    for each in _all:
        each.leave_to_parent()


threading._register_atexit(_end_all)  # type: ignore[attr-defined]  # as concurrent.futures; atexit is too late
os.register_at_fork(after_in_child=_leave_all_to_parent)
