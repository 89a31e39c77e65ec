"""What the master does: the answer to `AskStatus`.

The figures are derived when somebody asks, from what the parts of the core keep anyway. Only the rate needs a history.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from math import inf
from typing import TypeVar

from msgspec import Struct, field, structs

from mwpy._core.master.counts import Counts
from mwpy._core.master.feeding import Feeding
from mwpy._core.master.recent_failures import RecentFailures
from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterState
from mwpy._core.master.totals import Totals
from mwpy._values.bounds import shortened
from mwpy._values.inquiry_messages import AlgorithmStatus, HostStatus, Notice, Status
from mwpy._values.task import SlaveState

__all__ = ["ALGORITHMS_SHOWN", "HOSTS_SHOWN", "OTHERS", "Rate", "StatusReport"]

ALGORITHMS_SHOWN = 50
"""How many algorithms a status names. All others are counted together."""

HOSTS_SHOWN = 200
"""How many machines a status names. All others are counted together."""

OTHERS = "(others)"

NOTICE_CHARACTERS = 2000
"""How long a notice in a status is at most."""

RATE_S = 60.0
"""The rate is a mean over this many seconds."""

SAMPLE_S = 5.0
"""Seconds between two samples of the number of tasks that have ended."""

R = TypeVar("R", AlgorithmStatus, HostStatus)


class Rate(Struct, eq=False):
    """How many tasks end in a second."""

    state: MasterState
    _samples: deque[tuple[float, int]] = field(default_factory=deque)
    """When, and how many tasks had ended then. The first one is at least `RATE_S` old, or the first of all."""
    _due: float = -inf
    """When to take the next sample."""

    def decide(self, now: float) -> None:
        """Take a sample if it is time."""
        if now < self._due:
            return
        samples, self._due = self._samples, now + SAMPLE_S
        samples.append((now, self.state.jar.ended))
        while len(samples) > 1 and samples[1][0] <= now - RATE_S:
            samples.popleft()

    def at(self, now: float) -> float:
        """The rate over the last minute, or since the start."""
        since, ended = self._samples[0] if self._samples else (now, 0)
        return (self.state.jar.ended - ended) / (now - since) if now > since else 0.0


class StatusReport:
    """Says what the master does."""

    def __init__(self, state: MasterState, totals: Totals, feeding: Feeding, failures: RecentFailures) -> None:
        self.state = state
        self.totals = totals
        self.feeding = feeding
        self.failures = failures
        self.rate = Rate(state)

    def decide(self, now: float) -> None:
        """Take a sample of the rate if it is time, and note the failures of this iteration."""
        self.rate.decide(now)
        self.failures.decide(now)

    def status(self, counts: Counts, now: float) -> Status:
        """What the master does at this time."""
        settings, members, last = self.state.settings, self.state.members, self.failures.last
        lost: Counter[str] = Counter()
        for row in self.totals.rows.values():
            for cause, count in row.lost.items():
                lost[cause.value] += count
        return Status(
            member_id=settings.member_id,
            generation=settings.generation,
            uptime_s=now - settings.started_at,
            tasks=self._tasks(),
            rate=self.rate.at(now),
            slaves_wanted=counts.slaves_wanted,
            slaves_connected=counts.slaves_connected,
            slaves_needed=counts.slaves_needed,
            algorithms=_largest(self._algorithms(), ALGORITHMS_SHOWN, AlgorithmStatus),
            hosts=_largest(self._hosts(members.excluded), HOSTS_SHOWN, HostStatus),
            failures=dict(sorted(self.failures.kinds.items(), key=lambda kind: -kind[1])),
            lost=dict(lost.most_common()),
            last_failure="" if last is None else str(last),
            last_failure_age_s=0.0 if last is None else now - last.at,
            notices=[Notice(now - at, shortened(text, NOTICE_CHARACTERS)) for at, text in self.state.notices.newest],
            waits=self.feeding.why_not,
            reused=self.state.jar.reused.count,
        )

    @property
    def work(self) -> int:
        """How many objects an answer looks at, about."""
        jar, members = self.state.jar, self.state.members
        few = min(len(jar.blocked.tasks), len(jar.delayed.tasks))
        algorithms = len(jar.algorithms.defined) + len(self.totals.rows)
        return few + algorithms + len(members.slaves) + len(members.agents)

    def _tasks(self) -> dict[str, int]:
        jar = self.state.jar
        return {
            "pending": jar.pending.count,
            "blocked": len(jar.blocked.tasks),
            "delayed": len(jar.delayed.tasks),
            "at_slaves": jar.num_allocated,
            "succeeded": jar.ended - jar.failed - jar.cancelled,
            "failed": jar.failed,
            "cancelled": jar.cancelled,
        }

    def _algorithms(self) -> dict[str, AlgorithmStatus]:
        """The tasks of each algorithm. Only the fewer ones are counted, of the blocked tasks and the delayed ones."""
        jar = self.state.jar
        at_slaves: Counter[int] = Counter()
        for held in jar.held.values():
            at_slaves.update(held.load)
        for live in jar.allocated.several.values():
            first, *others = live.values()
            at_slaves[first.algorithm.number] -= len(others)
        blocked_are_fewer = len(jar.blocked.tasks) <= len(jar.delayed.tasks)
        fewer = _count((jar.blocked if blocked_are_fewer else jar.delayed).tasks.values())
        found: dict[str, AlgorithmStatus] = {}
        for number, defined in jar.algorithms.defined.items():
            row = found.setdefault(defined.name, AlgorithmStatus())
            pending = jar.pending.num_queued.get(number, 0) + jar.pending.num_addressed.get(number, 0)
            row.pending += pending
            row.at_slaves += at_slaves[number]
            more = defined.runnable - pending - at_slaves[number] - fewer[number]
            row.blocked += fewer[number] if blocked_are_fewer else more
            row.delayed += more if blocked_are_fewer else fewer[number]
        for (name, _), total in self.totals.rows.items():
            row = found.setdefault(name, AlgorithmStatus())
            row.finished += total.tasks
            row.failed += total.failed
            row.seconds += total.seconds
        return found

    def _hosts(self, excluded: Mapping[str, str]) -> dict[str, HostStatus]:
        """The agents and slaves of each machine, and the machines that get no more work."""
        found = {host: HostStatus(excluded=shortened(why, NOTICE_CHARACTERS)) for host, why in excluded.items()}
        for agent in self.state.members.agents.values():
            row = found.setdefault(agent.host, HostStatus())
            row.agents += 1
            row.starting += agent.coming
            for slave in agent.slaves.values():
                if slave.state is SlaveState.IDLE:
                    row.idle += 1
                elif slave.state is SlaveState.BUSY:
                    row.busy += 1
                elif slave.state is SlaveState.AWAY:
                    row.away += 1
                else:
                    row.leaving += 1
        for (_, host), total in self.totals.rows.items():
            if host in found:
                found[host].finished += total.tasks
                found[host].failed += total.failed
        return found


def _count(spans: Iterable[Span]) -> Counter[int]:
    """How many tasks of each algorithm there are."""
    counted: Counter[int] = Counter()
    for span in spans:
        counted[span.algorithm.number] += span.count
    return counted


def _largest(rows: dict[str, R], most: int, kind: type[R]) -> dict[str, R]:
    """The rows with the largest numbers, and one row for all others."""
    if len(rows) <= most:
        return rows
    ranked = sorted(rows, key=lambda name: (-sum(_numbers(rows[name])[:4]), -sum(_numbers(rows[name])), name))
    others = kind()
    for name in ranked[most:]:
        for figure, value in structs.asdict(rows[name]).items():
            if not isinstance(value, str):
                setattr(others, figure, getattr(others, figure) + value)
    return {**{name: rows[name] for name in ranked[:most]}, OTHERS: others}


def _numbers(row: AlgorithmStatus | HostStatus) -> list[float]:
    return [value for value in structs.astuple(row) if not isinstance(value, str)]
