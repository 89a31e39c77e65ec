"""What a user can learn: why nothing progresses, why one task waits, what takes long, and how everything stands.

If nothing can progress, the master reports the reason, and repeats the report at growing intervals.

Since the last progress, the watch adds up the time in which nothing could progress. If a slave tries a task and fails
at once, this is not progress. While a slave works, nothing is said; after some seconds of work, the work counts as
progress. A new reason does not wait for the long interval.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import islice
from math import inf
from typing import TypeVar

from attrs import Factory, define
from msgspec import Struct, field, structs

from mwpy._core.master import dispatch
from mwpy._core.master.admission import Admission, Feeding, SlaveKinds
from mwpy._core.master.handback import HandBack
from mwpy._core.master.hosts import Hosts
from mwpy._core.master.losses import Losses
from mwpy._core.master.members import SERVING, ConnectedAgent, ConnectedSlave, absent, num_present
from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterState, Send, Waiting
from mwpy._core.master.totals import RecentFailures, Stop, Totals
from mwpy._values import messages, records
from mwpy._values.bounds import SlaveId, shortened
from mwpy._values.errors import ProtocolError
from mwpy._values.messages import (
    AlgorithmStatus,
    Explanation,
    Fate,
    HostStatus,
    Notice,
    Place,
    Status,
    WaitReason,
    Why,
    explained,
)
from mwpy._values.phrases import counted, first_of
from mwpy._values.task import SlaveKind, SlaveState, TaskState

FIRST_S = 5.0
"""Seconds without possible progress before the first message. The manual names this number."""

GROWTH = 3.0
"""Each interval is this many times as long as the one before."""

LONGEST_S = 1800.0
"""The longest interval between two messages, in seconds."""

ROUNDING_S = 1e-6
"""Tolerance for rounding: a sum of seconds may be this much below a limit and still counts as having reached it."""

LOOK_AGAIN_S = 1.0
"""Seconds after progress until the watch checks for progress again."""

UNLESS_QUEUED = "If none is queued in a batch system"
"""The master does not see the queues of batch systems, so it does not know whether slaves will come from there."""


@define(eq=False, repr=False)
class SilenceWatch:
    """Decides when to say that nothing progresses."""

    deadline: float | None = None
    """When to observe again if nothing changes, on the core's clock; None if there is no need."""
    stuck_s: float = 0.0
    """For how long nothing could progress, without the pauses."""
    _due_s: float = FIRST_S
    _interval_s: float = FIRST_S
    _seen: float | None = None
    """When the watch last observed that nothing can progress; None in a pause."""
    _pause: float | None = None
    """When the pause began."""
    _reasons: set[str] = Factory(set)

    def reset(self, deadline: float | None) -> None:
        """There was progress, or the user does not wait. Observe again no later than at the deadline."""
        self.deadline = deadline
        self._seen = self._pause = None
        self.stuck_s = 0.0
        self._due_s = self._interval_s = FIRST_S
        self._reasons.clear()

    def pause(self, now: float) -> None:
        """A slave is at work and may make progress."""
        if self._pause is None:
            self._count(now)
            self.deadline, self._seen, self._pause = None, None, now

    def observe(self, reason: str, now: float) -> float | None:
        """Nothing can progress at present, for a reason.

        Returns:
            The seconds in which nothing could progress, if a message is due; else None.
        """
        if self._pause is not None and now >= self._pause + FIRST_S:
            self.reset(None)
        self._count(now)
        self._seen, self._pause = now, None
        if reason not in self._reasons:
            self._reasons.add(reason)
            self._due_s = min(self._due_s, self.stuck_s + FIRST_S)
        due_s = None
        if self.stuck_s >= self._due_s - ROUNDING_S:
            due_s = self.stuck_s
            self._interval_s = min(self._interval_s * GROWTH, LONGEST_S)
            self._due_s = self.stuck_s + self._interval_s
        self.deadline = now + self._due_s - self.stuck_s
        return due_s

    def _count(self, now: float) -> None:
        if self._seen is not None:
            self.stuck_s += now - self._seen


