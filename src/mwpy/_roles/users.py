"""The threads that use a master: that of its algorithm, and one for each executor that shares its slaves.

The I/O thread takes tasks from all of them, and divides what comes back. What ends belongs to the owner of the task: a
map, or an executor. The algorithm fetches the ends of tasks without an owner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from queue import SimpleQueue
from typing import Any, Protocol

from attrs import Factory, define
from msgspec import Struct, field
from msgspec.structs import replace

from mwpy._core.master.state import Actions, LogGroup, Waiting
from mwpy._roles.progress import OpenProgress
from mwpy._values.groups import Ended, count_of
from mwpy._values.messages import LogRow, MapStatus, size_of_records

NO_NEWS = Actions()
"""What a thread has no need to get."""


class Owner(Protocol):
    """What submits tasks and gets their ends: a map, or an executor."""

    @property
    def user(self) -> User: ...


class OpenMap(Owner, Protocol):
    """A map, which gets ends in the thread of the algorithm."""

    unread: int | None
    is_read: bool
    closed: bool
    last: int
    num_open: int

    @property
    def num_waiting(self) -> int: ...
    @property
    def status(self) -> MapStatus: ...
    def arrive(self, ended: Sequence[Ended]) -> None: ...
    def item(self, task_id: int) -> Any: ...
    def ids(self, last: int) -> list[int]: ...
    def forget(self) -> None: ...


class Submitter(Owner, Protocol):
    """An executor."""

    def close(self) -> None: ...
    def give_up(self) -> None: ...
    def join(self) -> None: ...
    def cell_interrupted(self) -> None: ...

    @property
    def broken(self) -> Exception | None: ...
    @property
    def open(self) -> Mapping[int, Any]: ...


class User(Struct, eq=False):
    """A thread that uses a master. It writes all fields, except those that say otherwise."""

    owner: Submitter | None = None
    """The executor of the thread; None for the algorithm of the master."""
    outcomes: SimpleQueue[Actions | BaseException] = field(default_factory=SimpleQueue)
    """What the I/O thread hands over."""
    progress: OpenProgress = field(default_factory=OpenProgress)
    """What is shown while the thread waits."""
    waiting: Waiting = Waiting.NOT
    """An executor waits as long as it has open tasks, whatever is here."""
    fetched_bytes: int = 0
    """About how many bytes of results the algorithm has fetched. Results of an executor never wait."""
    interrupted: bool = False
    """Whether the thread was stopped for lack of time. Then the computation is not finished."""
    news: Actions | None = None
    """Outcomes that are not handed over yet. The I/O thread writes this field."""


@define(eq=False, repr=False)
class Users:
    """The threads that use one master."""

    algorithm: User = Factory(User)
    """The thread of the algorithm; or that of the executor which has a master of its own."""
    executors: list[User] = Factory(list)
    """Those that share the master and have not ended. Their threads add themselves and remove themselves."""
    submitted: int = 0
    """How many tasks the executors have ever submitted."""
    _ended: int = 0
    """How many of these have ended."""
    _ended_others: int = 0
    """How many tasks of the algorithm have ended."""

    def __iter__(self) -> Iterator[User]:
        yield self.algorithm
        yield from list(self.executors)

    @property
    def submitters(self) -> Iterator[Submitter]:
        """The executors that have not ended. Any thread may ask."""
        return (user.owner for user in self if user.owner is not None)

    def runnable(self, total: int) -> int:
        """How many tasks of the algorithm have not ended, if so many were ever submitted. Call this while
        `MasterIo.submitting` is held."""
        return total - self.submitted - self._ended_others

    # ---- for the I/O thread ----

    def waiting(self) -> Waiting:
        """How long the master is waited for, by the algorithm or by an executor."""
        return max(Waiting.FOREVER if user.owner is not None and user.owner.open else user.waiting for user in self)

    def divide(self, actions: Actions, ended: int) -> None:
        """Leave only what is for the algorithm in the outcomes of the core. An executor gets no reports.

        Args:
            ended: how many tasks have ended.
        """
        news = {user: Actions(ends_at=actions.ends_at) for user in list(self.executors)}
        if news:
            actions.logged = [part for group in actions.logged for part in _without_own(group, news)]
        actions.reports = [each for each in actions.reports if each[0] is None or each[0].user is self.algorithm]
        for owner, own in list(actions.owned.items()):
            if owner.user.owner is not None:
                all_ended = chain(actions.results, actions.unrunnable, *actions.owned.values())
                actions.result_bytes -= actions.result_bytes * len(own) // sum(map(count_of, all_ended))
            if owner.user is not self.algorithm:
                self._ended += len(own)
                del actions.owned[owner]
                if owner.user in news:  # it has not ended
                    news[owner.user].owned[owner] = own
        self._ended_others = ended - self._ended
        for user, for_user in news.items():
            user.news = None if for_user == NO_NEWS else for_user

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


def _without_own(group: LogGroup, news: Mapping[User, Actions]) -> list[LogGroup]:
    """Give records to the executors whose tasks have made them. Return what is left of the group."""
    own: dict[User | None, list[LogRow]] = {}
    for row in group.rows:
        user = next((user for user in news if user.owner is not None and row.task in user.owner.open), None)
        own.setdefault(user, []).append(row)
    others, size = own.pop(None, []), group.size
    for user, rows in own.items():
        assert user is not None
        own_size = sum(map(size_of_records, rows))
        size -= own_size
        news[user].logged.append(replace(group, rows=rows, left_out=0, size=own_size))
    return [replace(group, rows=others, size=size)] if others or group.left_out else []
