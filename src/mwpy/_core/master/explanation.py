"""Why a task waits, or how it ended: the answer to `AskTask`.

The reasons are those of the dispatch (`dispatch.py`, `isolation.py`), in the order in which they keep a task from a
slave. Agents with the same reason are counted, and the first few are named. The text for people is
made in `_values/explanations.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from math import inf

from msgspec import Struct

from mwpy._core.master.delays import Delays
from mwpy._core.master.feeding import Feeding
from mwpy._core.master.members import ConnectedAgent, ConnectedSlave
from mwpy._core.master.recent_failures import RecentFailures
from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterState
from mwpy._core.master.stop import Stop
from mwpy._values.bounds import shortened
from mwpy._values.ids import SlaveId
from mwpy._values.inquiry_messages import Explanation, Fate, Place, Reason, Why
from mwpy._values.task import SlaveState, TaskState

__all__ = ["AGENTS_NAMED", "DEATHS_SHOWN", "REASONS_SHOWN", "ExplanationReport"]

AGENTS_NAMED = 5
"""How many agents with the same reason are named."""

REASONS_SHOWN = 50
"""How many different reasons of agents an answer has. A text from a member may make each reason different."""

DEATHS_SHOWN = 5
"""How many lost attempts an answer has: the last ones."""

MISSING_NAMED = 5
"""How many of the tasks are named whose results a task needs."""

TEXT_CHARACTERS = 500

_SERVING = SlaveState.IDLE, SlaveState.BUSY


class ExplanationReport(Struct, eq=False):
    """Says why a task waits, or how it ended."""

    state: MasterState
    feeding: Feeding
    delays: Delays
    stop: Stop
    failures: RecentFailures
    work: int = 0
    """At how many objects the last answer looked, about."""

    def explanation(self, task: int, now: float) -> Explanation:
        """Why a task waits, or how it ended, at this time."""
        jar, self.work = self.state.jar, len(self.state.members.agents) + len(self.state.members.slaves)
        if (blocked := jar.blocked.tasks.get(task)) is not None:
            return self._about(blocked, Fate.BLOCKED, task, reasons=[self._missing(blocked)])
        if (delayed := jar.delayed.tasks.get(task)) is not None:
            if delayed.pause_s == inf:
                return self._about(delayed, Fate.AWAITED, task)
            pause = Reason(Why.PAUSE, number=max(0.0, (self.delays.end_of(task) or now) - now))
            return self._about(delayed, Fate.DELAYED, task, reasons=[pause])
        places = [place for slave in self.state.members.slaves.values() for place in self._places(slave, task, now)]
        if places:
            _, span = places[0]
            cancelling = span.state is TaskState.CANCELLING
            fate = Fate.CANCELLING if cancelling else Fate.AT_SLAVE
            return self._about(span, fate, task, places=[place for place, _ in places])
        return self._pending(task, now) or self._ended(task)

    def _about(
        self,
        span: Span,
        fate: Fate,
        task: int,
        *,
        reasons: Sequence[Reason] = (),
        agents: Sequence[Reason] = (),
        places: Sequence[Place] = (),
    ) -> Explanation:
        return Explanation(
            task,
            fate,
            span.algorithm.name,
            attempts=span.sent,
            needed_s=span.needed_s,
            reasons=[*reasons],
            agents=[*agents],
            places=[*places],
            deaths=[shortened(str(death), TEXT_CHARACTERS) for death in span.deaths[-DEATHS_SHOWN:]],
        )

    # ---- tasks that are not at a slave -----------------------------------------------------------------------

    def _missing(self, span: Span) -> Reason:
        """Which tasks a blocked task waits for."""
        missing = [number for number in span.refers if not self.state.jar.blocked.results[number].is_here]
        named = ", ".join(map(str, missing[:MISSING_NAMED]))
        return Reason(Why.MISSING, named, len(missing))

    def _general(self) -> list[Reason]:
        """Why no task is sent at all."""
        found = [Reason(Why.STOPPED)] if self.stop.stopped else []
        if why_not := self.feeding.why_not:
            found.append(Reason(Why.HELD_BACK, why_not))
        if not self.state.members.agents:
            found.append(Reason(Why.NO_AGENT))
        return found

    def _pending(self, task: int, now: float) -> Explanation | None:
        """About a pending task; None if it is not pending."""
        pending = self.state.jar.pending
        for sid, queue in pending.addressed.items():
            found = self._find(queue, task)
            if found is not None:
                span, before = found
                reasons = [*self._general(), Reason(Why.ADDRESSED, sid), *_before(before)]
                agent = self.state.members.slaves[sid].agent
                agents = self._by_agent(span, now, [agent], only=sid)
                return self._about(span, Fate.PENDING, task, reasons=reasons, agents=agents)
        for queue in pending.suspects.values():
            found = self._find(queue, task)
            if found is not None:
                span, before = found
                reasons = [*self._general(), Reason(Why.RUNS_ALONE), *_before(before)]
                return self._about(span, Fate.PENDING, task, reasons=reasons, agents=self._by_agent(span, now))
        for queue in pending.queues.values():
            found = self._find(queue, task)
            if found is not None:
                span, before = found
                reasons = [*self._general(), *_before(before)]
                if len(pending.queues) > 1:
                    reasons.append(Reason(Why.TURNS, number=len(pending.queues) - 1))
                return self._about(span, Fate.PENDING, task, reasons=reasons, agents=self._by_agent(span, now))
        return None

    def _find(self, queue: deque[Span], task: int) -> tuple[Span, int] | None:
        """The span of a task in a queue, and how many tasks are before it; None if it is not there."""
        before = 0
        for span in queue:
            self.work += 1
            if task in span.ids:
                return span, before + task - span.first
            before += span.count
        return None

    def _ended(self, task: int) -> Explanation:
        """About a task that is not in the jar."""
        jar = self.state.jar
        unsent = *jar.pending.spans(), *jar.blocked.tasks.values()
        submitted = jar.away + sum(span.count for span in unsent)
        if not 0 < task <= submitted:
            return Explanation(task, Fate.UNKNOWN, text=str(submitted))
        if jar.reused.has(task):
            return Explanation(task, Fate.REUSED)
        failure = self.failures.newest.get(task)
        if failure is None:
            return Explanation(task, Fate.ENDED)
        return Explanation(task, Fate.FAILED, failure.algorithm, failure.text, failure.host or "")

    # ---- slaves and agents -----------------------------------------------------------------------------------

    def _places(self, slave: ConnectedSlave, task: int, now: float) -> Iterable[tuple[Place, Span]]:
        """Where a slave has a task."""
        before = 0
        for span in slave.held.spans:
            self.work += 1
            if task in span.ids:
                agent = slave.agent
                ahead, seconds = before + task - span.first, max(0.0, now - slave.last_heard)
                yield Place(slave.sid, agent.name, agent.host, span.attempt, ahead, seconds), span
            before += span.count

    def _by_agent(
        self,
        span: Span,
        now: float,
        agents: Iterable[ConnectedAgent] | None = None,
        only: SlaveId | None = None,
    ) -> list[Reason]:
        """Why agents are not sent a task. Equal reasons are one.

        Args:
            agents: these agents; None for all.
            only: the slave to which it is addressed.
        """
        found: dict[tuple[Why, str], Reason] = {}
        for agent in self.state.members.agents.values() if agents is None else agents:
            own = self._of_agent(agent, span, now, only)
            same = found.get((own.why, own.text))
            if same is None:
                found[own.why, own.text] = Reason(own.why, own.text, own.number, [agent.place], 1)
                continue
            number = max(same.number, own.number) if own.why is Why.NO_TIME else same.number + own.number
            named_all = [*same.agents, agent.place][:AGENTS_NAMED]
            found[own.why, own.text] = Reason(own.why, own.text, number, named_all, same.count + 1)
        return [*islice(found.values(), REASONS_SHOWN)]

    def _of_agent(self, agent: ConnectedAgent, span: Span, now: float, only: SlaveId | None) -> Reason:
        excluded = self.state.members.excluded.get(agent.host)
        if excluded is not None:
            return Reason(Why.HOST_EXCLUDED, shortened(excluded, TEXT_CHARACTERS))
        if agent.leaving:
            return Reason(Why.LEAVING, shortened(agent.leaving, TEXT_CHARACTERS))
        if agent.is_away:
            return Reason(Why.AWAY)
        serving = [slave for slave in agent.slaves.values() if slave.state in _SERVING and only in (None, slave.sid)]
        if not serving:
            return Reason(Why.STARTING if agent.coming and only is None else Why.ENDING)
        number = span.algorithm.number
        able = [slave for slave in serving if number not in slave.refused]
        if not able:
            return Reason(Why.CANNOT_RUN, shortened(serving[0].refused[number], TEXT_CHARACTERS))
        if not agent.has_time(span, now):
            return Reason(Why.NO_TIME, number=agent.ends_in_s(now))
        if agent.reserved:
            return Reason(Why.RESERVED)
        if span.runs_alone and agent.num_busy:
            return Reason(Why.NOT_ALONE, number=sum(slave.held.count for slave in agent.slaves.values()))
        if only is None:
            able = [slave for slave in able if slave.runs_unaddressed]
            if not able:
                return Reason(Why.OTHER_KIND)
        if any(slave.state is SlaveState.IDLE for slave in able):
            return Reason(Why.IDLE)
        return Reason(Why.BUSY, number=sum(slave.held.count for slave in able))


def _before(count: int) -> list[Reason]:
    return [Reason(Why.TASKS_BEFORE, number=count)] if count else []
