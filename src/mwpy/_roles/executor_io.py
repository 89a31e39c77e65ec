"""How the threads of executors use a master beside the thread of its algorithm.

The I/O thread takes tasks from all of them, and divides what comes back: the tag of an executor's task is its future,
which knows its executor. What concerns no task of an executor is for the algorithm.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterator, Sequence, Sized
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.core import MasterCore
from mwpy._core.master.state import Actions, Command, LogGroup, Waiting
from mwpy._core.master.submissions import Submissions
from mwpy._roles.edges import MasterConnections
from mwpy._roles.local_agents import LocalAgents
from mwpy._roles.progress import ExecutorProgress, OpenProgress
from mwpy._values.bounds import Buffer, TaskId
from mwpy._values.messages import size_of_records
from mwpy._values.policy import TaskPolicy

if TYPE_CHECKING:
    from mwpy._roles.executor_future import Future

FROM_LEAST_TO_MOST = (Waiting.NOT, Waiting.FOR_A_WHILE, Waiting.FOREVER)


class _Tagged(Protocol):
    @property
    def tag(self) -> Any: ...
    @property
    def task_id(self) -> int: ...


E = TypeVar("E", bound=_Tagged)


class Owner(Protocol):
    """The executor, whose thread uses the master. Any thread may call these methods."""

    def kill(self, future: Future[Any]) -> None: ...
    def close(self) -> None: ...
    def give_up(self) -> None: ...
    def join(self) -> None: ...

    @property
    def broken(self) -> Exception | None: ...
    @property
    def works(self) -> Sized: ...


class SharedIo(Protocol):
    """What the I/O thread of a master has for all threads that use it."""

    core: MasterCore
    submissions: Submissions
    submitting: threading.RLock
    algorithm_numbers: Iterator[int]
    executors: ExecutorIos
    progress: OpenProgress
    holds_back: bool
    local: LocalAgents

    @property
    def link(self) -> MasterConnections: ...
    @property
    def num_slaves(self) -> int: ...
    def command(self, command: Command) -> None: ...


class ExecutorIo:
    """The I/O thread of a master as the thread of one executor sees it. It has what the parts of a master use there.

    Args:
        io: the I/O thread.
        owner: the executor. The futures are made with its method `kill`.
    """

    def __init__(self, io: SharedIo, owner: Owner) -> None:
        self.io = io
        self.owner = owner
        self.core = io.core
        self.link = io.link
        self.local = io.local
        self.submitting = io.submitting
        self.algorithm_numbers = io.algorithm_numbers
        self.keyed = io.submissions.keyed
        """Whether each task has a key."""
        self.outcomes: SimpleQueue[Actions | BaseException] = SimpleQueue()
        self.progress = ExecutorProgress(io.progress)
        self.waiting = Waiting.NOT
        self.interrupted = False
        self.on_slaves: Callable[[], None] | None = None
        self.fetched_bytes = 0
        """The results of an executor never wait, so nothing is counted."""
        self.handled_log_bytes = 0
        """About how many bytes of records this thread has handled."""
        self.open_ids: set[int] = set()
        """The tasks of this executor that have not ended. One thread adds to them, and the I/O thread removes some."""
        self._news: Actions | None = None

    @property
    def submissions(self) -> ExecutorIo:
        """The submission of tasks."""
        return self

    @property
    def holds_back(self) -> bool:
        return self.io.holds_back

    @property
    def num_slaves(self) -> int:
        return self.io.num_slaves

    @property
    def total(self) -> int:
        """The id of the last task of the master."""
        return self.io.submissions.total

    def command(self, command: Command) -> None:
        self.io.command(command)

    def runnable(self) -> int:
        """How many tasks of the master have not ended."""
        return self.io.submissions.runnable()

    def add_keyed(
        self,
        algorithm: Defined,
        policy: TaskPolicy,
        payload: bytes,
        buffers: Sequence[Buffer],
        tag: object,
        key: bytes | None,
    ) -> TaskId:
        """Submit a task; see `Submissions`."""
        with self.io.submitting:
            self.io.executors.submitted += 1
            number = self.io.submissions.add_keyed(algorithm, policy, payload, buffers, tag, key)
            self.open_ids.add(number)
        return number

    # ---- for the I/O thread ----

    def take_from(self, actions: Actions) -> None:
        """Take what is for this executor out of the outcomes of the master."""
        own = Actions(cancelled=actions.cancelled, ends_at=actions.ends_at)
        if actions.logged:
            parts = [_divided(group, self.open_ids) for group in actions.logged]
            own.logged, actions.logged = ([part for part in some if part] for some in zip(*parts, strict=True))
        own.results, actions.results = self._divided(actions.results)
        own.unrunnable, actions.unrunnable = self._divided(actions.unrunnable)
        self.open_ids.difference_update(result.task_id for result in own.results)
        self.open_ids.difference_update(task.task_id for task in own.unrunnable)
        if own.results:
            ids = {result.task_id for result in own.results}
            count = len(ids) + len(actions.results) + sum(stretch.count for stretch in actions.stretches)
            actions.result_bytes -= actions.result_bytes * len(ids) // count
            own.failed = [call for call in actions.failed if call.task_id in ids]
            actions.failed = [call for call in actions.failed if call.task_id not in ids]
        if own.results or own.unrunnable or own.cancelled or own.logged or own.ends_at is not None:
            self._news = own

    def _divided(self, all_of_them: list[E]) -> tuple[list[E], list[E]]:
        from mwpy._roles.executor_future import Future  # only here, because it loads concurrent.futures and logging

        own, others = list[E](), list[E]()
        for each in all_of_them:
            is_own = type(each.tag) is Future and each.tag.kill_by == self.owner.kill
            (own if is_own else others).append(each)
        return own, others

    def take(self) -> list[tuple[SimpleQueue[Actions | BaseException], Actions]]:
        """What must be handed over to the thread, and how."""
        news, self._news = self._news, None
        return [] if news is None else [(self.outcomes, news)]


class ExecutorIos(Struct, eq=False):
    """The executors of a master, as its I/O thread sees them."""

    is_used: bool = False
    """Whether there ever was one."""
    submitted: int = 0
    """How many tasks they have submitted. It is changed while `MasterIo.submitting` is held."""
    ended_others: int = 0
    """How many tasks have ended that no executor has submitted."""
    _ended: int = 0
    _open: list[ExecutorIo] = field(default_factory=list)
    _handled_log_bytes: int = 0
    """What the executors that have ended had handled."""

    def begin(self, executor: ExecutorIo) -> None:
        """Divide the outcomes with another thread, which calls this."""
        self._open.append(executor)
        self.is_used = True

    def end(self, executor: ExecutorIo) -> None:
        """The thread takes no more outcomes. It calls this."""
        self._open.remove(executor)
        self._handled_log_bytes += executor.handled_log_bytes

    def owners(self) -> list[Owner]:
        """The executors that have not ended."""
        return [each.owner for each in list(self._open)]

    def queued(self) -> int:
        """How many tasks wait in the queues of the executors."""
        return sum(len(owner.works) for owner in self.owners())

    def open_ids(self) -> set[int]:
        """The tasks of executors that have not ended."""
        return set().union(*(each.open_ids for each in list(self._open)))

    # ---- for the I/O thread ----

    def waiting(self, algorithm: Waiting) -> Waiting:
        """How long the master is waited for, by the algorithm or by an executor."""
        return max([algorithm, *(each.waiting for each in list(self._open))], key=FROM_LEAST_TO_MOST.index)

    def handled_log_bytes(self) -> int:
        """About how many bytes of records the executors have handled."""
        return self._handled_log_bytes + sum(each.handled_log_bytes for each in list(self._open))

    def divide(self, actions: Actions, ended: int) -> None:
        """Leave only what is for the algorithm in the outcomes of the master.

        Args:
            ended: how many tasks have ended.
        """
        if not self.is_used:
            return
        before = len(actions.results) + len(actions.unrunnable)
        for executor in list(self._open):
            executor.take_from(actions)
        actions.results = _without_futures(actions.results)  # those of executors that have ended
        actions.unrunnable = _without_futures(actions.unrunnable)
        self._ended += before - len(actions.results) - len(actions.unrunnable)
        self.ended_others = ended - self._ended

    def take(self) -> list[tuple[SimpleQueue[Actions | BaseException], Actions]]:
        """What must be handed over to the threads, and how."""
        return [each for executor in list(self._open) for each in executor.take()]

    def deliver(self) -> None:
        """Hand over what the threads may be waiting for."""
        for queue, outcomes in self.take():
            queue.put(outcomes)

    def fail(self, error: BaseException) -> None:
        """The I/O thread has died."""
        for executor in list(self._open):
            executor.outcomes.put(error)

    def slaves_changed(self) -> None:
        """The number of connected slaves has changed."""
        for executor in list(self._open):
            if executor.on_slaves is not None:
                executor.on_slaves()


def _divided(group: LogGroup, ids: Container[int]) -> tuple[LogGroup | None, LogGroup | None]:
    """Divide records into those of some tasks, and the others."""
    own = [row for row in group.rows if row.task in ids]
    if not own:
        return None, group
    if len(own) == len(group.rows) and not group.left_out:
        return group, None
    size, others = sum(map(size_of_records, own)), [row for row in group.rows if row.task not in ids]
    return replace(group, rows=own, left_out=0, size=size), replace(group, rows=others, size=group.size - size)


def _without_futures(all_of_them: list[E]) -> list[E]:
    from mwpy._roles.executor_future import Future  # only here, as above

    return [each for each in all_of_them if type(each.tag) is not Future]
