"""Keeps the calls of tasks whose results only one host computed, in case this host turns out to compute wrongly.

The algorithm has got these results. If the host is outvoted later, they are in doubt, and the algorithm may ask for a
second computation of them (`corrections.py`). So their calls are kept, up to `KEPT_BYTES`. Then the oldest ones go, but
never one whose result is in doubt. What several calls share counts once: functions by value, and shared objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from mwpy._core.master.algorithms import OVERHEAD_BYTES, Defined
from mwpy._core.master.spans import Span, size_of
from mwpy._values.ids import Buffer
from mwpy._values.phrases import amount
from mwpy._values.policy import TaskPolicy
from mwpy._values.shares import shares_in

__all__ = ["KEPT_BYTES", "DoubtedCall", "KeptCalls", "ranges_of"]

KEPT_BYTES = 256 << 20
"""How many bytes the calls take that are kept. The manual names this number."""

CALL_BYTES = 200
"""About how many bytes a call takes beside its arguments."""


class DoubtedCall(Struct, eq=False):
    """The call of a task whose result is in doubt. It is the tag of the task that computes the result again."""

    task_id: int
    """The task with the result that the algorithm has."""
    tag: Any
    """The tag of this task."""
    algorithm: Defined
    policy: TaskPolicy
    payload: bytes
    """The encoded arguments."""
    buffers: Sequence[Buffer]
    only: str = ""
    """If nobody but a host that computes wrongly could compute it again: this host. The core sets it before the
    algorithm gets the second result."""


class KeptCalls(Struct, eq=False):
    """The calls of one master."""

    doubted: dict[int, Span] = field(default_factory=dict)
    """The tasks whose results are in doubt, and for which the algorithm did not ask, by the id of the first."""
    bytes: int = 0
    """About how many bytes all calls take."""
    _calls: dict[int, tuple[str, Span]] = field(default_factory=dict)
    """All others, oldest first: the host that computed the results, and the tasks."""
    _parts: dict[object, tuple[int, int]] = field(default_factory=dict)
    """What several calls share: how many spans use it, and its size in bytes."""
    _missing: dict[str, Counter[str]] = field(default_factory=dict)
    """By host: why calls are not kept, and how many."""

    def keep(self, host: str, span: Span) -> None:
        """Keep the calls of tasks whose results only this host computed, unless these tasks cannot run twice."""
        why_not = _why_not(span)
        if why_not:
            self._miss(host, why_not, span)
            return
        self._calls[span.first] = host, span
        self._add(span)
        while self.bytes > KEPT_BYTES and self._calls:
            oldest, dropped = self._calls.pop(next(iter(self._calls)))
            self._remove(dropped)
            self._miss(oldest, f"newer calls took the {amount(KEPT_BYTES)} that are kept", dropped)

    def _miss(self, host: str, why: str, span: Span) -> None:
        self._missing.setdefault(host, Counter())[why] += span.count

    def doubt(self, host: str) -> tuple[list[tuple[int, int]], dict[str, int]]:
        """The results that only this host computed are in doubt.

        Returns:
            The first id and the count of each range of tasks whose calls are kept. Then, why others are not kept, and
            how many each time.
        """
        found = [span for computed_by, span in self._calls.values() if computed_by == host]
        for span in found:
            del self._calls[span.first]
            self.doubted[span.first] = span
        return [each for span in found for each in ranges_of(span)], dict(self._missing.pop(host, {}))

    def hand_out(self, spans: Iterable[Span]) -> list[DoubtedCall]:
        """Remove some of the calls whose results are in doubt, and return them."""
        calls: list[DoubtedCall] = []
        for span in spans:
            del self.doubted[span.first]
            self._remove(span)
            policy = replace(span.policy, corrects=True, speculate=False)
            columns = zip(_originals(span), span.payloads, span.buffers or [()] * span.count, strict=True)
            calls += [DoubtedCall(*first, span.algorithm, policy, payload, own) for first, payload, own in columns]
        return calls

    def _add(self, span: Span) -> None:
        self.bytes += _own_size(span)
        for part, size in _parts_of(span):
            uses, _ = self._parts.get(part, (0, 0))
            self._parts[part] = uses + 1, size
            if not uses:
                self.bytes += size

    def _remove(self, span: Span) -> None:
        self.bytes -= _own_size(span)
        for part, size in _parts_of(span):
            uses, _ = self._parts.pop(part)
            if uses > 1:
                self._parts[part] = uses - 1, size
            else:
                self.bytes -= size

    def check(self) -> None:
        """Recompute the sizes."""
        spans = [*self.doubted.values(), *(span for _, span in self._calls.values())]
        parts = dict(each for span in spans for each in _parts_of(span))
        assert parts == {part: size for part, (_, size) in self._parts.items()}, "a part of kept calls was miscounted"
        size = sum(map(_own_size, spans)) + sum(parts.values())
        assert self.bytes == size <= KEPT_BYTES, "too many calls are kept, or their sizes were added up wrongly"


def ranges_of(span: Span) -> list[tuple[int, int]]:
    """The tasks that the algorithm knows: the first id and the count of each range."""
    if not span.policy.corrects:
        return [(span.first, span.count)]
    return [(number, 1) for number, _ in _originals(span)]


def _originals(span: Span) -> Iterator[tuple[int, Any]]:
    """The id and the tag of each task, as the algorithm knows it."""
    if span.policy.corrects:
        return ((call.task_id, call.tag) for call in span.tags)
    return zip(span.ids, span.tags, strict=True)


def _why_not(span: Span) -> str:
    """Why tasks cannot run twice; empty if they can."""
    policy = span.policy
    if not policy.retry:
        return "retry=False"
    if policy.sid is not None:
        return "addressed to a slave"
    if span.refers or span.has_values:
        return "refer to results of other tasks"
    return "must run alone" if span.runs_alone else ""


def _own_size(span: Span) -> int:
    return size_of(span) + CALL_BYTES * span.count


def _parts_of(span: Span) -> list[tuple[object, int]]:
    """What calls may share with others: how it is known, and its size in bytes."""
    algorithm = span.algorithm
    parts = {each.share.digest: each.share.size for each in (*algorithm.shares, *shares_in(span.buffers))}
    if algorithm.size:
        return [*parts.items(), (algorithm.number, OVERHEAD_BYTES + len(algorithm.record.packed))]
    return [*parts.items()]