_REMEDIES = {
    Why.CANNOT_RUN: "correct this on their machines, or start other slaves",
    Why.NO_TIME: "start agents with more time (a longer time limit of their jobs, or a longer --mw-lifetime), or "
    "correct seconds_expected, or give it to tasks that take less than their mean",
    Why.OTHER_KIND: "free one with mw.free_slave, or start more slaves",
}
"""What a user can do if the slaves that are there are not sent the tasks that wait."""


@define(eq=False, repr=False)
class Silence:
    """Says why nothing progresses."""

    state: MasterState
    kinds: SlaveKinds
    admission: Admission
    losses: Losses
    handback: HandBack
    feeding: Feeding
    answers: Answers
    watch: SilenceWatch = Factory(SilenceWatch)
    waits_for_disk: bool = False
    """Whether results wait for the disk of the run database. The master says so if this takes long."""

    def decide(self, waiting: Waiting, awaited: str, now: float) -> None:
        """Report why nothing progresses, if the report is due.

        Args:
            waiting: whether the master algorithm waits in `mw.loop()`.
            awaited: which tasks wait for agents of former generations, or still run there; empty if none do.
            now: the time on the core's clock, in seconds.
        """
        waited_for = self.state.jar.runnable > 0 or self._is_waited_for_without_tasks(waiting)
        waited_for = waited_for and not (self.feeding.out_of_time or self.waits_for_disk)
        actions = self.state.actions
        if actions.results or actions.owned or actions.unrunnable or actions.connected or not waited_for:
            self.watch.reset(now + LOOK_AGAIN_S if waited_for else None)
        elif self.state.jar.num_allocated and not self.losses.waits:
            self.watch.pause(now)
        else:
            reason, text = self._why_stuck(awaited, now)
            if (stuck_s := self.watch.observe(reason, now)) is not None:
                self.state.notice(f"nothing has progressed for {stuck_s:.0f} s: {text}")

    def _is_waited_for_without_tasks(self, waiting: Waiting) -> bool:
        """Whether the user waits for slaves; `mw.loop(1.0)` without any task may be meant as a sleep."""
        wants_slaves = waiting is Waiting.FOR_A_WHILE and any(self.kinds.vacancies())
        return wants_slaves or waiting is Waiting.FOREVER

    def _why_stuck(self, awaited: str, now: float) -> tuple[str, str]:
        """Why nothing can progress: the name of the reason, and the text for the user."""
        jar = self.state.jar
        if not jar.pending.count and (next_attempt_at := self.handback.deadline) is not None:
            return "pauses", self._about_pauses(next_attempt_at - now)
        if not jar.pending.count and awaited:
            return "awaited", awaited
        if self.feeding.holds_back:
            return "unfetched", self.feeding.why_not
        if self.losses.waits:
            return "away", self.losses.text(now)
        slaves = self.state.members.slaves.values()
        if all(slave.state in (SlaveState.SHUTTING_DOWN, SlaveState.AWAY) for slave in slaves):
            return "no slave", f"no slave is connected ({jar.runnable} tasks wait). {self._why_no_slave(awaited, now)}"
        if jar.pending.count:
            return self._why_not_sent(now)
        vacancies = [kind.value for kind in self.kinds.vacancies()]
        if vacancies:
            return "vacancies", (
                f"{len(vacancies)} more {vacancies[0]} slaves are wanted and none connects: start more slaves"
            )
        return "nothing to do", (
            "mw.loop() waits, but no task is submitted and no ordered slave is wanted, so it cannot return: "
            "submit tasks, or leave the loop"
        )

    def _about_pauses(self, seconds: float) -> str:
        jar = self.state.jar
        blocked = len(jar.blocked.tasks)
        others = f", and {blocked} others need their results" if blocked else ""
        return (
            f"all tasks that are left ({jar.runnable - blocked}) pause before their next attempt, as `after` in their "
            f"policy says{others}. The next attempt starts in {seconds:.0f} s"
        )

    def _why_not_sent(self, now: float) -> tuple[str, str]:
        """Why no slave is sent the pending tasks, for the example of the first one."""
        pending = self.state.jar.pending
        first = next(pending.spans()).first
        answer = self.answers.explanation(first, now)
        remedies = [_REMEDIES[each.why] for each in answer.agents if each.why in _REMEDIES]
        remedy = f". What helps: {'; '.join(dict.fromkeys(remedies))}" if remedies else ""
        reasons = [line.strip() for line in explained(structs.replace(answer, deaths=[])).splitlines()[1:]]
        text = f"no slave is sent a task ({pending.count} wait), such as task {first}: {'; '.join(reasons)}{remedy}"
        return answer.agents[0].why.value if answer.agents else "", text

    def _why_no_slave(self, awaited: str, now: float) -> str:
        only_here = self.state.settings.only_here
        if self.admission.refusals:
            return f"Refused connections: {self.admission.refusals}, the last from {self.admission.last_refusal}"
        if self.state.members.away:
            return f"But {self.losses.text(now)}"
        if self.state.members.slaves:
            return "All connected slaves are leaving: start others"
        if agents := len(self.state.members.agents):
            if awaited:
                return f"{counted(agents, 'agent')} connected: {awaited}"
            connected = "1 agent is connected, but its" if agents == 1 else f"{agents} agents are connected, but their"
            return f"{connected} slaves are not ready yet: see what they write on standard error"
        if departures := self.losses.departures:
            reason, times = max(departures.items(), key=lambda item: item[1])
            again = (
                "Correct that, and start the computation again" if only_here else f"{UNLESS_QUEUED}, start slaves again"
            )
            return f"All agents left, most often ({times}) because: {reason}. {again}"
        if only_here:
            return "The slaves on this machine are not ready: if no message above says why, wait, or start it again"
        return f"{UNLESS_QUEUED}, start some with `python APP --mw-slave --mw-resource-file FILE`"


