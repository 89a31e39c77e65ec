"""If nothing can progress, the master reports the reason, and repeats the report at growing intervals.

Since the last progress, the watch adds up the time in which nothing could progress. If a slave tries a task and fails
at once, this is not progress. While a slave works, nothing is said; after some seconds of work, the work counts as
progress. A new reason does not wait for the long interval.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from mwpy._core.master.absences import Absences
from mwpy._core.master.admission import Admission
from mwpy._core.master.commands import Waiting
from mwpy._core.master.delays import Delays
from mwpy._core.master.feeding import Feeding
from mwpy._core.master.kinds import SlaveKinds
from mwpy._core.master.members import ConnectedAgent, ConnectedSlave
from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterState
from mwpy._values.phrases import counted
from mwpy._values.task import SlaveState

__all__ = ["Silence", "SilenceWatch"]

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
            return "unfetched", self.feeding.reason
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
        refusing = [(name, refused[algorithm]) for name, refused in named if algorithm in refused]
        name, reason = refusing[0] if refusing else ("", "")
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
