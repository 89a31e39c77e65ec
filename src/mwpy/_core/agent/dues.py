"""When an agent looks at each of its slaves.

Most events concern one slave. An agent of many slaves need not look at all others then, so it remembers when each slave
is due, and finds out again only for slaves that may have changed.
"""

from __future__ import annotations

from math import inf

from msgspec import Struct, field

from mwpy._core.agent.checkpoints import Checkpoints
from mwpy._core.agent.child import Child
from mwpy._core.agent.departure import Departure
from mwpy._core.agent.reports import Reports
from mwpy._core.agent.state import AgentState
from mwpy._core.moments import known

__all__ = ["Dues"]


class Dues(Struct, eq=False):
    """Knows which slaves are due."""

    _state: AgentState
    _checkpoints: Checkpoints
    _reports: Reports
    _departure: Departure
    changed: dict[int, Child] = field(default_factory=dict)
    """The slaves that may have changed, by number."""
    _dues: dict[int, float] = field(default_factory=dict)
    """When to look at each slave, by number; infinity if there is no such moment."""

    def all_changed(self) -> None:
        """Any slave may have changed, and some may have been added or removed."""
        self._dues.clear()
        self.changed = dict(self._state.children)

    def first(self) -> float:
        """When to look at a slave; infinity if there is no such moment."""
        if self.changed:
            for number, child in self.changed.items():
                self._dues[number] = self._due(child)
            self.changed.clear()
        return min(self._dues.values(), default=inf)

    def take(self, now: float) -> list[Child]:
        """The slaves that are due, in the order of their starts. The caller does what is due."""
        if now < self.first():
            return []
        due = {number: child for number, child in self._state.children.items() if now >= self._dues[number]}
        self.changed |= due
        return [*due.values()]

    def _due(self, child: Child) -> float:
        looks = child.read_journal_at, child.look_at, child.measure_at
        waits_for = child.print_at, child.ready_by, child.spared_until, child.kill_at, child.collect_at
        sends_at = self._checkpoints.due(child, self._departure.code is not None) if child.unsent is not None else None
        reports_at = self._reports.due(child) if child.report is not None else None
        return min(known((*looks, *waits_for, sends_at, reports_at)), default=inf)

    def check(self) -> None:
        """Recompute when each slave is due."""
        self.first()
        dues = {number: self._due(child) for number, child in self._state.children.items()}
        assert self._dues == dues, "the agent looks at a slave at a wrong time"