# Reports tasks that run for long, because a task may hang, and mwpy has no limit for its time.
#
# The master does not know when a task started. It knows when its slave was last heard: when the last result arrived, or
# when the slave was sent tasks while it had none. The task that the slave has held for the longest time has been
# running since then. A long task may be what the user wants, so a report only names it, and the reports become rare.


FIRST_LOOK_S = 60.0
"""Seconds of running before a task is reported, and the shortest interval between two reports. The manual names this
number."""

USUAL = 10.0
"""A task is reported when it runs this many times as long as the tasks of its algorithm that have ended. The manual
names this number."""


@define(eq=False, repr=False)
class LongTasks:
    """Says which tasks run for long. While there are such tasks, each interval is `GROWTH` times the one before."""

    state: MasterState
    deadline: float | None = None
    """When to look next, on the core's clock; None if no task is at a slave."""
    _interval_s: float = FIRST_LOOK_S

    def decide(self, now: float) -> None:
        """Report the tasks that run for long at the time `now`, if it is time to look."""
        if not self.state.jar.num_allocated:
            self.deadline, self._interval_s = None, FIRST_LOOK_S
        elif self.deadline is None:
            self.deadline = now + FIRST_LOOK_S
        elif now >= self.deadline:
            self._look(now)
            self.deadline = now + self._interval_s

    def _look(self, now: float) -> None:
        slaves = sorted(self._slaves_with_long_tasks(now), key=lambda slave: slave.last_heard)
        if not slaves:
            self._interval_s = FIRST_LOOK_S
            return
        self._interval_s = min(self._interval_s * GROWTH, LONGEST_S)
        named = first_of((_describe(slave, now) for slave in slaves), len(slaves))
        self.state.notice(
            f"running for long: {named}. If such a task hangs, cancel it with mw.cancel, or kill the "
            f"process of its slave; the policy seconds_max limits the time of a task"
        )

    def _slaves_with_long_tasks(self, now: float) -> Iterator[ConnectedSlave]:
        for slave in self.state.members.slaves.values():
            if slave.held.spans and not slave.given_back:  # else it runs a task that others have
                usual_s = self.state.members.pace.get(slave.held.spans[0].algorithm.number, 0.0)
                if now >= slave.last_heard + max(FIRST_LOOK_S, USUAL * usual_s):
                    yield slave


def _describe(slave: ConnectedSlave, now: float) -> str:
    span = slave.held.spans[0]
    seconds = now - slave.last_heard
    return f"task {span.first} ({span.algorithm.name}) for {seconds:.0f} s on {slave.sid} at {slave.agent.host}"


# The figures that a master publishes.


