"""Starts second attempts of stragglers: tasks that have run for far longer than the other tasks of their algorithm.

A straggler may be at a machine that is slow, overloaded or stopped. If slaves are idle and nothing is pending, a second
attempt costs nothing that is needed elsewhere. It starts at another agent, if possible on another host. What follows
when one of the attempts ends is in `attempts.py`.

As in `long_tasks.py`, the first task that a slave holds has been running since the slave was last heard.
"""

from __future__ import annotations

from attrs import define

from mwpy._core.master.dispatch import Dispatch
from mwpy._core.master.members import ConnectedAgent, ConnectedSlave
from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterState
from mwpy._values import records
from mwpy._values.task import TaskState

__all__ = ["Stragglers"]

USUAL = 3.0
"""A task is a straggler when it has run this many times as long as the mean of its algorithm, and as its policy says it
takes. The manual names this number."""

KNOWN = 3
"""How many tasks of an algorithm must have returned values before another one is a straggler. The manual names this
number."""

LEAST_S = 1.0
"""No task is a straggler before it has run for this many seconds. The manual names this number."""


@define(eq=False)
class Stragglers:
    """Decides which tasks get a second attempt, and where."""

    state: MasterState
    dispatch: Dispatch
    deadline: float | None = None
    """When the next task becomes a straggler, on the core's clock; None if it would get no second attempt."""

    def decide(self, now: float) -> None:
        """Start second attempts of the tasks that are stragglers at the time `now`, the longest running first."""
        self.deadline = None
        jar, idle = self.state.jar, self.state.members.idle
        if not idle or jar.pending.num_unaddressed or not any(slave.runs_unaddressed for slave in idle.values()):
            return
        for slave in sorted(self._with_stragglers(now), key=lambda slave: slave.last_heard):
            span = slave.held.spans[0]
            place = self._place(span, slave.agent, now)
            if place is not None:
                task, usual_s = span.part(span.first, 1, span.sent + 1), span.algorithm.mean_s
                why = f"it has run for {now - slave.last_heard:.0f} s, and others took {usual_s:.3g} s on average"
                self.dispatch.feed(place, records.AttemptsStarted(place.sid, [task], slave.sid, why), now)

    def _with_stragglers(self, now: float) -> list[ConnectedSlave]:
        """The slaves that run stragglers. Find out, too, when the next task becomes one."""
        found: list[ConnectedSlave] = []
        for slave in self.state.members.slaves.values():
            if slave.held.spans and self._may_repeat(slave.held.spans[0]):
                span = slave.held.spans[0]
                usual_s = max(span.algorithm.mean_s or 0.0, span.policy.seconds_expected or 0.0)
                due = slave.last_heard + max(LEAST_S, USUAL * usual_s)
                if now >= due:
                    found.append(slave)
                elif self.deadline is None or due < self.deadline:
                    self.deadline = due
        return found

    def _may_repeat(self, span: Span) -> bool:
        """Whether the first task of a span may have a second attempt, if it runs for long enough.

        While one attempt lives, the loss of the other must not use up what the task may lose.
        """
        return (
            span.policy.speculate
            and span.policy.sid is None
            and span.state is TaskState.ALLOCATED
            and span.first not in self.state.jar.allocated.several
            and span.algorithm.succeeded >= KNOWN
            and span.can_lose(1)
            and self.state.jar.blocked.bereft.keys().isdisjoint(span.refers)
        )

    def _place(self, span: Span, besides: ConnectedAgent, now: float) -> ConnectedSlave | None:
        """The slave that has been idle for the longest time, at another agent and, if possible, on another host."""
        able = [
            slave
            for slave in self.state.members.idle.values()
            if slave.runs_unaddressed
            and slave.agent is not besides
            and slave.agent.has_time(span, now)
            and span.algorithm.number not in slave.refused
        ]
        return min(able, key=lambda slave: slave.agent.host == besides.host, default=None)

    def check(self) -> None:
        """Assert that no agent has two attempts of a task, and that a task that may run only once has no second one."""
        slaves = self.state.members.slaves
        for number, live in self.state.jar.allocated.several.items():
            agents = [slaves[sid].agent.name for sid in live]
            assert len(agents) == len({*agents}), f"two attempts of task {number} are at one agent: {agents}"
            assert all(span.policy.retry for span in live.values()), f"task {number} may only run once"
