"""The limits of tasks: when the agent looks how long a task runs, and when it kills its slave.

Before a slave starts a task with a limit of time, it writes the time into the memory that it shares with its agent. The
agent does not follow each start. No task that it passes on now can be over its limit before the shortest limit has
passed. Then the agent looks once, and knows from the start of the running task when to look again.

A slave whose task is over its limit is killed as for a cancelled task: after a recall, and only if it still runs this
task. So no other task is killed or charged. If the task has just finished, its result counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from attrs import define, field

from mwpy._core.agent.child import Child, Doom
from mwpy._core.agent.state import AgentState
from mwpy._core.agent.trust import Trust
from mwpy._values.causes import Cause
from mwpy._values.policy import Limits

__all__ = ["LOOK_S", "Enforcement"]

LOOK_S = 0.05
"""The agent looks at a slave at most this often, in seconds. So a task may run for this time beyond its limit."""

STOPS_KEPT = 100
"""How many stops of this agent are remembered."""


@define(eq=False)
class Enforcement:
    """Kills slaves whose tasks are over their limits."""

    _state: AgentState
    _trust: Trust
    _stops: deque[tuple[float, float]] = field(factory=lambda: deque(maxlen=STOPS_KEPT))
    """When this agent resumed after a stop, and for how many seconds it was stopped. Its slaves are stopped with it."""

    def resumed(self, stopped_s: float, now: float) -> None:
        """This agent was stopped: the time of a stop is not counted."""
        self._stops.append((now, stopped_s))

    def passed_on(self, child: Child, limits: Iterable[Limits | None], now: float) -> None:
        """Tasks with some limits were passed on to a slave."""
        times = _times(limits)
        if times and child.is_ready:
            self._look_at(child, now + min(times), now)

    def looked(self, child: Child, began: float, now: float) -> None:
        """The agent has looked at a slave, which started its last task at the time `began`, or runs none (0)."""
        times = _times(span.limits for span in child.held)
        if not times or child.ended:
            return
        due = now + min(times)
        span = child.span_at(child.started) if began else None
        for most in _times([span.limits] if span is not None else []):
            if not child.started_at <= began <= now:
                self._trust.broken_memory(child, "it says that its task began at an impossible time")
                return
            over_at = began + most + sum(stopped_s for resumed_at, stopped_s in self._stops if resumed_at > began)
            if now >= over_at:
                self._doom(child, most)
            else:
                due = min(due, over_at)
        self._look_at(child, due, now)

    def _look_at(self, child: Child, due: float, now: float) -> None:
        due = max(due, now + LOOK_S)
        child.look_at = due if child.look_at is None else min(child.look_at, due)

    def _doom(self, child: Child, seconds: float) -> None:
        task, attempt = child.running(child.started)
        because = f"because it ran task {task} for more than {seconds:g} s, its seconds_max"
        remedy = "raise this limit, or give such tasks less to do"
        child.doomed = Doom(task, attempt, child.started, f"{because}: {remedy}", Cause.TIME_LIMIT)
        self._state.actions.recall.append((child.number, None))


def _times(limits: Iterable[Limits | None]) -> list[float]:
    """The limits of time among some limits."""
    return [each.seconds for each in limits if each is not None and each.seconds is not None]