class Counts(Struct, frozen=True):
    """Figures for the algorithm, the resource file and inquirers."""

    slaves_wanted: int
    slaves_connected: int
    slaves_needed: int
    shortest_task_s: float = 0.0
    """How many seconds each pending task needs at least; 0 if this is not known of all of them."""
    agents: int = 0
    """How many agents are connected."""
    jobs: dict[str, int] = field(default_factory=dict)
    """The jobs of a batch system that are connected, and how many slaves of each are in use."""
    excluded: dict[str, list[str]] = field(default_factory=dict)
    """The hosts that get no more work, and their last jobs."""


# What the master does: the answer to `AskStatus`.
#
# The figures are derived when somebody asks, from what the parts of the core keep anyway. Only the rate needs a
# history.


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

_FIGURES = {SlaveState.IDLE: "idle", SlaveState.BUSY: "busy", SlaveState.AWAY: "away"}
"""Which figure of a machine counts a slave, by its state; all others are leaving."""

R = TypeVar("R", AlgorithmStatus, HostStatus)


@define(eq=False, repr=False)
class Rate:
    """How many tasks end in a second."""

    state: MasterState
    _samples: deque[tuple[float, int]] = Factory(deque)
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


# Why a task waits, or how it ended: the answer to `AskTask`.
#
# The reasons are those of the dispatch (`dispatch.py`), in the order in which they keep a task from a
# slave. Agents with the same reason are counted, and the first few are named. The text for people is
# made in `_values/messages.py`.


AGENTS_NAMED = 5
"""How many agents with the same reason are named."""

REASONS_SHOWN = 50
"""How many different reasons of agents an answer has. A text from a member may make each reason different."""

DEATHS_SHOWN = 5
"""How many lost attempts an answer has: the last ones."""

MISSING_NAMED = 5
"""How many of the tasks are named whose results a task needs."""

TEXT_CHARACTERS = 500

_FATE_OF = {
    TaskState.BLOCKED: Fate.BLOCKED,
    TaskState.DELAYED: Fate.DELAYED,
    TaskState.PENDING: Fate.PENDING,
    TaskState.ALLOCATED: Fate.AT_SLAVE,
    TaskState.CANCELLING: Fate.CANCELLING,
}

Question = messages.AskStatus | messages.AskTask


