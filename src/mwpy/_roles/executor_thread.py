"""The thread of an executor: it owns a master, hands tasks over to it, and gives their results to the futures.

Any thread may submit, but only one thread may use a master. So `submit` only appends to a queue, and this thread takes
everything that is there when it wakes up. It waits for the outcomes of the master. Another thread wakes it with an
empty outcome, and only if it waits for tasks: a thread that submits thousands of tasks wakes it once.

Most tasks stay in the queue until the slaves need them (see `executor_window.py`), so that they can be cancelled.

The master is the executor's own, or that of a master algorithm, whose tasks it then shares the slaves with (see
`executor_io.py`).

The thread does not refer to the executor. When nobody refers to the executor any more, it is shut down. When the
interpreter ends, all executors are shut down, and the interpreter waits for their tasks, as `concurrent.futures` does.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from functools import partial
from typing import Any
from weakref import WeakSet

from mwpy._core.master.commands import CancelTasks, Running
from mwpy._core.master.state import Actions
from mwpy._roles.access import FORKED
from mwpy._roles.cells import follow_cells
from mwpy._roles.executor_cells import ExecutorCells
from mwpy._roles.executor_computation import ExecutorComputation
from mwpy._roles.executor_counts import Counts
from mwpy._roles.executor_demand import Demand
from mwpy._roles.executor_future import Future
from mwpy._roles.executor_submission import Submission, Work
from mwpy._roles.executor_window import Window
from mwpy._roles.own_overseer import OwnOverseer
from mwpy._roles.parts import MasterParts
from mwpy._roles.progress import Careful, Progress
from mwpy._values.errors import OutOfTime, UsageError
from mwpy._values.policy import Policies
from mwpy._values.task import Result

__all__ = ["ExecutorThread", "Work"]

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
        self._cells = ExecutorCells(self.works, self.open, self._lock)
        # the thread sets these four when the computation has begun
        self._parts: MasterParts
        self._submission: Submission
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
        self._cells.wake = self._wake
        follow_cells(self._cells)

    def submit(self, work: Work) -> None:
        """Append a task.

        Raises:
            RuntimeError: the executor is shut down or broken.
            UsageError: this process was forked from that of the executor.
        """
        with self._lock:
            if self._refusal is not None:
                raise self._refusal
            self.works.append(work)
            self._cells.submitted += 1
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
        self.close(cancel=True)
        handed_over = self._next  # before the others, because it becomes one of them
        for future in [handed_over, *self.open.values()]:
            if future is not None:
                future.cancel(kill=True)

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
            self._submission = Submission(self._parts, self.wrap)
            if self.overseer is not None:
                self.overseer.start()
        except BaseException:
            self.computation.end(finished=False)
            raise
        io = self._parts.access.io
        if self.progress is not None:
            shown = Progress(Careful(self.progress.display), self.progress.total)
            counts = partial(self._counts.figures, self.open, self.works)
            io.progress.begin(shown, lambda: counts(io.num_slaves))
        self._wake = io.on_slaves = lambda: io.outcomes.put(Actions())
        self._count_slaves = lambda: io.num_slaves

    def _end(self, finished: bool) -> None:
        try:
            self.computation.end(finished)
        finally:
            if self.overseer is not None:
                self.overseer.end()

    def _serve(self) -> bool:
        """Hand over tasks, wait, and give out results. Return whether there is more to do."""
        self._cells.cancel()
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
            self._cells.taken = future.place = self._cells.taken + 1
            if not future.start():
                continue
            try:
                if work[1] is not last[1] or work[4] is not last[4]:
                    last, terms = (
                        _NO_WORK,
                        self._submission.terms_of(work),
                    )  # once for all calls of a function that follow
                    last = work
                future.task_id = number = self._submission.submit(work, terms)
            except BaseException as error:
                future.end(error=error)
            else:
                self.open[number] = future
                room -= 1
        self._next = None
        if io.link.asleep:
            io.link.wake()
        return room

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
