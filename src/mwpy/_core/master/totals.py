"""Totals: what was done, what was lost, and what was asked for and used, for each algorithm on each host.

They are counted per group of tasks. The master states them at its end, and from time to time, in case it has no end.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterState
from mwpy._values import records
from mwpy._values.causes import Cause
from mwpy._values.policy import KINDS_KEPT, OTHER_KINDS, TaskPolicy

ROWS_KEPT = 10_000
"""How many pairs of algorithm and host are counted. More of them are counted together, as `OTHERS`."""

OTHERS = "(others)"

STATED_EVERY_S = 600.0
"""Seconds between two statements of all totals, if something happens."""


class _Total(Struct, eq=False):
    """What one algorithm did on one host."""

    tasks: int = 0
    failed: int = 0
    seconds: float = 0.0
    longest_s: float = 0.0
    kinds: dict[str, int] = field(default_factory=dict)
    """How many tasks failed, by the type of their exceptions."""
    lost: dict[Cause, int] = field(default_factory=dict)
    """How many attempts were lost, by cause."""
    lost_s: float = 0.0
    seconds_max: float = 0.0
    """The largest limit of time that a policy asked for; 0 if none did."""
    memory_max: int = 0
    """The largest limit of memory that a policy asked for; 0 if none did."""
    seconds_expected: float = 0.0
    """The longest time that a policy stated; 0 if none did."""
    memory_used: int = 0
    """The most memory that was measured while a task ran."""

    def asked(self, policy: TaskPolicy) -> None:
        """Note what a policy asks for."""
        self.seconds_max = max(self.seconds_max, policy.seconds_max or 0.0)
        self.seconds_expected = max(self.seconds_expected, policy.seconds_expected or 0.0)
        self.memory_max = max(self.memory_max, policy.memory_max or 0)

    def record(self, algorithm: str, host: str) -> records.Total:
        lost = {cause.value: count for cause, count in list(self.lost.items())}
        done = self.tasks, self.failed, self.seconds, self.longest_s, lost, self.lost_s
        memory = self.memory_max, self.memory_used
        return records.Total(algorithm, host, *done, self.seconds_max, *memory, self.seconds_expected)


class Totals(Struct, eq=False):
    """Counts what was done and what was lost."""

    state: MasterState
    rows: dict[tuple[str, str], _Total] = field(default_factory=dict)
    """By algorithm and host."""
    _changed: dict[tuple[str, str], None] = field(default_factory=dict)
    """The rows that have changed since they were stated."""
    state_at: float = 0.0
    """When to state the totals again, on the core's clock."""

    def _row(self, algorithm: str, host: str) -> _Total:
        key = algorithm, host
        row = self.rows.get(key)
        if row is None:
            if len(self.rows) >= ROWS_KEPT:
                key = OTHERS, OTHERS
            row = self.rows.setdefault(key, _Total())
        self._changed[key] = None
        return row

    def finished(
        self, span: Span, host: str, total_s: float, longest_s: float, failed: int, kinds: Iterable[str] = ()
    ) -> None:
        """Count results: how long all tasks of a span took, and the longest of them, and how many of them failed.

        Args:
            kinds: the types of the exceptions of those that failed.
        """
        row, policy = self._row(span.algorithm.name, host), span.policy
        if policy.seconds_max or policy.memory_max or policy.seconds_expected:
            row.asked(policy)
        row.tasks += span.count
        row.failed += failed
        row.seconds += total_s
        row.longest_s = max(row.longest_s, longest_s)
        for kind in kinds:
            known = kind if kind in row.kinds or len(row.kinds) < KINDS_KEPT else OTHER_KINDS
            row.kinds[known] = row.kinds.get(known, 0) + 1

    def lost(self, span: Span, host: str, cause: Cause, attempts: int, seconds: float) -> None:
        """Count lost attempts, and for how long the lost slave had sent neither a result nor a state of the task."""
        row = self._row(span.algorithm.name, host)
        row.asked(span.policy)
        row.lost[cause] = row.lost.get(cause, 0) + attempts
        row.lost_s += seconds
        if cause.is_charged:
            row.longest_s = max(row.longest_s, seconds)

    def explained(self, algorithm: str, host: str, attempts: int, cause: Cause) -> None:
        """Correct the cause of lost attempts for which the network was blamed."""
        row = self._row(algorithm, host)
        row.lost[Cause.NETWORK] -= attempts
        if not row.lost[Cause.NETWORK]:
            del row.lost[Cause.NETWORK]
        row.lost[cause] = row.lost.get(cause, 0) + attempts

    def measured(self, algorithm: str, host: str, used: int) -> None:
        """Note how much memory a task used at most, in bytes."""
        row = self._row(algorithm, host)
        row.memory_used = max(row.memory_used, used)

    def copies(self) -> list[tuple[records.Total, dict[str, int]]]:
        """Return all totals, and how many tasks failed with each type of exception. Another thread may call this."""
        return [(row.record(*key), dict(row.kinds)) for key, row in list(self.rows.items())]

    def decide(self, now: float) -> None:
        """State the totals if it is time."""
        if now >= self.state_at:
            self.state_at = now + STATED_EVERY_S
            self.state_all()

    def state_all(self) -> None:
        """State the totals that have changed."""
        for key in self._changed:
            self.state.record(self.rows[key].record(*key))
        self._changed.clear()

    def check(self) -> None:
        """Assert that no figure contradicts another, and that the number of rows is limited."""
        assert len(self.rows) <= ROWS_KEPT + 1, "too many totals are kept"
        for key, row in self.rows.items():
            assert row.failed <= row.tasks, f"more tasks of {key} failed than ended"
            assert all(count > 0 for count in row.lost.values()), f"{key} lost no attempt for a cause: {row.lost}"