@define(eq=False, repr=False)
class Answers:
    """Says what the master does, and why a task waits or how it ended."""

    state: MasterState
    kinds: SlaveKinds
    hosts: Hosts
    totals: Totals
    feeding: Feeding
    handback: HandBack
    stop: Stop
    failures: RecentFailures
    rate: Rate

    def counts(self) -> Counts:
        """The figures of this moment."""
        state, kinds, hosts = self.state, self.kinds, self.hosts
        jar, members, wanted, expected = state.jar, state.members, kinds.wanted, kinds.expected
        if kinds.unordered_unasked:
            soon = jar.runnable - len(jar.delayed) - len(jar.blocked.tasks) + expected
            wanted = wanted | {SlaveKind.UNORDERED: soon}
        waiting = jar.pending.num_unaddressed + expected
        useful = min(wanted[SlaveKind.UNORDERED], dispatch.useful(members, waiting, state.settings.task_group))
        special = sum(1 for _ in kinds.vacancies())
        spent = dispatch.spent(members, jar.pending, state.now)
        away = sum(slave.kind_to_be is SlaveKind.UNORDERED for slave in absent(members))
        unordered = kinds.count(SlaveKind.UNORDERED) - away - hosts.num_useless - spent
        missing = max(0, useful - unordered) + special - members.coming()
        return Counts(
            slaves_wanted=sum(wanted.values()),
            slaves_connected=num_present(members),
            slaves_needed=0 if state.closing or self.feeding.out_of_time else max(0, missing),
            shortest_task_s=jar.pending.shortest_s,
            agents=len(members.agents),
            jobs=members.jobs(),
            excluded=hosts.named,
        )

    # ---- what the master does --------------------------------------------------------------------------------

    def status(self, now: float) -> Status:
        """What the master does at this time."""
        settings, counts, last = self.state.settings, self.counts(), self.failures.last
        lost: Counter[str] = Counter()
        for row in self.totals.rows.values():
            lost.update(row.lost)
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
            hosts=_largest(self._hosts(), HOSTS_SHOWN, HostStatus),
            failures=dict(sorted(self.failures.kinds.items(), key=lambda kind: -kind[1])),
            lost=dict(lost.most_common()),
            last_failure="" if last is None else str(last),
            last_failure_age_s=0.0 if last is None else now - last.at,
            notices=[Notice(now - at, shortened(text, NOTICE_CHARACTERS)) for at, text in self.state.notices.newest],
            waits=self.feeding.why_not,
            reused=self.state.jar.reused.count,
        )

    def _tasks(self) -> dict[str, int]:
        jar = self.state.jar
        return {
            "pending": jar.pending.count,
            "blocked": len(jar.blocked.tasks),
            "delayed": len(jar.delayed),
            "at_slaves": jar.num_allocated,
            "succeeded": jar.ended - jar.failed - jar.cancelled,
            "failed": jar.failed,
            "cancelled": jar.cancelled,
        }

    def _algorithms(self) -> dict[str, AlgorithmStatus]:
        """The tasks of each algorithm. Those that are neither pending nor blocked nor at slaves are delayed."""
        jar = self.state.jar
        at_slaves: Counter[int] = Counter()
        for held in jar.held.values():
            at_slaves.update(held.load)
        found: dict[str, AlgorithmStatus] = {}
        every_pending = jar.pending.counts
        for number, defined in jar.algorithms.defined.items():
            row = found.setdefault(defined.name, AlgorithmStatus())
            pending = every_pending[number]
            row.pending += pending
            row.at_slaves += at_slaves[number]
            row.blocked += defined.blocked
            row.delayed += defined.runnable - pending - at_slaves[number] - defined.blocked
        for (name, _), total in self.totals.rows.items():
            row = found.setdefault(name, AlgorithmStatus())
            row.finished += total.tasks
            row.failed += total.failed
            row.seconds += total.seconds
        return found

    def _hosts(self) -> dict[str, HostStatus]:
        """The agents and slaves of each machine, and the machines that get no more work."""
        excluded = self.state.members.excluded
        found = {host: HostStatus(excluded=shortened(why, NOTICE_CHARACTERS)) for host, why in excluded.items()}
        for agent in self.state.members.agents.values():
            row = found.setdefault(agent.host, HostStatus())
            row.agents += 1
            row.starting += agent.coming
            for slave in agent.slaves.values():
                figure = _FIGURES.get(slave.state, "leaving")
                setattr(row, figure, getattr(row, figure) + 1)
        for (_, host), total in self.totals.rows.items():
            if host in found:
                found[host].finished += total.tasks
                found[host].failed += total.failed
        return found

    # ---- why a task waits, or how it ended -------------------------------------------------------------------

    def explanation(self, task: int, now: float) -> Explanation:
        """Why a task waits, or how it ended, at this time."""
        found = self._find(task)
        if found is None:
            return self._ended(task)
        span, before = found
        fate, reasons, agents = _FATE_OF[span.state], list[WaitReason](), list[WaitReason]()
        if span.state is TaskState.BLOCKED:
            missing = [number for number in span.refers if not self.state.jar.blocked.results[number].is_here]
            named = ", ".join(map(str, missing[:MISSING_NAMED]))
            reasons.append(WaitReason(Why.MISSING, named, len(missing)))
        elif span.pause_s == inf:
            fate = Fate.AWAITED
        elif span.state is TaskState.DELAYED:
            reasons.append(WaitReason(Why.PAUSE, number=max(0.0, (self.handback.end_of(task) or now) - now)))
        elif span.state is TaskState.PENDING:
            reasons, agents = self._why_pending(span, before), self._by_agent(span, now)
        return Explanation(
            task,
            fate,
            span.algorithm.name,
            attempts=span.sent,
            needed_s=span.needed_s,
            reasons=reasons,
            agents=agents,
            places=self._places(span, before, now),
            deaths=[shortened(str(death), TEXT_CHARACTERS) for death in span.deaths[-DEATHS_SHOWN:]],
        )

    def _find(self, task: int) -> tuple[Span, int] | None:
        """The span of a task, and how many tasks are before it where it waits; None if it is not in the jar."""
        jar = self.state.jar
        for queue in (*jar.pending.all_queues(), *(held.spans for held in jar.held.values())):
            if (found := _in_queue(queue, task)) is not None:
                return found
        alone = jar.blocked.tasks.get(task) or jar.delayed.get(task)
        return None if alone is None else (alone, 0)

    def _why_pending(self, span: Span, before: int) -> list[WaitReason]:
        """Why a pending task waits, whatever the agents are."""
        found = [WaitReason(Why.STOPPED)] if self.stop.stopped else []
        if why_not := self.feeding.why_not:
            found.append(WaitReason(Why.HELD_BACK, why_not))
        if not self.state.members.agents:
            found.append(WaitReason(Why.NO_AGENT))
        others = len(self.state.jar.pending.queues) - 1
        if span.policy.sid is not None:
            found.append(WaitReason(Why.ADDRESSED, span.policy.sid))
        elif span.runs_alone:
            found.append(WaitReason(Why.RUNS_ALONE))
        if before:
            found.append(WaitReason(Why.TASKS_BEFORE, number=before))
        if span.policy.sid is None and not span.runs_alone and others:
            found.append(WaitReason(Why.TURNS, number=others))
        return found

    def _ended(self, task: int) -> Explanation:
        """About a task that is not in the jar."""
        jar = self.state.jar
        submitted = jar.away + jar.pending.count + len(jar.blocked.tasks)
        if not 0 < task <= submitted:
            return Explanation(task, Fate.UNKNOWN, text=str(submitted))
        if jar.reused.has(task):
            return Explanation(task, Fate.REUSED)
        failure = self.failures.newest.get(task)
        if failure is None:
            return Explanation(task, Fate.ENDED)
        return Explanation(task, Fate.FAILED, failure.algorithm, failure.text, failure.host or "")

    # ---- slaves and agents -----------------------------------------------------------------------------------

    def _places(self, span: Span, before: int, now: float) -> list[Place]:
        """The slave that has a task, with this many tasks before it; nothing if none has it."""
        if span.sid is None or span.state not in (TaskState.ALLOCATED, TaskState.CANCELLING):
            return []
        slave = self.state.members.slaves[span.sid]
        waited_s = max(0.0, now - slave.last_heard)
        return [Place(slave.sid, slave.agent.name, slave.agent.host, span.attempt, before, waited_s)]

    def _by_agent(self, span: Span, now: float) -> list[WaitReason]:
        """Why agents are not sent a task: all, or that of the slave to which it is addressed. Equal reasons are one."""
        found: dict[tuple[Why, str], WaitReason] = {}
        only, members = span.policy.sid, self.state.members
        for agent in members.agents.values() if only is None else [members.slaves[only].agent]:
            own = self._of_agent(agent, span, now, only)
            key = own.why, shortened(own.text, TEXT_CHARACTERS)
            same = found.get(key, WaitReason(*key))
            number = max(same.number, own.number) if own.why is Why.NO_TIME else same.number + own.number
            found[key] = WaitReason(*key, number, [*same.agents, agent.place][:AGENTS_NAMED], same.count + 1)
        return [*islice(found.values(), REASONS_SHOWN)]

    def _of_agent(self, agent: ConnectedAgent, span: Span, now: float, only: SlaveId | None) -> WaitReason:
        excluded = self.state.members.excluded.get(agent.host)
        if excluded is not None:
            return WaitReason(Why.HOST_EXCLUDED, excluded)
        if agent.leaving:
            return WaitReason(Why.LEAVING, agent.leaving)
        if agent.is_away:
            return WaitReason(Why.AWAY)
        serving = [slave for slave in agent.slaves.values() if slave.state in SERVING and only in (None, slave.sid)]
        if not serving:
            return WaitReason(Why.STARTING if agent.coming and only is None else Why.ENDING)
        found = [(slave, dispatch.why_not(slave, span, now)) for slave in serving]
        able = [slave for slave, reason in found if reason is None]
        reasons = [reason for _, reason in found if reason is not None]
        if not able:
            return next((reason for reason in reasons if reason.why is not Why.CANNOT_RUN), reasons[0])
        if span.runs_alone and agent.num_busy:
            return WaitReason(Why.NOT_ALONE, number=sum(slave.held.count for slave in agent.slaves.values()))
        if any(slave.state is SlaveState.IDLE for slave in able):
            return WaitReason(Why.IDLE)
        return WaitReason(Why.BUSY, number=sum(slave.held.count for slave in able))


