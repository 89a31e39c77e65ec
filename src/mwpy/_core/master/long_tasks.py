"""Reports tasks that run for long, because a task may hang, and mwpy has no limit for its time.

The master does not know when a task started. It knows when its slave was last heard: when the last result arrived, or
when the slave was sent tasks while it had none. The task that the slave has held for the longest time has been running
since then. A long task may be what the user wants, so a report only names it, and the reports become rare.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from mwpy._core.master.members import ConnectedSlave
from mwpy._core.master.silence import GROWTH, LONGEST_S
from mwpy._core.master.state import MasterState
from mwpy._values.phrases import first_of

__all__ = ["LongTasks"]

FIRST_S = 60.0
"""Seconds of running before a task is reported, and the shortest interval between two reports. The manual names this
number."""

USUAL = 10.0
"""A task is reported when it runs this many times as long as the tasks of its algorithm that have ended. The manual
names this number."""


class LongTasks(Struct, eq=False):
    """Says which tasks run for long. While there are such tasks, each interval is `GROWTH` times the one before."""

    state: MasterState
    deadline: float | None = None
    """When to look next, on the core's clock; None if no task is at a slave."""
    _interval_s: float = FIRST_S

    def decide(self, now: float) -> None:
        """Report the tasks that run for long at the time `now`, if it is time to look."""
        if not self.state.jar.num_allocated:
            self.deadline, self._interval_s = None, FIRST_S
        elif self.deadline is None:
            self.deadline = now + FIRST_S
        elif now >= self.deadline:
            self._look(now)
            self.deadline = now + self._interval_s

    def _look(self, now: float) -> None:
        slaves = sorted(self._slaves_with_long_tasks(now), key=lambda slave: slave.last_heard)
        if not slaves:
            self._interval_s = FIRST_S
            return
        self._interval_s = min(self._interval_s * GROWTH, LONGEST_S)
        named = first_of((_describe(slave, now) for slave in slaves), len(slaves))
        self.state.notice(
            f"running for long: {named}. If such a task hangs, cancel it with mw.cancel, or kill the "
            f"process of its slave; the policy seconds_max limits the time of a task"
        )

    def _slaves_with_long_tasks(self, now: float) -> Iterator[ConnectedSlave]:
        for slave in self.state.members.slaves.values():
            if slave.held.spans:
                usual_s = self.state.members.pace.get(slave.held.spans[0].algorithm.number, 0.0)
                if now >= slave.last_heard + max(FIRST_S, USUAL * usual_s):
                    yield slave

    def check(self) -> None:
        """Assert that the interval is within its limits."""
        assert FIRST_S <= self._interval_s <= LONGEST_S, f"the interval is {self._interval_s} s"


def _describe(slave: ConnectedSlave, now: float) -> str:
    span = slave.held.spans[0]
    seconds = now - slave.last_heard
    return f"task {span.first} ({span.algorithm.name}) for {seconds:.0f} s on {slave.sid} at {slave.agent.host}"
