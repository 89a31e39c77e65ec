"""Remembers which results only one host computed, and says so when this host turns out to compute wrongly."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from mwpy._core.master.kept_calls import KeptCalls, ranges_of
from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterState
from mwpy._values import records
from mwpy._values.phrases import counted

__all__ = ["RANGES_KEPT", "Doubts", "joined", "without"]

RANGES_KEPT = 100_000
"""How many ranges of ids of results are kept, of all hosts together, in case a host is outvoted later. More are only
counted."""


class _Alone(Struct, eq=False):
    """The results that one host alone computed and that the algorithm has got."""

    ranges: deque[tuple[int, int]] = field(default_factory=deque)
    forgotten: int = 0
    """How many are not in `ranges` any more."""

    def continues(self, first: int, count: int) -> bool:
        """Add results to the last range, if they continue it. Return whether they do."""
        if not self.ranges or sum(self.ranges[-1]) != first:
            return False
        self.ranges[-1] = self.ranges[-1][0], self.ranges[-1][1] + count
        return True

    def forget_oldest(self) -> None:
        self.forgotten += self.ranges.popleft()[1]

    @property
    def count(self) -> int:
        return self.forgotten + sum(count for _, count in self.ranges)


class Doubts(Struct, eq=False):
    """The results that only one host computed."""

    state: MasterState
    calls: KeptCalls = field(default_factory=KeptCalls)
    """The calls of their tasks."""
    outvoted: dict[str, int] = field(default_factory=dict)
    """The hosts that computed wrong results, and how many."""
    _alone: dict[str, _Alone] = field(default_factory=dict)
    """By host: the results that it alone computed, and that the algorithm has got."""
    _num_ranges: int = 0
    """How many ranges of ids there are, of all hosts."""

    def given(self, host: str, spans: Iterable[Span]) -> None:
        """The algorithm gets results that only this host computed."""
        is_wrong = host in self.outvoted
        for span in spans:
            if is_wrong and span.policy.corrects:
                for call in span.tags:
                    call.only = host
            else:
                for first, count in ranges_of(span):
                    self._add(host, first, count)
                self.calls.keep(host, span)
        if is_wrong and host in self._alone:
            text = f"host {host} computed other results wrongly, and nobody could compare its last ones."
            self.state.notice(text + self.doubt(host), key=f"doubted {host}")

    def _add(self, host: str, first: int, count: int) -> None:
        alone = self._alone.setdefault(host, _Alone())
        if alone.continues(first, count):
            return
        if self._num_ranges == RANGES_KEPT:
            oldest = alone if alone.ranges else max(self._alone.values(), key=lambda each: len(each.ranges))
            oldest.forget_oldest()
        else:
            self._num_ranges += 1
        alone.ranges.append((first, count))

    def doubt(self, host: str) -> str:
        """Record which results only this host computed, and forget them.

        Returns:
            What the user should know about them, after a space; empty if there are none.
        """
        alone = self._alone.pop(host, None)
        if alone is None:
            return ""
        self._num_ranges -= len(alone.ranges)
        kept, reasons = self.calls.doubt(host)
        missing = without(alone.ranges, kept)
        self.state.record(records.ResultsDoubted(host, [*alone.ranges], alone.forgotten, missing, reasons))
        num_kept = sum(count for _, count in kept)
        num_missing = alone.count - num_kept
        text = (
            f" You already have {counted(alone.count, 'result')} that only {host} computed: the audit file lists the "
            f"task ids."
        )
        if num_kept:
            text += f" mw.corrections() computes {num_kept if num_missing else 'them'} again."
        if num_missing:
            why = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
            text += (
                f" {num_missing} cannot be computed again by mw.corrections() ({why}): submit those tasks again, or "
                f"leave out results with this `result.host`."
            )
        return text

    def check(self) -> None:
        """Assert that not too many ids are kept, and recompute the sizes of the calls."""
        num_ranges = sum(len(alone.ranges) for alone in self._alone.values())
        assert num_ranges == self._num_ranges <= RANGES_KEPT, "too many ids are kept, or they were miscounted"
        self.calls.check()


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges of ids in ascending order, with those in one that continue each other."""
    found: list[tuple[int, int]] = []
    for first, count in sorted(ranges):
        if found and sum(found[-1]) == first:
            found[-1] = found[-1][0], found[-1][1] + count
        else:
            found.append((first, count))
    return found


def without(ranges: Iterable[tuple[int, int]], others: Iterable[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    """Return the ids in some ranges that are in no other range. Each range is its first id and its count."""
    left: list[tuple[int, int]] = []
    removed = deque(sorted(others))
    for first, count in sorted(ranges):
        start, end = first, first + count
        while removed and removed[0][0] < end:
            other, num = removed[0]
            if start < other:
                left.append((start, other - start))
            start = max(start, min(end, other + num))
            if other + num > end:
                break
            removed.popleft()
        if start < end:
            left.append((start, end - start))
    return left