def _in_queue(queue: Iterable[Span], task: int) -> tuple[Span, int] | None:
    """The span of a task in a queue, and how many tasks are before it; None if it is not there."""
    before = 0
    for span in queue:
        if task in span.ids:
            return span, before + task - span.first
        before += span.count
    return None


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


# Answers the questions of inquirers.
#
# An inquirer is a member that is no agent: it has no slaves, gets no tasks, and counts nowhere. It may ask one question
# at a time. Questions wait in a queue, and there is a pause after each answer. So inquirers together get a small part
# of the master's time, however many there are and however often they ask. A peer that asks again before it has its
# answer is dropped.


INQUIRERS_MAX = 100
"""How many inquirers are connected at a time. Each needs an open file."""

ANSWERS_MAX = 100
"""How many answers one connection gets: nobody says whether they are read. Then the inquirer connects again."""

PAUSE_S = 0.05
"""Seconds between two answers: so a master with thousands of slaves or spans spends a small part of its time on them.
"""


@define(eq=False, repr=False)
class Inquiries:
    """Answers inquirers, one after the other."""

    state: MasterState
    admission: Admission
    answers: Answers
    _open: dict[bytes, Question] = Factory(dict)
    """The questions that were not answered yet, by the connection of their inquirer. The first one is the oldest."""
    _inquirers: dict[bytes, int] = Factory(dict)
    """The connections of all inquirers: how many questions each has asked."""
    _next_at: float = 0.0
    """When the next answer may be given, on the core's clock."""

    def receive(self, peer: bytes, address: str, question: Question) -> None:
        """Take a question, or refuse the inquirer.

        Raises:
            ProtocolError: its last question has no answer yet; the inquirer's fault.
        """
        if peer in self._open:
            raise ProtocolError("an inquirer asked again before it had its answer")
        why_not = self._why_not(peer, question)
        if why_not:
            self.forget(peer)
            self.state.record(records.AgentRefused(address, why_not))
            self.admission.send_away(peer, messages.Refused(why_not))
        elif self.state.closing is not None:
            self.forget(peer)
            self.admission.send_away(peer, self.state.closing)
        elif self._inquirers.get(peer) == ANSWERS_MAX:
            self.state.actions.disconnect.append(peer)
        else:
            self._inquirers[peer] = self._inquirers.get(peer, 0) + 1
            self._open[peer] = question

    def knows(self, peer: bytes) -> bool:
        """Whether a connection belongs to an inquirer."""
        return peer in self._inquirers

    def forget(self, peer: bytes) -> None:
        """The connection of a peer is gone, or the peer is dropped."""
        self._inquirers.pop(peer, None)
        self._open.pop(peer, None)

    def close(self, closing: messages.Shutdown) -> None:
        """Answer all open questions with the end of the computation."""
        for peer in list(self._open):
            self.forget(peer)
            self.admission.send_away(peer, closing)

    def _why_not(self, peer: bytes, question: Question) -> str:
        mine = self.state.settings
        if question.member_id != mine.member_id:
            return (
                f"member id {question.member_id!r} is not this master's {mine.member_id!r}: the resource file is that "
                f"of another computation"
            )
        if question.generation != mine.generation:
            return (
                f"the resource file is of generation {question.generation}, this master is generation "
                f"{mine.generation}: the file is stale, take a fresh copy"
            )
        if len(self._inquirers) >= INQUIRERS_MAX and peer not in self._inquirers:
            return f"{INQUIRERS_MAX} others ask this master already: end some `mwpy status --watch`, and ask again"
        return ""

    @property
    def deadline(self) -> float | None:
        """When to answer the next question, on the core's clock; None if there is none."""
        return self._next_at if self._open else None

    def decide(self, now: float) -> None:
        """Answer the oldest question, if there was time enough since the last answer. Take a sample of the rate if it
        is time, and note the failures of this iteration."""
        self.answers.rate.decide(now)
        self.answers.failures.decide(now)
        if not self._open or now < self._next_at:
            return
        peer = next(iter(self._open))
        question = self._open.pop(peer)
        answer: messages.Message
        if isinstance(question, messages.AskStatus):
            answer = self.answers.status(now)
        else:
            answer = self.answers.explanation(question.task, now)
        self._next_at = now + PAUSE_S
        self.state.actions.sends.append(Send(peer, answer))
