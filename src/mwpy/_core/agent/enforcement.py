"""The limits of tasks: when the agent looks at a slave, and when it kills the slave.

*Time.* Before a slave starts a task with a limit of time, it writes the time into the memory that it shares with its
agent. The agent does not follow each start. No task that it passes on now can be over its limit before the shortest
limit has passed. Then the agent looks once, and knows from the start of the running task when to look again.

*Memory.* While a slave holds a task with a limit of memory, its agent measures the memory of the slave and its
descendants every `MEASURE_S`. Where the agent may make a control group, the kernel enforces the limit, too. Then it
kills one process, and this may be a process of the task instead of the slave. If no other task has run since the
measurement before, this task is over its limit.

*Shortage.* A batch system kills a job that uses more memory than it has, with all its tasks. So before this happens,
the agent kills one slave: the one that is furthest beyond what its task may use then. Numbers that are
rough or old may be too large, so all slaves with limits are measured again, exactly, before one is killed. If the task
would have had enough memory without the others, it is not charged.

A slave whose task is over a limit is killed as for a cancelled task: after a recall, and only if it still runs this
task. So no other task is killed or charged. If the task has just finished, its result counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from mwpy._core.agent.child import Child, Doom
from mwpy._core.agent.state import AgentState
from mwpy._core.agent.trust import Trust
from mwpy._values.causes import Cause
from mwpy._values.phrases import amount
from mwpy._values.policy import Limits

__all__ = ["LOOK_S", "MEASURE_S", "NEARLY", "Enforcement"]

LOOK_S = 0.05
"""The agent looks at a slave at most this often, in seconds. So a task may run for this time beyond its limit."""

MEASURE_S = 0.5
"""Seconds between two measurements of the memory of a slave."""

NEARLY = 0.9
"""The part of its job's memory that the slaves may use. The job has other processes, and may grow between two
measurements."""

STOPS_KEPT = 100
"""How many stops of this agent are remembered."""


class Enforcement(Struct, eq=False):
    """Kills slaves whose tasks are over their limits."""

    _state: AgentState
    _trust: Trust
    _stops: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=STOPS_KEPT))
    """When this agent resumed after a stop, and for how many seconds it was stopped. Its slaves are stopped with it."""
    _is_short: bool = False
    """Whether the job seems to be short of memory, so that all slaves are measured exactly."""

    def resumed(self, stopped_s: float, now: float) -> None:
        """This agent was stopped: the time of a stop is not counted."""
        self._stops.append((now, stopped_s))

    def passed_on(self, child: Child, limits: Iterable[Limits | None], now: float) -> None:
        """Tasks with some limits were passed on to a slave."""
        times = _times(limits)
        if times:
            self._look_at(child, now + min(times), now)
        self._limit_memory(child, now)

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
            over_at = began + most + self._stopped_since(began)
            if now >= over_at:
                why = f"because it ran {{}} for more than {most:g} s, its seconds_max"
                self._doom(child, f"{why}: raise this limit, or give such tasks less to do", Cause.TIME_LIMIT)
            else:
                due = min(due, over_at)
        self._look_at(child, due, now)

    def _stopped_since(self, began: float) -> float:
        """For how many seconds this agent was stopped since a task began. It may have begun during a stop, if only the
        agent was stopped."""
        return sum(min(stopped_s, resumed_at - began) for resumed_at, stopped_s in self._stops if resumed_at > began)

    def measured(self, child: Child, used: int, kills: int, now: float) -> None:
        """The memory was measured that a slave and its descendants use, and the `kills` of the kernel were counted."""
        if child.ended:
            return
        killed = kills > child.kills and child.measured == child.started
        span = child.span_at(child.started)
        child.measured = child.started if span is not None else child.started + 1
        child.kills, child.peak_bytes = kills, max(child.peak_bytes, used)
        child.used, child.exactly = used, False
        self._limit_memory(child, now + MEASURE_S)
        most = None if span is None or span.limits is None else span.limits.memory
        if most is None:
            return
        if not (killed or used > most):
            self._relieve(now)
            return
        what = "its processes needed" if killed and used <= most else f"its processes used {amount(used)} of memory,"
        why = f"because {{}} and {what} more than {amount(most)}, its memory_max"
        self._doom(child, f"{why}: {_REMEDY}", Cause.OUT_OF_MEMORY)

    def named(self, child: Child, started: int) -> str:
        """The limit of memory of the task at a position, as the end of a sentence; empty if it has none."""
        span = child.span_at(started)
        most = None if span is None or span.limits is None else span.limits.memory
        return "" if most is None else f"; its memory_max is {amount(most)}: {_REMEDY}"

    def _relieve(self, now: float) -> None:
        """If the slaves use nearly all memory of their job, kill the one that is furthest beyond what it may use."""
        has = self._state.settings.memory_bytes
        if has is not None:
            has = max(1, has - self._state.template_bytes)
        children = self._state.children.values()
        users = [child for child in children if any(child.memory_limits)]
        used = sum(child.used for child in users)
        if has is None or used <= NEARLY * has:
            self._is_short = False
        elif not self._is_short:
            self._is_short = True
            for child in users:
                child.exactly, child.measure_at = True, now
        elif not any(child.exactly for child in users):
            self._is_short = False
            if not any(child.doomed or child.killed_because for child in users):
                self._sacrifice(users, used, has)

    def _sacrifice(self, users: Sequence[Child], used: int, has: int) -> None:
        """Kill the slave that is furthest beyond what it may use."""
        share = max(1, has // self._state.settings.hello.slaves)
        beyond = [(child.used - allowed, child, allowed) for child in users if (allowed := _allowed(child, share))]
        _, child, allowed = max(beyond, key=lambda entry: entry[0])
        why = (
            f"because its job was short of memory: the slaves used {amount(used)} of {amount(has)}. {{}} used "
            f"{amount(child.used)}, and may use {amount(allowed)} in such a case: give the job more memory or fewer "
            f"slaves, or let such tasks need less"
        )
        is_alone = child.used > NEARLY * has
        self._doom(child, why, Cause.OUT_OF_MEMORY, 0 if is_alone else allowed)

    def _limit_memory(self, child: Child, measure_at: float) -> None:
        """Measure a slave while it holds a task with a limit. The kernel enforces the largest limit of its tasks."""
        limits = child.memory_limits
        bounds = [limit for limit in limits if limit is not None]
        if bounds and child.measure_at is None:
            child.measure_at = measure_at
        largest = max(bounds) if bounds and len(bounds) == len(limits) else None
        if largest != child.memory_limit:
            child.memory_limit = largest
            self._state.actions.limit_memory.append((child.number, largest))

    def _look_at(self, child: Child, due: float, now: float) -> None:
        due = max(due, now + LOOK_S)
        child.look_at = due if child.look_at is None else min(child.look_at, due)

    def _doom(self, child: Child, because: str, cause: Cause, allowed: int = 0) -> None:
        task, attempt = child.running(child.started)
        child.doomed = Doom(task, attempt, child.started, because.format(f"task {task}"), cause, allowed)
        self._state.actions.recall.append((child.number, None))


_REMEDY = "raise this limit, or let such tasks need less"


def _allowed(child: Child, share: int) -> int:
    """How many bytes the running task of a slave may use when its job is short of memory; 0 if it has no limit."""
    span = child.span_at(child.started)
    if child.ended or span is None or span.limits is None or span.limits.memory is None:
        return 0
    return min(span.limits.expected or share, span.limits.memory)


def _times(limits: Iterable[Limits | None]) -> list[float]:
    """The limits of time among some limits."""
    return [each.seconds for each in limits if each is not None and each.seconds is not None]
