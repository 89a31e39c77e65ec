"""The threads that use a master: that of its algorithm, and one for each executor that shares its slaves.

The I/O thread takes tasks from all of them, and divides what comes back. It knows whose the open tasks of executors
are; everything else is for the algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from queue import SimpleQueue
from typing import Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from mwpy._core.master.state import Actions, LogGroup, Waiting
from mwpy._roles.progress import OpenProgress
from mwpy._values.messages import LogRow, size_of_records


class _OfTask(Protocol):
    @property
    def task_id(self) -> int: ...


E = TypeVar("E", bound=_OfTask)

NO_NEWS = Actions()
"""What a thread has no need to get."""


class Owner(Protocol):
    """An executor. Any thread may call these methods."""

    def close(self) -> None: ...
    def give_up(self) -> None: ...
    def join(self) -> None: ...

    @property
    def broken(self) -> Exception | None: ...
    @property
    def works(self) -> Sized: ...


class User(Struct, eq=False):
    """A thread that uses a master. It writes all fields, except those that say otherwise."""

    owner: Owner | None = None
    """The executor of the thread; None for the algorithm of the master."""
    outcomes: SimpleQueue[Actions | BaseException] = field(default_factory=SimpleQueue)
    """What the I/O thread hands over."""
    progress: OpenProgress = field(default_factory=OpenProgress)
    """What is shown while the thread waits."""
    waiting: Waiting = Waiting.NOT
    fetched_bytes: int = 0
    """About how many bytes of results the algorithm has fetched. Results of an executor never wait."""
    interrupted: bool = False
    """Whether the thread was stopped for lack of time. Then the computation is not finished."""
    follows_slaves: bool = False
    """Whether it gets an empty outcome when the number of connected slaves has changed."""
    news: Actions | None = None
    """Outcomes that are not handed over yet. The I/O thread writes this field."""


class Users(Struct, eq=False):
    """The threads that use one master."""

    algorithm: User = field(default_factory=User)
    executors: list[User] = field(default_factory=list)
    """Those that have not ended. Their threads add themselves and remove themselves."""
    owner_of: dict[int, User] = field(default_factory=dict)
    """The open tasks of executors. Executors add to it, and the I/O thread removes from it."""
    _submitted: int = 0
    """How many tasks executors have ever submitted."""
    _ended: int = 0
    """How many of these have ended."""
    _ended_others: int = 0
    """How many tasks of the algorithm have ended."""

    def __iter__(self) -> Iterator[User]:
        yield self.algorithm
        yield from list(self.executors)

    def queued(self) -> int:
        """How many tasks wait in the queues of the executors."""
        return sum(len(user.owner.works) for user in list(self.executors) if user.owner is not None)

    def submits(self, user: User, task_id: int) -> None:
        """A thread submits a task next. Call this while `MasterIo.submitting` is held."""
        if user is not self.algorithm:
            self._submitted += 1
            self.owner_of[task_id] = user

    def runnable(self, total: int) -> int:
        """How many tasks of the algorithm have not ended, if so many were ever submitted. Call this as `submits`."""
        return total - self._submitted - self._ended_others

    # ---- for the I/O thread ----

    def waiting(self) -> Waiting:
        """How long the master is waited for, by the algorithm or by an executor."""
        return max(user.waiting for user in self)

    def divide(self, actions: Actions, ended: int) -> None:
        """Leave only what is for the algorithm in the outcomes of the core. An executor gets no reports. What is for an
        executor that has ended is dropped.

        Args:
            ended: how many tasks have ended.
        """
        if self.owner_of or self.executors:
            self._divide(actions)
        self._ended_others = ended - self._ended

    def _divide(self, actions: Actions) -> None:
        news = {user: Actions(cancelled=actions.cancelled, ends_at=actions.ends_at) for user in list(self.executors)}
        count = len(actions.results) + sum(stretch.count for stretch in actions.stretches)
        actions.logged = [part for group in actions.logged for part in self._without_own(group, news)]
        actions.reports = [report for report in actions.reports if report.task_id not in self.owner_of]
        actions.failed, _ = self._divided(actions.failed, lambda own: own.failed, news)
        actions.results, own_results = self._divided(actions.results, lambda own: own.results, news)
        actions.unrunnable, own_unrunnable = self._divided(actions.unrunnable, lambda own: own.unrunnable, news)
        if own_results:
            actions.result_bytes -= actions.result_bytes * len(own_results) // count
        for number in [result.task_id for result in own_results] + [task.task_id for task in own_unrunnable]:
            self.owner_of.pop(number, None)
        self._ended += len(own_results) + len(own_unrunnable)
        for user, own in news.items():
            user.news = None if own == NO_NEWS else own

    def _divided(
        self, all_of_them: list[E], among: Callable[[Actions], list[E]], news: Mapping[User, Actions]
    ) -> tuple[list[E], list[E]]:
        """Give what concerns tasks to the executors whose tasks they are. Return what is left, and what is not.

        Args:
            among: where it belongs in the news of an executor.
            news: those of the executors that have not ended.
        """
        owns, others = list[E](), list[E]()
        for each in all_of_them:
            user = self.owner_of.get(each.task_id)
            (others if user is None else owns).append(each)
            if user is not None and user in news:
                among(news[user]).append(each)
        return others, owns

    def _without_own(self, group: LogGroup, news: Mapping[User, Actions]) -> list[LogGroup]:
        """Give records to the executors whose tasks have made them. Return what is left of the group."""
        own: dict[User, list[LogRow]] = {}
        others, size = list[LogRow](), group.size
        for row in group.rows:
            user = self.owner_of.get(row.task)
            (own.setdefault(user, []) if user is not None and user in news else others).append(row)
        for user, rows in own.items():
            own_size = sum(map(size_of_records, rows))
            size -= own_size
            news[user].logged.append(replace(group, rows=rows, left_out=0, size=own_size))
        return [replace(group, rows=others, size=size)] if others or group.left_out else []

    def slaves_changed(self) -> None:
        """The number of connected slaves has changed."""
        for user in self:
            if user.follows_slaves:
                user.outcomes.put(Actions())

    def take_news(self) -> list[tuple[SimpleQueue[Actions | BaseException], Actions]]:
        """What must be handed over to the threads, and how."""
        taken = []
        for user in self:
            if user.news is not None:
                taken.append((user.outcomes, user.news))
                user.news = None
        return taken

    def fail(self, error: BaseException) -> None:
        """Nothing more is handed over to any thread. Any thread may call this."""
        for user in self:
            user.outcomes.put(error)
