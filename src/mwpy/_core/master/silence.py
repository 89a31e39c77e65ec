"""What a user can learn: why nothing progresses, why one task waits, what takes long, and how everything stands.

If nothing can progress, the master reports the reason, and repeats the report at growing intervals.

Since the last progress, the watch adds up the time in which nothing could progress. If a slave tries a task and fails
at once, this is not progress. While a slave works, nothing is said; after some seconds of work, the work counts as
progress. A new reason does not wait for the long interval.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import inf
from typing import TypeVar

from msgspec import Struct, field, structs

from mwpy._core.master import dispatch
from mwpy._core.master.admission import Admission, Feeding, SlaveKinds
from mwpy._core.master.hosts import Hosts
from mwpy._core.master.losses import Absences, Delays
from mwpy._core.master.members import SERVING, ConnectedAgent, ConnectedSlave, absent, num_present
from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterState, Send, Waiting
from mwpy._core.master.totals import RecentFailures, Stop, Totals
from mwpy._values import messages, records
from mwpy._values.bounds import SlaveId, shortened
from mwpy._values.errors import ProtocolError
from mwpy._values.messages import AlgorithmStatus, Explanation, Fate, HostStatus, Notice, Place, Status, WaitReason, Why
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


class SilenceWatch(Struct, eq=False):
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
    _reasons: set[str] = field(default_factory=set)

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

    def check(self) -> None:
        """Assert that the watch either pauses or observes, and that no message is overdue."""
        assert self._seen is None or self._pause is None, "the watch observes during a pause"
        assert self.stuck_s <= self._due_s + LONGEST_S, "a message about silence is overdue"

    def _count(self, now: float) -> None:
        if self._seen is not None:
            self.stuck_s += now - self._seen


class Silence(Struct, eq=False):
    """Says why nothing progresses."""

    state: MasterState
    kinds: SlaveKinds
    admission: Admission
    absences: Absences
    delays: Delays
    feeding: Feeding
    watch: SilenceWatch = field(default_factory=SilenceWatch)
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
        if actions.results or actions.stretches or actions.unrunnable or actions.connected or not waited_for:
            self.watch.reset(now + LOOK_AGAIN_S if waited_for else None)
            return
        if self.state.jar.num_allocated and not self.absences.waits:
            self.watch.pause(now)
            return
        if (next_attempt_at := self.delays.deadline) is not None and not self.state.jar.pending.count:
            if self.watch.observe("pauses", now) is not None:
                self.state.notice(self._about_pauses(next_attempt_at - now))
            return
        if awaited and not self.state.jar.pending.count:
            if (stuck_s := self.watch.observe("awaited", now)) is not None:
                self.state.notice(f"nothing has progressed for {stuck_s:.0f} s: {awaited}")
            return
        reason, text = self._why_stuck(awaited, now)
        if (stuck_s := self.watch.observe(reason, now)) is not None:
            self.state.notice(f"nothing has progressed for {stuck_s:.0f} s: {text}")

    def _is_waited_for_without_tasks(self, waiting: Waiting) -> bool:
        """Whether the user waits for slaves; `mw.loop(1.0)` without any task may be meant as a sleep."""
        wants_slaves = waiting is Waiting.FOR_A_WHILE and any(self.kinds.vacancies())
        return wants_slaves or waiting is Waiting.FOREVER

    def _about_pauses(self, seconds: float) -> str:
        jar = self.state.jar
        blocked = len(jar.blocked.tasks)
        others = f", and {blocked} others need their results" if blocked else ""
        return (
            f"all tasks that are left ({jar.runnable - blocked}) pause before their next attempt, as `after` in their "
            f"policy says{others}. The next attempt starts in {seconds:.0f} s"
        )

    def _why_stuck(self, awaited: str, now: float) -> tuple[str, str]:
        """Why nothing can progress: the name of the reason, and the text for the user."""
        jar = self.state.jar
        if self.feeding.holds_back:
            return "unfetched", self.feeding.why_not
        if self.absences.waits:
            return "away", self.absences.text(now)
        slaves = self.state.members.slaves.values()
        serving = [slave for slave in slaves if slave.state not in (SlaveState.SHUTTING_DOWN, SlaveState.AWAY)]
        vacancies = [kind.value for kind in self.kinds.vacancies()]
        if not serving:
            return "no slave", f"no slave is connected ({jar.runnable} tasks wait). {self._why_no_slave(awaited, now)}"
        waiting = jar.pending.num_queued
        if waiting and not any(slave.runs_unaddressed for slave in serving):
            return "no unordered slave", (
                f"{jar.pending.num_unaddressed} tasks are addressed to no slave, but every slave is ordered: free one "
                f"with mw.free_slave, or start more slaves"
            )
        if waiting and (longest := self._too_long(serving, now)) is not None:
            return "no time", self._about_time(*longest, now)
        if waiting:
            return "refused", self._which_agent_refuses(next(iter(waiting)))
        if jar.runnable:
            return "leaving", (
                f"{jar.runnable - len(jar.blocked.tasks)} tasks are at slaves that are leaving, or addressed to them: "
                f"when these slaves are gone, tasks that are not finished run elsewhere or are handed back"
            )
        if vacancies:
            return "vacancies", (
                f"{len(vacancies)} more {vacancies[0]} slaves are wanted and none connects: start more slaves"
            )
        return "nothing to do", (
            "mw.loop() waits, but no task is submitted and no ordered slave is wanted, so it cannot return: "
            "submit tasks, or leave the loop"
        )

    def _too_long(self, serving: Sequence[ConnectedSlave], now: float) -> tuple[Span, ConnectedAgent] | None:
        """A waiting task that takes longer than each agent has time that could run it, and the agent with most time."""
        pending = self.state.jar.pending
        for queue in (*pending.queues.values(), *pending.suspects.values()):
            number = queue[0].algorithm.number
            able = [slave.agent for slave in serving if slave.runs_unaddressed and number not in slave.refused]
            if able and not any(agent.has_time(queue[0], now) for agent in able):
                return queue[0], max(able, key=lambda agent: agent.ends_in_s(now))
        return None

    def _about_time(self, span: Span, agent: ConnectedAgent, now: float) -> str:
        count = self.state.jar.pending.num_queued[span.algorithm.number]
        needed_s = round(span.needed_s or 0.0, 2)
        stated = span.policy.seconds_expected is not None
        source = "by their seconds_expected" if stated else "on average so far"
        remedy = "correct seconds_expected" if stated else "give them seconds_expected if they take less"
        return (
            f"no connected agent has enough time left for the tasks that wait: task {span.first} "
            f"({span.algorithm.name}; tasks of it that wait: {count}) takes {needed_s:g} s {source}, and "
            f"{agent.place}, which has the most time, ends in {agent.ends_in_s(now):.0f} s. Start agents with more "
            f"time (a longer time limit of their jobs, or a longer --mw-lifetime), or {remedy}"
        )

    def _which_agent_refuses(self, algorithm: int) -> str:
        members = self.state.members
        named = [(agent.place, agent.refused) for agent in members.agents.values()]
        named += [(f"{slave.sid} of {slave.agent.place}", slave.refused) for slave in members.slaves.values()]
        refusing = ((name, refused[algorithm]) for name, refused in named if algorithm in refused)
        name, reason = next(refusing, ("", ""))
        return (
            f"no connected slave can run {self.state.jar.algorithms.defined[algorithm].name}, for which "
            f"{self.state.jar.pending.num_queued[algorithm]} tasks wait: correct this on their machines, or start "
            f"other slaves. {name}: {reason}"
        )

    def _why_no_slave(self, awaited: str, now: float) -> str:
        only_here = self.state.settings.only_here
        if self.admission.refusals:
            return f"Refused connections: {self.admission.refusals}, the last from {self.admission.last_refusal}"
        if self.state.members.away:
            return f"But {self.absences.text(now)}"
        if self.state.members.slaves:
            return "All connected slaves are leaving: start others"
        if agents := len(self.state.members.agents):
            if awaited:
                return f"{counted(agents, 'agent')} connected: {awaited}"
            connected = "1 agent is connected, but its" if agents == 1 else f"{agents} agents are connected, but their"
            return f"{connected} slaves are not ready yet: see what they write on standard error"
        if departures := self.absences.losses.departures:
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


class LongTasks(Struct, eq=False):
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
            if slave.held.spans:
                usual_s = self.state.members.pace.get(slave.held.spans[0].algorithm.number, 0.0)
                if now >= slave.last_heard + max(FIRST_LOOK_S, USUAL * usual_s):
                    yield slave

    def check(self) -> None:
        """Assert that the interval is within its limits."""
        assert FIRST_LOOK_S <= self._interval_s <= LONGEST_S, f"the interval is {self._interval_s} s"


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


Question = messages.AskStatus | messages.AskTask


class Answers(Struct, eq=False):
    """Says what the master does, and why a task waits or how it ended."""

    state: MasterState
    kinds: SlaveKinds
    hosts: Hosts
    totals: Totals
    feeding: Feeding
    delays: Delays
    stop: Stop
    failures: RecentFailures
    rate: Rate

    def work(self, question: Question) -> int:
        """How many objects the answer to a question looks at, about."""
        jar, members = self.state.jar, self.state.members
        looks = len(members.slaves) + len(members.agents)
        if isinstance(question, messages.AskStatus):
            return looks + len(jar.algorithms.defined) + len(self.totals.rows)
        return looks + sum(map(len, jar.pending.all_queues())) + sum(len(held.spans) for held in jar.held.values())

    def counts(self) -> Counts:
        """The figures of this moment."""
        state, kinds, hosts = self.state, self.kinds, self.hosts
        jar, members, wanted, expected = state.jar, state.members, kinds.wanted, kinds.expected
        if kinds.unordered_unasked:
            soon = jar.runnable - len(jar.delayed.tasks) - len(jar.blocked.tasks) + expected
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
            "delayed": len(jar.delayed.tasks),
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
        for live in jar.allocated.several.values():
            first, *others = live.values()
            at_slaves[first.algorithm.number] -= len(others)
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

    # ---- why a task waits, or how it ended -------------------------------------------------------------------

    def explanation(self, task: int, now: float) -> Explanation:
        """Why a task waits, or how it ended, at this time."""
        jar = self.state.jar
        if (blocked := jar.blocked.tasks.get(task)) is not None:
            return self._about(blocked, Fate.BLOCKED, task, reasons=[self._missing(blocked)])
        if (delayed := jar.delayed.tasks.get(task)) is not None:
            if delayed.pause_s == inf:
                return self._about(delayed, Fate.AWAITED, task)
            pause = WaitReason(Why.PAUSE, number=max(0.0, (self.delays.end_of(task) or now) - now))
            return self._about(delayed, Fate.DELAYED, task, reasons=[pause])
        places = [*filter(None, (self._place(slave, task, now) for slave in self.state.members.slaves.values()))]
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
        reasons: Sequence[WaitReason] = (),
        agents: Sequence[WaitReason] = (),
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

    def _missing(self, span: Span) -> WaitReason:
        """Which tasks a blocked task waits for."""
        missing = [number for number in span.refers if not self.state.jar.blocked.results[number].is_here]
        named = ", ".join(map(str, missing[:MISSING_NAMED]))
        return WaitReason(Why.MISSING, named, len(missing))

    def _general(self) -> list[WaitReason]:
        """Why no task is sent at all."""
        found = [WaitReason(Why.STOPPED)] if self.stop.stopped else []
        if why_not := self.feeding.why_not:
            found.append(WaitReason(Why.HELD_BACK, why_not))
        if not self.state.members.agents:
            found.append(WaitReason(Why.NO_AGENT))
        return found

    def _pending(self, task: int, now: float) -> Explanation | None:
        """About a pending task; None if it is not pending."""
        pending = self.state.jar.pending
        for queue in pending.all_queues():
            found = self._find(queue, task)
            if found is not None:
                span, before = found
                only, agents = span.policy.sid, None
                reasons = self._general()
                if only is not None:
                    reasons.append(WaitReason(Why.ADDRESSED, only))
                    agents = [self.state.members.slaves[only].agent]
                elif span.runs_alone:
                    reasons.append(WaitReason(Why.RUNS_ALONE))
                if before:
                    reasons.append(WaitReason(Why.TASKS_BEFORE, number=before))
                if only is None and not span.runs_alone and len(pending.queues) > 1:
                    reasons.append(WaitReason(Why.TURNS, number=len(pending.queues) - 1))
                by_agent = self._by_agent(span, now, agents, only)
                return self._about(span, Fate.PENDING, task, reasons=reasons, agents=by_agent)
        return None

    def _find(self, queue: deque[Span], task: int) -> tuple[Span, int] | None:
        """The span of a task in a queue, and how many tasks are before it; None if it is not there."""
        before = 0
        for span in queue:
            if task in span.ids:
                return span, before + task - span.first
            before += span.count
        return None

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

    def _place(self, slave: ConnectedSlave, task: int, now: float) -> tuple[Place, Span] | None:
        """Where a slave has a task; None if it does not have it."""
        found = self._find(slave.held.spans, task)
        if found is None:
            return None
        (span, before), agent = found, slave.agent
        return Place(slave.sid, agent.name, agent.host, span.attempt, before, max(0.0, now - slave.last_heard)), span

    def _by_agent(
        self,
        span: Span,
        now: float,
        agents: Iterable[ConnectedAgent] | None = None,
        only: SlaveId | None = None,
    ) -> list[WaitReason]:
        """Why agents are not sent a task. Equal reasons are one.

        Args:
            agents: these agents; None for all.
            only: the slave to which it is addressed.
        """
        found: dict[tuple[Why, str], WaitReason] = {}
        for agent in self.state.members.agents.values() if agents is None else agents:
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
# at a time. Questions wait in a queue. After each answer, the next one waits for a time that is proportional to the
# work of the answer. So inquirers together get a small part of the master's time, however many there are and however
# often they ask. A peer that asks again before it has its answer is dropped.


INQUIRERS_MAX = 100
"""How many inquirers are connected at a time. Each needs an open file."""

ANSWERS_MAX = 100
"""How many answers one connection gets: nobody says whether they are read. Then the inquirer connects again."""

PAUSE_S = 0.01
"""Seconds between two answers at least: 50 times what a short answer takes."""

PAUSE_OF_AN_OBJECT_S = 1e-5
"""Seconds for each object at which an answer looks, such as a slave or a span of tasks: 50 times what one look takes.
"""


class Inquiries(Struct, eq=False):
    """Answers inquirers, one after the other."""

    state: MasterState
    admission: Admission
    answers: Answers
    _open: dict[bytes, Question] = field(default_factory=dict)
    """The questions that were not answered yet, by the connection of their inquirer. The first one is the oldest."""
    _inquirers: dict[bytes, int] = field(default_factory=dict)
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
        self._next_at = now + PAUSE_S + self.answers.work(question) * PAUSE_OF_AN_OBJECT_S
        self.state.actions.sends.append(Send(peer, answer))

    def check(self) -> None:
        """Assert that each question has an inquirer, and that no inquirer is an agent."""
        assert self._open.keys() <= self._inquirers.keys(), "a question is of nobody"
        assert len(self._inquirers) <= INQUIRERS_MAX, "there are too many inquirers"
        assert not self._inquirers.keys() & self.state.members.peers.keys(), "an inquirer is an agent"
