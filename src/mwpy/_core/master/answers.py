"""What a user can learn of a master: what it does, why nothing progresses, why one task waits or how it ended.

Everything is derived when somebody asks, from what the parts of the core keep anyway. Only the rate and the newest
lines of the log need a history.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from heapq import nlargest
from itertools import islice
from math import inf
from typing import TypeVar

from attrs import Factory, define
from msgspec import Struct, structs

from mwpy._core.master import dispatch
from mwpy._core.master.admission import Admission, Feeding, SlaveKinds
from mwpy._core.master.fitting import Fitting, WaitReason, Why, sentence, why_not
from mwpy._core.master.handback import HandBack
from mwpy._core.master.hosts import Hosts
from mwpy._core.master.losses import Losses
from mwpy._core.master.members import SERVING, ConnectedAgent, ConnectedSlave, absent, num_present
from mwpy._core.master.spans import Span
from mwpy._core.master.state import UNLESS_QUEUED, MasterState
from mwpy._core.master.totals import RecentFailures, Stop, Totals, short
from mwpy._values import messages, records
from mwpy._values.bounds import SlaveId, shortened
from mwpy._values.errors import ProtocolError
from mwpy._values.jobs import Kind
from mwpy._values.messagepack import MALFORMED
from mwpy._values.messages import (
    AlgorithmAtHost,
    AlgorithmStatus,
    Explanation,
    FailureExample,
    HostStatus,
    LogLine,
    LogRow,
    MapStatus,
    Notice,
    Overview,
    SlaveStatus,
    Status,
)
from mwpy._values.phrases import counted, duration, first_of
from mwpy._values.task import SlaveKind, SlaveState, TaskState, read_failure


class Counts(Struct, frozen=True):
    """The figures in the resource file, under their names there."""

    slaves_wanted: int
    slaves_connected: int
    slaves_needed: int
    shortest_task: float
    """How many seconds each pending task needs at least; 0 if this is not known of all of them."""
    connected_jobs: dict[str, int]
    """The jobs of a batch system that are connected, and how many slaves of each are in use."""
    excluded_hosts: dict[str, list[str]]
    """The hosts that get no more work, and their last jobs."""
    kinds: tuple[Kind, ...]
    """What tasks require for which slaves are missing."""


SLAVES_SHOWN = 2000
"""How many slaves an overview names: those that connected first. `mwpy.status` names this number."""

ROWS_SHOWN = 1000
"""How many pairs of algorithm and host it has: those with most tasks."""

LINES_KEPT = 200
"""How many of the newest records of `logging` it has."""

COMPARED, COMPARED_LEAST = 50, 3
"""The arguments of this many of the newest failures are compared. An argument is named if each of its values stands for
at least this many failures."""

ARGUMENTS_CHARACTERS = 500
"""How long a text about arguments is at most."""

TRACE_CHARACTERS = 8000
"""How long the traceback of an example is at most."""

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


_REMEDIES = {
    Why.CANNOT_RUN: "correct this on their machines, or start other slaves",
    Why.NO_TIME: "start agents with more time (a longer time limit of their jobs, or a longer --mw-lifetime), or "
    "correct seconds_expected, or give it to tasks that take less than their mean",
    Why.LACKS: "start agents that offer it (--mw-offers states what mwpy does not find), or require less",
    Why.OTHER_KIND: "free one with mw.free_slave, or start more slaves",
}
"""What a user can do if the slaves that are there are not sent the tasks that wait."""

REASONS_SHOWN = 50
"""How many different reasons of agents an answer has. A text from a member may make each reason different."""

DEATHS_SHOWN = 5
"""How many lost attempts an answer has: the last ones."""

_FATES = {
    TaskState.BLOCKED: "is blocked: it waits for the results of other tasks",
    TaskState.DELAYED: "pauses before its next attempt, as `after` in its policy says",
    TaskState.PENDING: "waits to be sent to a slave",
    TaskState.ALLOCATED: "is at a slave",
    TaskState.CANCELLING: "is at a slave and is cancelled unless it has started",
}


@define(eq=False, repr=False)
class Answers:
    """Says what the master does, why nothing progresses, and why a task waits or how it ended."""

    state: MasterState
    kinds: SlaveKinds
    admission: Admission
    fitting: Fitting
    hosts: Hosts
    totals: Totals
    losses: Losses
    feeding: Feeding
    handback: HandBack
    stop: Stop
    failures: RecentFailures
    rate: Rate
    maps: Callable[[], Sequence[MapStatus]] = tuple
    """Returns the maps of the master algorithm that are open."""
    unsubmitted: Callable[[], int | None] = lambda: 0
    """Returns how many tasks will be submitted, as far as this is known; None if a map does not know it."""
    arguments: Callable[[int], Sequence[str]] = lambda _: ()
    """Returns the arguments of a task that failed, as texts; nothing if they are not known."""
    _lines: deque[LogLine] = Factory(lambda: deque(maxlen=LINES_KEPT))
    """The newest records of `logging`."""

    def counts(self) -> Counts:
        """The figures of this moment."""
        state, kinds, hosts = self.state, self.kinds, self.hosts
        jar, members, wanted = state.jar, state.members, kinds.wanted
        if kinds.unordered_unasked:
            soon = jar.runnable - len(jar.delayed) - len(jar.blocked.tasks)
            wanted = wanted | {SlaveKind.UNORDERED: soon}
        waiting = jar.pending.num_plain
        useful = min(wanted[SlaveKind.UNORDERED], dispatch.useful(members, waiting, state.settings.task_group))
        special = sum(1 for _ in kinds.vacancies())
        spent = dispatch.spent(members, jar.pending, state.now)
        away = sum(slave.kind_to_be is SlaveKind.UNORDERED for slave in absent(members))
        unordered = kinds.count(SlaveKind.UNORDERED) - away - hosts.num_useless - spent
        fitted = self.fitting.kinds()
        more = sum(kind.slaves_needed for kind in fitted)
        if not kinds.unordered_unasked:
            more = min(more, max(0, wanted[SlaveKind.UNORDERED] - unordered))
        missing = max(0, useful - unordered) + more + special - members.coming()
        return Counts(
            slaves_wanted=sum(wanted.values()),
            slaves_connected=num_present(members),
            slaves_needed=0 if state.closing or self.feeding.out_of_time else max(0, missing),
            shortest_task=jar.pending.shortest_s,
            connected_jobs=members.jobs(),
            excluded_hosts=hosts.named,
            kinds=fitted,
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
            reused=self.state.jar.ends.reused,
            maps=[*self.maps()],
            unsubmitted=self.unsubmitted(),
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
        setting_up = {*self.being_set_up()}
        for agent in self.state.members.agents.values():
            row = found.setdefault(agent.host, HostStatus())
            row.agents += 1
            if agent in setting_up:
                row.setting_up += 1
            else:
                row.starting += agent.coming
            for slave in agent.slaves.values():
                figure = _FIGURES.get(slave.state, "leaving")
                setattr(row, figure, getattr(row, figure) + 1)
        for (_, host), total in self.totals.rows.items():
            if host in found:
                found[host].finished += total.tasks
                found[host].failed += total.failed
        return found

    # ---- what each slave does, and what happened lately ------------------------------------------------------

    def logged(self, sid: SlaveId, host: str, rows: Iterable[LogRow]) -> None:
        """Keep the newest records that the tasks of a slave have logged."""
        for row in rows:
            names = sid, host, row.task, row.algorithm
            self._lines.append(LogLine(*names, row.created, row.level, row.logger, short(row.text)))

    def overview(self, now: float) -> Overview:
        """What the master and its slaves do at this time."""
        slaves, stuck = self.state.members.slaves, self.why_stuck("", now)
        shown = [*islice(slaves.values(), SLAVES_SHOWN)]
        rows = nlargest(ROWS_SHOWN, self.totals.rows.values(), key=lambda row: row.tasks)
        return Overview(
            status=self.status(now),
            stuck="" if stuck is None or not self.state.jar.runnable else stuck[1],
            slaves=[_slave(slave, now) for slave in shown],
            slaves_left_out=len(slaves) - len(shown),
            rows=[
                AlgorithmAtHost(
                    *(row.algorithm, row.host, row.tasks, row.failed, row.seconds, row.longest_s),
                    *(sum(row.lost.values()), row.lost_s, row.memory_used),
                )
                for row in rows
            ],
            examples=[*self._examples(now)],
            log=[*self._lines],
        )

    def _examples(self, now: float) -> Iterable[FailureExample]:
        """The newest failure of each kind, with its traceback; the most frequent kinds are first."""
        failures = self.failures
        for kind, count in sorted(failures.kinds.items(), key=lambda each: -each[1]):
            if kind in failures.examples:
                one, encoded = failures.examples[kind]
                try:
                    trace = read_failure(encoded).traceback if encoded else ""
                except MALFORMED:
                    trace = ""
                arguments = shortened(", ".join(self.arguments(one.task)), ARGUMENTS_CHARACTERS)
                names = one.task, one.algorithm, one.host or "", one.text, arguments, self._common(kind)
                yield FailureExample(kind, count, *names, shortened(trace, TRACE_CHARACTERS), now - one.at)

    def _common(self, kind: str) -> str:
        """Which arguments the newest failures of a kind have in common: those with few values for many failures."""
        tasks = [each.task for each in self.failures.newest.values() if each.text.partition(":")[0] == kind]
        known = [found for found in map(self.arguments, tasks[-COMPARED:]) if found]
        common = []
        for at, values in enumerate(zip(*known, strict=False), 1):
            different = dict.fromkeys(values)
            if len(known) >= COMPARED_LEAST * len(different):
                common.append(f"argument {at} is {' or '.join(different)}")
        return shortened(", ".join(common), ARGUMENTS_CHARACTERS)

    # ---- why nothing progresses -------------------------------------------------------------------------------

    def why_stuck(self, awaited: str, now: float) -> tuple[str, str] | None:
        """Why nothing can progress: the name of the reason, and the text for the user; None if a slave has a task.

        Args:
            awaited: which tasks wait for agents of former generations, or still run there; empty if none do.
        """
        jar = self.state.jar
        if jar.num_allocated and not self.losses.waits:
            return None
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
            f"policy says{others}. The next attempt starts in {duration(round(seconds))}"
        )

    def _why_not_sent(self, now: float) -> tuple[str, str]:
        """Why no slave is sent the pending tasks, for the example of the first one."""
        pending = self.state.jar.pending
        span = next(pending.spans())
        agents = self.why_by_agent(span, now)
        remedies = dict.fromkeys(_REMEDIES[why] for why, _ in agents if why in _REMEDIES)
        remedy = f". What helps: {'; '.join(remedies)}" if remedies else ""
        reasons = "; ".join([*self.why_pending(span, 0), *(text for _, text in agents)])
        text = f"no slave is sent a task ({pending.count} wait), such as task {span.first}: {reasons}{remedy}"
        return agents[0][0].value if agents else "", text

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
            if (set_up := self.state.settings.set_up) and (setting_up := self.being_set_up()):
                longest = duration(round(now - min(agent.joined_at for agent in setting_up)))
                name, more = set_up.definition.name, " at most" if len(setting_up) > 1 else ""
                return f"The set-up {name} runs on {counted(len(setting_up), 'agent')}, for {longest}{more}"
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
        return self.state.settings.advice

    # ---- why a task waits, or how it ended -------------------------------------------------------------------
    #
    # The reasons are those of the dispatch (`dispatch.py`), in the order in which they keep a task from a slave. Of
    # agents with the same reason, the first few are named.

    def explanation(self, task: int, now: float) -> Explanation:
        """Why a task waits, or how it ended, at this time."""
        found = self._find(task)
        if found is None:
            return self._ended(task)
        span, before = found
        fate, reasons = _FATES[span.state], list[str]()
        if span.state is TaskState.BLOCKED:
            missing = [number for number in span.refers if not self.state.jar.blocked.results[number].is_here]
            reason = WaitReason(Why.MISSING, first_of(map(str, missing), len(missing)), len(missing))
            reasons.append(sentence(reason, span))
        elif span.pause_s == inf:
            fate = "waits for agents of the former master, which may run it or bring its result"
        elif span.state is TaskState.DELAYED:
            pause_s = max(0.0, (self.handback.end_of(task) or now) - now)
            reasons.append(sentence(WaitReason(Why.PAUSE, number=pause_s), span))
        elif span.state is TaskState.PENDING:
            reasons += [*self.why_pending(span, before), *(text for _, text in self.why_by_agent(span, now))]
        elif span.sid is not None:
            reasons.append(_place(self.state.members.slaves[span.sid], span, before, now))
        if span.sent:
            fate = f"{fate}, after {counted(span.sent, 'attempt')}"
        reasons += [f"lost: {short(str(death))}" for death in span.deaths[-DEATHS_SHOWN:]]
        return Explanation(task, span.algorithm.name, fate, reasons=reasons)

    def _find(self, task: int) -> tuple[Span, int] | None:
        """The span of a task, and how many tasks are before it where it waits; None if it is not in the jar."""
        jar = self.state.jar
        for queue in (*jar.pending.all_queues(), *(held.spans for held in jar.held.values())):
            if (found := _in_queue(queue, task)) is not None:
                return found
        alone = jar.blocked.tasks.get(task) or jar.delayed.get(task)
        return None if alone is None else (alone, 0)

    def why_pending(self, span: Span, before: int) -> list[str]:
        """Why a pending task waits, whatever the agents are. `before` tasks of its queue are before it."""
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
        if span.policy.sid is None and not (span.runs_alone or span.policy.requires) and others > 0:
            found.append(WaitReason(Why.TURNS, number=others))
        return [sentence(each, span) for each in found]

    def _ended(self, task: int) -> Explanation:
        """About a task that is not in the jar."""
        jar = self.state.jar
        submitted = jar.away + jar.pending.count + len(jar.blocked.tasks)
        if not 0 < task <= submitted:
            text = f"is unknown: {submitted} tasks were submitted so far, with ids from 1 on"
            return Explanation(task, "", text, is_known=False)
        if jar.ends.was_reused(task):
            return Explanation(task, "", "was answered from the run database, when it was submitted")
        failure = self.failures.newest.get(task)
        if failure is None:
            return Explanation(task, "", "has ended, and the master keeps nothing of it")
        return Explanation(task, failure.algorithm, f"failed{failure.place}: {failure.text}")

    # ---- slaves and agents -----------------------------------------------------------------------------------

    def being_set_up(self) -> list[ConnectedAgent]:
        """The agents whose set-up has not ended."""
        agents = self.state.members.agents.values() if self.state.settings.set_up is not None else ()
        return [agent for agent in agents if agent.coming and not agent.is_set_up]

    def why_by_agent(self, span: Span, now: float) -> list[tuple[Why, str]]:
        """Why agents are not sent a task: all, or that of the slave to which it is addressed. Equal reasons are one."""
        found: dict[tuple[Why, str], tuple[list[str], list[float]]] = {}
        only, members = span.policy.sid, self.state.members
        for agent in members.agents.values() if only is None else [members.slaves[only].agent]:
            own = self._of_agent(agent, span, now, only)
            places, numbers = found.setdefault((own.why, own.text), ([], []))
            places.append(agent.place)
            numbers.append(own.number)
        said = list[tuple[Why, str]]()
        for (why, text), (places, numbers) in islice(found.items(), REASONS_SHOWN):
            reason = WaitReason(why, text, max(numbers) if why is Why.NO_TIME else sum(numbers))
            said.append((why, f"{first_of(places, len(places))}: {sentence(reason, span)}"))
        return said

    def _of_agent(self, agent: ConnectedAgent, span: Span, now: float, only: SlaveId | None) -> WaitReason:
        excluded = self.state.members.excluded.get(agent.host)
        if excluded is not None:
            return WaitReason(Why.HOST_EXCLUDED, excluded)
        if agent.leaving:
            return WaitReason(Why.LEAVING, agent.leaving)
        if agent.is_away:
            return WaitReason(Why.AWAY)
        serving = [slave for slave in agent.slaves.values() if slave.state in SERVING and only in (None, slave.sid)]
        if not serving and agent in self.being_set_up():
            return WaitReason(Why.SETTING_UP, number=now - agent.joined_at)
        if not serving:
            return WaitReason(Why.STARTING if agent.coming and only is None else Why.ENDING)
        serving.sort(key=lambda slave: slave.state is not SlaveState.IDLE)  # the reason of an idle one says most
        found = [(slave, why_not(self.state.members, slave, span, now)) for slave in serving]
        able = [slave for slave, reason in found if reason is None]
        reasons = [reason for _, reason in found if reason is not None]
        if not able:
            return next((reason for reason in reasons if reason.why is not Why.CANNOT_RUN), reasons[0])
        if span.runs_alone and agent.num_busy:
            return WaitReason(Why.NOT_ALONE, number=sum(slave.held.count for slave in agent.slaves.values()))
        if any(slave.state is SlaveState.IDLE for slave in able):
            return WaitReason(Why.IDLE)
        return WaitReason(Why.BUSY, number=sum(slave.held.count for slave in able))


def _slave(slave: ConnectedSlave, now: float) -> SlaveStatus:
    span = slave.held.spans[0] if slave.held.spans else None
    return SlaveStatus(
        sid=slave.sid,
        agent=slave.agent.name,
        host=slave.agent.host,
        job=slave.agent.job,
        state=slave.state.value,
        task=0 if span is None else span.first,
        algorithm="" if span is None else span.algorithm.name,
        running_s=0.0 if span is None else now - slave.last_heard,
        waiting=max(0, slave.held.count - 1),
        finished=slave.finished,
        busy_s=slave.busy_s,
        up_s=now - slave.connected_at,
        memory=slave.peak_bytes,
    )


def _place(slave: ConnectedSlave, span: Span, before: int, now: float) -> str:
    """Where a slave has a task. `before` tasks are before it there."""
    agent, since = slave.agent, duration(round(now - slave.last_heard))
    where = f"attempt {span.attempt} is on {slave.sid} of {agent.name} ({agent.host})"
    if before:
        return f"{where}, behind {counted(before, 'task')}; its last result came {since} ago"
    return f"{where}, and has run there for at most {since}"


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
# An inquirer is a member that is no agent: it has no slaves, gets no tasks, and counts nowhere. It asks one question on
# a connection, because nobody says whether answers are read. Questions wait in a queue, and there is a pause after each
# answer. So inquirers together get a small part of the master's time, however many there are and however often they
# ask.


INQUIRERS_MAX = 100
"""How many inquirers wait for their answers at a time. Each needs an open file."""

PAUSE_S = 0.05
"""Seconds between two answers: so a master with thousands of slaves or spans spends a small part of its time on them.
"""


@define(eq=False, repr=False)
class Inquiries:
    """Answers inquirers, one after the other."""

    state: MasterState
    admission: Admission
    answers: Answers
    open: dict[bytes, messages.Ask] = Factory(dict)
    """The questions that were not answered yet, by the connection of their inquirer. The first one is the oldest."""
    _next_at: float = 0.0
    """When the next answer may be given, on the core's clock."""

    def receive(self, peer: bytes, address: str, question: messages.Ask) -> None:
        """Take a question, or refuse the inquirer.

        Raises:
            ProtocolError: its last question has no answer yet; the inquirer's fault.
        """
        if peer in self.open:
            raise ProtocolError("an inquirer asked again before it had its answer")
        if why_not := self._why_not(question):
            self.state.record(records.AgentRefused(address, why_not))
            self.admission.send_away(peer, messages.Refused(why_not))
        elif self.state.closing is not None:
            self.admission.send_away(peer, self.state.closing)
        else:
            self.open[peer] = question

    def forget(self, peer: bytes) -> None:
        """The connection of a peer is gone, or the peer is dropped."""
        self.open.pop(peer, None)

    def close(self, closing: messages.Shutdown) -> None:
        """Answer all open questions with the end of the computation."""
        while self.open:
            self.admission.send_away(self.open.popitem()[0], closing)

    def _why_not(self, question: messages.Ask) -> str:
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
        if len(self.open) >= INQUIRERS_MAX:
            return f"{INQUIRERS_MAX} others ask this master already: end some `mwpy status --watch`, and ask again"
        return ""

    @property
    def deadline(self) -> float | None:
        """When to answer the next question, on the core's clock; None if there is none."""
        return self._next_at if self.open else None

    def decide(self, now: float) -> None:
        """Answer the oldest question, if there was time enough since the last answer. Take a sample of the rate if it
        is time, and note the failures of this iteration."""
        self.answers.rate.decide(now)
        self.answers.failures.decide(now)
        if not self.open or now < self._next_at:
            return
        peer = next(iter(self.open))
        question = self.open.pop(peer)
        answer: messages.Message
        if question.drain:
            answer = self.admission.drain(question.drain)
        elif question.task is None:
            answer = self.answers.overview(now) if question.detailed else self.answers.status(now)
        else:
            answer = self.answers.explanation(question.task, now)
        self._next_at = now + PAUSE_S
        self.admission.send_away(peer, answer)
