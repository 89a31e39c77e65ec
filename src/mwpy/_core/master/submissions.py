"""Tasks on their way into the core, and tasks that the algorithm cancels.

Tasks on their way from the master algorithm's thread to the core's thread, and the counts of both sides.

A task, or a portion of a map, is four fields in a list. The list holds the tasks that have the same algorithm and
policy and were submitted one after the other; a portion has a list of its own. One call appends all four fields, so one
thread can add while the other takes from the head, without a lock. No object is made for a task. If two threads add at
once, the ids are out of order, and `take` notices it.

The master algorithm asks how many tasks are pending. Some of these tasks wait here, and the others are in the core.
The algorithm's thread counts the tasks that it added, and the core's thread counts those that are not pending any more.
So a task is always counted exactly once, and no thread waits for the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.spans import Span
from mwpy._core.master.tasks import MAX_SPAN, Taskjar
from mwpy._values.bounds import Buffer, TaskId
from mwpy._values.errors import UsageError
from mwpy._values.groups import PackedCalls
from mwpy._values.policy import TaskPolicy
from mwpy._values.shares import plain_keys

FIELDS = 4
"""The number of fields of a task: id, payload, buffers, tag."""


class _Batch(Struct, eq=False):
    """Tasks that differ only in arguments and tags."""

    algorithm: Defined
    policy: TaskPolicy
    before: int
    """How many tasks were added before the first of this batch."""
    fields: list[Any] = field(default_factory=list)
    owner: Any = None
    """What gets the ends of these tasks; None if the algorithm fetches them."""
    refers: Sequence[int] = ()
    """The ids of the tasks to whose results it refers."""
    keys: dict[int, bytes] = field(default_factory=dict)
    """The keys of those tasks, by id, whose key does not follow from their payload."""


class Submissions:
    """Counts all tasks that were ever submitted, and keeps the tasks that were not yet taken.

    Args:
        jar: the taskjar of the core that takes the tasks.
        keyed: whether each task has a key, because there is a run database.
    """

    def __init__(self, jar: Taskjar, keyed: bool = False) -> None:
        self._jar = jar
        self.keyed = keyed
        """Whether each task has a key."""
        self.total = 0
        """How many tasks were ever added; also the id of the last one."""
        self._open: _Batch | None = None
        """The last batch, to which tasks are added; None if it is a portion, or a task that refers to results."""
        self._batches = deque[_Batch]()
        self.taken = 0
        """How many tasks were ever taken; also the id of the last one."""

    # ---- for the thread of the master algorithm ----

    def add(
        self,
        algorithm: Defined,
        policy: TaskPolicy,
        payload: bytes,
        buffers: Sequence[Buffer],
        tag: object,
        key: bytes | None = None,
        refers: Sequence[int] = (),
        owner: object = None,
    ) -> TaskId:
        """Add a task and return its id.

        Ctrl-C may interrupt this call. Python runs a signal handler only when a call has returned, when a function
        begins, and when a loop repeats. So the last steps of this method and of `_begin` are done all or not at all.

        Args:
            key: None if it follows from the payload, or if there is no run database.
            refers: the ids of the tasks to whose results it refers, each once.
            owner: what gets its end; None if the algorithm fetches it.
        """
        if refers:
            number = self.total + 1
            keys = {} if key is None else {number: key}
            fields = [number, payload, buffers, tag]
            self._add_closed(_Batch(algorithm, policy, number, fields, owner, refers, keys), 1)
            return TaskId(number)
        batch = self._open
        if (
            batch is None
            or algorithm is not batch.algorithm
            or owner is not batch.owner
            or (policy is not batch.policy and policy != batch.policy)
        ):
            batch = self._begin(algorithm, policy, owner)
        self.total = number = self.total + 1
        if key is not None:
            batch.keys[number] = key
        batch.fields.extend((number, payload, buffers, tag))
        return number  # type: ignore[return-value]  # a call of `TaskId` takes a tenth of `mw.submit`

    def add_portion(
        self, algorithm: Defined, policy: TaskPolicy, calls: PackedCalls, tag: object, owner: object
    ) -> None:
        """Add the tasks of a portion, which all have the same tag. It is safe from Ctrl-C like `add`."""
        first, count = self.total + 1, len(calls)
        fields = [first, calls, (), tag]
        self._add_closed(_Batch(algorithm, policy, self.total + count, fields, owner), count)

    def _begin(self, algorithm: Defined, policy: TaskPolicy, owner: object) -> _Batch:
        last, batch = self._open, _Batch(algorithm, policy, self.total, owner=owner)
        if last is not None:
            last.algorithm.added += self.total - last.before
        self._open = batch
        self._batches.append(batch)
        return batch

    def _add_closed(self, batch: _Batch, count: int) -> None:
        """Add a batch that is complete, with this many tasks."""
        last = self._open
        if last is not None:
            last.algorithm.added += self.total - last.before
        batch.algorithm.added += count
        self.total += count
        self._open = None
        self._batches.append(batch)

    def pending(self, algorithm: Defined | None = None) -> int:
        """How many tasks of an algorithm, or of all, are submitted and not sent to a slave."""
        if algorithm is None:
            return self.total - self._jar.away
        last = self._open
        in_last = self.total - last.before if last is not None and last.algorithm is algorithm else 0
        return algorithm.added + in_last - algorithm.away

    def runnable(self) -> int:
        """How many tasks have not ended."""
        return self.total - self._jar.ended

    # ---- for the thread of the core ----

    def __bool__(self) -> bool:
        """Whether there is a task to take."""
        return len(self._batches) > 1 or bool(self._batches and self._batches[0].fields)

    def take(self) -> list[Span]:
        """Take all tasks that wait here, in spans of limited length. The caller gives them to the core.

        Raises:
            UsageError: two threads added at once; the caller's fault.
        """
        spans: list[Span] = []
        if self.total == self.taken:
            return spans
        most = FIELDS * MAX_SPAN  # each message to a slave cuts a span, which copies what remains of it
        for _ in range(len(self._batches)):
            batch = self._batches[0]
            if len(self._batches) > 1:  # nothing is added to this batch any more
                self._batches.popleft()
            count = len(batch.fields)
            taken = batch.fields[:count]
            del batch.fields[:count]
            spans += [self._span(batch, taken[at : at + most]) for at in range(0, count, most)]
        return spans

    def _span(self, batch: _Batch, taken: list[Any]) -> Span:
        ids, payloads = taken[::FIELDS], tuple(taken[1::FIELDS])
        buffers, tags = tuple(taken[2::FIELDS]), tuple(taken[3::FIELDS])
        if ids != [*range(self.taken + 1, self.taken + 1 + len(ids))]:
            raise UsageError("tasks were submitted by two threads at once: a master is for one")
        own = buffers if any(buffers) else ()
        if type(payloads[0]) is PackedCalls:
            [payloads], tags = payloads, tags * len(payloads[0])
        self.taken += len(payloads)
        columns = payloads, own, tags
        span = Span(
            ids[0], len(payloads), batch.algorithm, batch.policy, *columns, refers=batch.refers, owner=batch.owner
        )
        if self.keyed:
            span.keys = _keys(payloads, [batch.keys.pop(number, None) for number in ids] if batch.keys else ())
        return span


def _keys(payloads: Sequence[bytes], given: Sequence[bytes | None]) -> bytes:
    """The keys of tasks, one after the other.

    Args:
        given: the key of each task, or None if it follows from the payload; empty if all do.
    """
    if not given:
        return plain_keys(payloads)
    return b"".join([key or plain_keys([payload]) for payload, key in zip(payloads, given, strict=True)])
