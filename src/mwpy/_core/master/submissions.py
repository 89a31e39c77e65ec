"""Tasks on their way from the master algorithm's thread to the core's thread, and the counts of both sides.

A task is four fields in a list. The list holds the tasks that have the same algorithm and policy and were submitted one
after the other. One call appends all four fields, so one thread can add while the other takes from the head, without
a lock. No object is made for a task. If two threads add at once, the ids are out of order, and `take` notices it.

The master algorithm asks how many tasks are pending. Some of these tasks wait here, and the others are in the core. The
core's thread publishes what it has taken and what is pending in the core, as one object; the algorithm's thread adds
what it has submitted since. So a task is always counted exactly once.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field
from msgspec import Struct

from mwpy._core.master.spans import Span
from mwpy._values.errors import UsageError
from mwpy._values.ids import Buffer, TaskId
from mwpy._values.messages import AlgorithmDefinition
from mwpy._values.task import DEFAULT_POLICY, TaskPolicy

__all__ = ["Submissions"]

FIELDS = 4
"""The number of fields of a task: id, payload, buffers, tag."""


@define(eq=False)
class _Batch:
    """Tasks that differ only in arguments and tags."""

    algorithm: AlgorithmDefinition | None
    policy: TaskPolicy
    before: int
    """How many tasks were added before the first of this batch."""
    fields: list[Any] = field(factory=list)


class _Published(Struct, frozen=True):
    """The counts of the core's thread at one moment."""

    taken: dict[int, int]
    """How many tasks of each algorithm it has ever taken, by the number of its definition."""
    total_taken: int
    pending: Mapping[int, int]
    """How many tasks of each algorithm are pending in the core."""
    runnable: int
    """How many tasks are pending in the core or at slaves."""


class Submissions:
    """Counts all tasks that were ever submitted, and keeps the tasks that were not yet taken."""

    def __init__(self) -> None:
        self.total = 0
        """How many tasks were ever added; also the id of the last one."""
        self._open = _Batch(None, DEFAULT_POLICY, 0)
        self._batches = deque([self._open])
        """Tasks are added to the last batch only."""
        self._closed: Counter[int] = Counter()
        """How many tasks of each algorithm were ever added to batches before the last."""
        self._taken: Counter[int] = Counter()
        self._total_taken = 0
        self._published = _Published({}, 0, {}, 0)

    # ---- for the thread of the master algorithm ----

    def add(
        self, algorithm: AlgorithmDefinition, policy: TaskPolicy, payload: bytes, buffers: Sequence[Buffer], tag: object
    ) -> TaskId:
        """Add a task and return its id."""
        batch = self._open
        if algorithm is not batch.algorithm or (policy is not batch.policy and policy != batch.policy):
            batch = self._begin(algorithm, policy)
        self.total = number = self.total + 1
        batch.fields.extend((number, payload, buffers, tag))
        return TaskId(number)

    def _begin(self, algorithm: AlgorithmDefinition, policy: TaskPolicy) -> _Batch:
        if self._open.algorithm is not None:
            self._closed[self._open.algorithm.number] += self.total - self._open.before
        self._open = _Batch(algorithm, policy, self.total)
        self._batches.append(self._open)
        return self._open

    def _added(self, algorithm: AlgorithmDefinition) -> int:
        """How many tasks of an algorithm were ever added."""
        in_last = self.total - self._open.before if self._open.algorithm is algorithm else 0
        return self._closed[algorithm.number] + in_last

    def pending(self, algorithm: AlgorithmDefinition | None = None) -> int:
        """How many tasks of an algorithm, or of all, are submitted and not sent to a slave."""
        core = self._published
        if algorithm is None:
            return self.total - core.total_taken + sum(core.pending.values())
        return self._added(algorithm) - core.taken.get(algorithm.number, 0) + core.pending.get(algorithm.number, 0)

    def runnable(self) -> int:
        """How many tasks are pending or at slaves."""
        core = self._published
        return self.total - core.total_taken + core.runnable

    # ---- for the thread of the core ----

    def __bool__(self) -> bool:
        """Whether there is a task to take."""
        return len(self._batches) > 1 or bool(self._batches[0].fields)

    def take(self) -> list[Span]:
        """Take all tasks that wait here. The caller gives them to the core, then calls `publish`.

        Raises:
            UsageError: two threads added at once; the caller's fault.
        """
        spans: list[Span] = []
        for _ in range(len(self._batches)):
            batch = self._batches[0]
            if len(self._batches) > 1:  # nothing is added to this batch any more
                self._batches.popleft()
            count = len(batch.fields)
            taken = batch.fields[:count]
            del batch.fields[:count]
            if taken:
                spans.append(self._span(batch, taken))
        return spans

    def _span(self, batch: _Batch, taken: list[Any]) -> Span:
        assert batch.algorithm is not None
        ids, payloads, buffers, tags = taken[::FIELDS], taken[1::FIELDS], taken[2::FIELDS], taken[3::FIELDS]
        if ids != [*range(self._total_taken + 1, self._total_taken + 1 + len(ids))]:
            raise UsageError("tasks were submitted by two threads at once: a master is for one")
        self._total_taken += len(ids)
        self._taken[batch.algorithm.number] += len(ids)
        return Span(ids[0], len(ids), batch.algorithm, batch.policy, payloads, buffers if any(buffers) else [], tags)

    def publish(self, pending: Mapping[int, int], runnable: int) -> None:
        """Publish the core's counts. Call this after the core has received all tasks that were taken.

        Args:
            pending: how many tasks of each algorithm, by its number, are pending in the core. The caller does not
                change this mapping later.
            runnable: how many tasks are pending in the core or at slaves.
        """
        self._published = _Published(dict(self._taken), self._total_taken, pending, runnable)

    def check(self) -> None:
        """Compare the counts with the tasks that wait here. No other thread may add tasks during this call."""
        waiting: Counter[int] = Counter()
        definitions = {batch.algorithm.number: batch.algorithm for batch in self._batches if batch.algorithm}
        for batch in self._batches:
            waiting[batch.algorithm.number if batch.algorithm else -1] += len(batch.fields) // FIELDS
        assert self.total == self._total_taken + sum(waiting.values()), "a task was lost on the way to the core"
        assert self._total_taken == sum(self._taken.values()), "the tasks that were taken were miscounted"
        for number, algorithm in definitions.items():
            assert self._added(algorithm) == self._taken[number] + waiting[number], f"{algorithm.name} was miscounted"
        core = self._published
        assert sum(core.pending.values()) <= core.runnable <= core.total_taken <= self._total_taken
