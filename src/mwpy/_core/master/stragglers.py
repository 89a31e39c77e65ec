"""Starts second attempts of stragglers, and of the tasks of agents that are away.

Stragglers are tasks that have run for far longer than the other tasks of their algorithm. A straggler may be at a
machine that is slow, overloaded or stopped. If slaves are idle and nothing is pending, a second attempt costs nothing
that is needed elsewhere. It starts at another agent, if possible on another host. What follows when one of the attempts
ends is in `attempts.py`.

As in `long_tasks.py`, the first task that a slave holds has been running since the slave was last heard.

An agent that is away may never come back. When it has been away for another client timeout, all its tasks may have a
second attempt, whether their policy says `speculate` or not.
"""

from __future__ import annotations

from msgspec import Struct

from mwpy._core.master.absences import Absences
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


class Stragglers(Struct, eq=False):
    """Decides which tasks get a second attempt, and where."""

    state: MasterState
    dispatch: Dispatch
    absences: Absences
    deadline: float | None = None
    """When the next task becomes a straggler, on the core's clock; None if it would get no second attempt."""

    def decide(self, now: float) -> None:
        """Start second attempts at the time `now`: of the stragglers, the longest running first, and of tasks of agents
        that are away."""
        self.deadline = None
        jar, idle = self.state.jar, self.state.members.idle
        if not idle or jar.pending.num_unaddressed or not any(slave.has_room for slave in idle.values()):
            return
        if jar.speculates:
            for slave in sorted(self._with_stragglers(now), key=lambda slave: slave.last_heard):
                span = slave.held.spans[0]
                usual = f"others took {span.algorithm.mean_s:.3g} s on average"
                self._repeat(slave, span, f"it has run for {now - slave.last_heard:.0f} s, and {usual}", now)
        for agent in self.state.members.away.values():
            self._repeat_tasks_of(agent, now)

    def _repeat_tasks_of(self, agent: ConnectedAgent, now: float) -> None:
        """Start a second attempt of the next task of each slave of an agent that is away."""
        due = self.absences.alone_until(agent)
        if now < due:
            self._look_again(due)
            return
        for slave in agent.slaves.values():
            span = next((span for span in slave.held.spans if self._may_repeat(span)), None)
            if span is not None and self._repeat(slave, span, f"{agent.name}, which holds it, is away", now):
                self._look_again(now)  # there may be more idle slaves, and more tasks

    def _look_again(self, at: float) -> None:
        self.deadline = at if self.deadline is None else min(at, self.deadline)

    def _repeat(self, slave: ConnectedSlave, span: Span, why: str, now: float) -> bool:
        """Start a second attempt of the first task of a span that a slave holds. Return whether there was a place."""
        place = self._place(span, slave.agent, now)
        if place is not None:
            task = span.part(span.first, 1, span.sent + 1)
            self.dispatch.feed(place, records.AttemptsStarted(place.sid, [task], slave.sid, why), now)
        return place is not None

    def _with_stragglers(self, now: float) -> list[ConnectedSlave]:
        """The slaves that run stragglers. Find out, too, when the next task becomes one."""
        found: list[ConnectedSlave] = []
        for slave in self.state.members.slaves.values():
            span = slave.held.spans[0] if slave.held.spans else None
            if span is not None and span.policy.speculate and span.algorithm.succeeded >= KNOWN:
                if slave.agent.is_away or not self._may_repeat(span):
                    continue
                usual_s = max(span.algorithm.mean_s or 0.0, span.policy.seconds_expected or 0.0)
                due = slave.last_heard + max(LEAST_S, USUAL * usual_s)
                if now >= due:
                    found.append(slave)
                else:
                    self._look_again(due)
        return found

    def _may_repeat(self, span: Span) -> bool:
        """Whether the first task of a span may have a second attempt.

        While one attempt lives, the loss of the other must not use up what the task may lose.
        """
        return (
            span.policy.sid is None
            and span.state is TaskState.ALLOCATED
            and span.first not in self.state.jar.allocated.several
            and span.can_lose(1)
        )

    def _place(self, span: Span, besides: ConnectedAgent, now: float) -> ConnectedSlave | None:
        """The slave that has been idle for the longest time, at another agent and, if possible, on another host."""
        able = [
            slave
            for slave in self.state.members.idle.values()
            if slave.has_room
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
