"""Tasks on their way from the master algorithm's thread to the one that owns the core.

A task is four fields in a list, behind those of the others of its algorithm and policy, which takes no object a task,
and which one call puts there as a whole. So one thread can add while another takes from the head, with no lock; and
two that add at once are found out, for then the ids are not in order.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from attrs import define, field

from mwpy._values.algorithm import Algorithm
from mwpy._values.errors import UsageError
from mwpy._values.ids import Buffer, TaskId
from mwpy._values.task import DEFAULT_POLICY, Span, TaskPolicy

__all__ = ["Submissions"]

FIELDS = 4
"""Of a task: id, payload, buffers, tag."""


@define(eq=False)
class _Batch:
    """Tasks that differ in nothing but arguments and tags."""

    algorithm: Algorithm | None
    policy: TaskPolicy
    before: int
    """How many tasks were added before them."""
    fields: list[Any] = field(factory=list)


class Submissions:
    """All tasks that were ever submitted, and those of them that were not yet taken."""

    def __init__(self) -> None:
        self.total = 0
        """How many were ever added: the id of the last."""
        self._open = _Batch(None, DEFAULT_POLICY, 0)
        self._batches = deque([self._open])
        """Only to the last is still added."""
        self._counts: Counter[Algorithm | None] = Counter()
        """How many tasks of each algorithm are in batches before the open one, ever."""
        self.taken = 0
        """How many of them were taken."""

    def __bool__(self) -> bool:
        """Whether there is anything to take."""
        return len(self._batches) > 1 or bool(self._batches[0].fields)

    def add(
        self, algorithm: Algorithm, policy: TaskPolicy, payload: bytes, buffers: Sequence[Buffer], tag: object
    ) -> TaskId:
        """Add a task; its id."""
        batch = self._open
        if algorithm is not batch.algorithm or (policy is not batch.policy and policy != batch.policy):
            batch = self._begin(algorithm, policy)
        self.total = number = self.total + 1
        batch.fields.extend((number, payload, buffers, tag))
        return TaskId(number)

    def _begin(self, algorithm: Algorithm, policy: TaskPolicy) -> _Batch:
        self._counts[self._open.algorithm] += self.total - self._open.before
        self._open = _Batch(algorithm, policy, self.total)
        self._batches.append(self._open)
        return self._open

    def count(self, algorithm: Algorithm) -> int:
        """How many tasks of an algorithm were ever added."""
        now = self.total - self._open.before if self._open.algorithm is algorithm else 0
        return self._counts[algorithm] + now

    def take(self) -> list[Span]:
        """Take all tasks that are here; for the other thread.

        Raises:
            UsageError: two threads added at once; the caller's fault.
        """
        spans: list[Span] = []
        for _ in range(len(self._batches)):
            batch = self._batches[0]
            if len(self._batches) > 1:  # so nothing is added to it from here on
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
        if ids != [*range(self.taken + 1, self.taken + 1 + len(ids))]:
            raise UsageError("tasks were submitted by two threads at once: a master is for one")
        self.taken += len(ids)
        return Span(ids[0], len(ids), batch.algorithm, batch.policy, payloads, buffers if any(buffers) else [], tags)
