"""Tasks that wait for agents which have outlived the former master.

Such an agent says which tasks its slaves still run (`StillRunning`), and later brings their results. An equal task of
this generation then waits, and is not sent to another slave, until its result is in the file. It is pending again when
the agent is lost, or when its slave has ended without a result.

A task that must not run twice also waits if a former generation sent it to a slave, as long as an agent may return that
ran it: until all agents of the last generations are back and have said what they have, or for the longest time that the
missing ones look for their master. Without a result it then is unrunnable. If an agent says that its slave has not
started the task, it is pending.

Tasks that wait are DELAYED, without an end of their pause. The user may not expect that, so the master says soon which
tasks wait, how long, for which agents, and how they run at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from mwpy._core.holding import TaskIds
from mwpy._core.master.former_agents import FormerAgents
from mwpy._core.master.handback import HandBack
from mwpy._core.master.spans import Span, named
from mwpy._core.master.state import MasterState
from mwpy._core.moments import known
from mwpy._values import records
from mwpy._values.phrases import counted, first_of
from mwpy._values.task import TaskState

__all__ = ["Awaited"]

LOST = (
    "a slave ran it when the master was started again, and has ended without a result, and its policy says retry=False"
)

SAY_S = 1.0
"""Seconds from the first task that waits until the master says so. Tasks that come until then are named, too."""

GROWTH = 4.0
"""How much longer this takes for each later message about further tasks."""


class Awaited:
    """Knows which occurrences of tasks agents may answer.

    Args:
        state: what all parts share.
        forbidden: why a task is unrunnable for which no agent came.
        rerun_failed: as in `Reuse`.
    """

    def __init__(self, state: MasterState, forbidden: str, rerun_failed: bool) -> None:
        self.state = state
        self.forbidden = forbidden
        self.rerun_failed = rerun_failed
        self.former = FormerAgents()
        """The agents of the last generations."""
        self.new: dict[int, int] = {}
        """The occurrences of new tasks for which agents may come, by task, until the tasks are in the jar."""
        self._handback = HandBack(state)
        self._since: float | None = None
        """When the master began to wait for them, on the core's clock; None before the first iteration."""
        self._running: dict[int, tuple[str, int]] = {}
        """The occurrences that still run: the name of the agent, and the number of the slave."""
        self._storing: dict[int, None] = {}
        """The occurrences whose results were brought and are not in the file yet."""
        self._held: dict[int, int] = {}
        """The task of each occurrence that waits. Some of them have ended."""
        self._say_at: float | None = None
        """When to say that tasks wait, on the core's clock; None if it was said of all of them."""
        self._say_s = SAY_S
        """How long after a task that waits this is."""

    @property
    def may_return(self) -> bool:
        """Whether agents of former generations may come that have not come yet."""
        return self.former.returns_s > 0 and (self._since is None or self.state.now < self._until)

    @property
    def _until(self) -> float:
        """When the last of those that are missing has given up, on the core's clock."""
        return (self.state.now if self._since is None else self._since) + self.former.returns_s

    def comes(self, number: int) -> bool:
        """Whether an agent runs an occurrence, or has brought its result."""
        return number in self._running or number in self._storing

    # ---- what agents say ---------------------------------------------------------------------------------------

    def runs(self, agent: str, slave: int, numbers: Sequence[int], waiting: Mapping[int, int]) -> None:
        """A slave of an agent runs these occurrences, and no others.

        Args:
            waiting: the occurrences for which tasks of this generation wait, by task.
        """
        before = [number for number, place in self._running.items() if place == (agent, slave)]
        now = dict.fromkeys(numbers, (agent, slave))
        self._running.update(now)
        self._has_ended(number for number in before if number not in now)
        if waiting:
            self.hold([*self.state.jar.pending.spans()], waiting)

    def brought(self, numbers: Iterable[int], counting: Iterable[int], waiting: Mapping[int, int]) -> None:
        """An agent has brought results of these occurrences.

        Args:
            counting: those whose results count, and are stored now.
            waiting: the occurrences of these for which tasks of this generation wait, by task.
        """
        self._storing.update(dict.fromkeys(counting))
        self._has_ended([number for number in numbers if number in self._running])
        if waiting:
            self.hold([*self.state.jar.pending.spans()], waiting)

    def not_started(self, numbers: Iterable[int]) -> None:
        """No slave has started these occurrences: their tasks may run."""
        for number in numbers:
            self._running.pop(number, None)
            self._release(number, None)

    def stored(self, numbers: Iterable[int]) -> None:
        """Results of these occurrences are in the file, and have ended tasks."""
        for number in numbers:
            self._storing.pop(number, None)
            self._release(number, LOST)

    # ---- tasks ---------------------------------------------------------------------------------------------

    def hold_new(self, spans: Iterable[Span]) -> None:
        """New tasks are in the jar: let those wait for which agents may come."""
        if self.new:
            self.hold(spans, self.new)
            self.new = {}

    def hold(self, spans: Iterable[Span], numbers: Mapping[int, int]) -> None:
        """Let those of the tasks wait that are pending.

        Args:
            numbers: their occurrences, by task.
        """
        able = [span for span in spans if span.state is TaskState.PENDING and is_holdable(span)]
        ids = TaskIds((task, 1) for task in numbers)
        if numbers and (tasks := named(able, ids)):
            self.state.record(records.TasksAwaited(tasks))
            for each in tasks:
                self._held.update((numbers[task], task) for task in range(each.first, each.first + each.count))
            if self._say_at is None and not all(map(self.comes, self._held)):
                self._say_at = self.state.now + self._say_s

    def decide(self, now: float) -> None:
        """Release the tasks for which nobody will come any more."""
        if self._since is None:
            self._since = now
        if self._running:
            agents = self.state.members.agents
            self._has_ended([number for number, (agent, _) in self._running.items() if agent not in agents])
        if self._held and now >= self._until:
            for number in [*self._held]:
                if not self.comes(number):
                    self._release(number, self.forbidden)
        if self._say_at is not None and now >= self._say_at:
            self._say_at, self._say_s = None, self._say_s * GROWTH
            self._say(now)

    def _say(self, now: float) -> None:
        """Say which tasks may have run, and what the user can do."""
        tasks = self._doubtful()
        if not tasks:
            return
        spans = (self.state.jar.delayed.tasks[task] for task in tasks)
        names = first_of((f"task {span.first} ({span.algorithm.name})" for span in spans), len(tasks))
        self.state.notice(
            f"{counted(len(tasks), 'task')} with retry=False may have run before the master was started again, and the "
            f"run database has no results of them: {names}. They wait up to {self._left_s(now):.0f} s for "
            f"{self.former.names()} of the former master, which may bring results. After that, those without a result "
            f"are unrunnable. If they may run again, stop this master, and start it with --mw-rerun failed: then they "
            f"run at once"
        )

    def _doubtful(self) -> list[int]:
        """The tasks that wait, and of which no agent has said that it has them."""
        delayed = self.state.jar.delayed.tasks
        return [task for number, task in self._held.items() if task in delayed and not self.comes(number)]

    def _left_s(self, now: float) -> float:
        """How long the master waits for agents that have not come, in seconds."""
        return max(0.0, self._until - now)

    @property
    def deadline(self) -> float | None:
        """When to decide even if nothing happens, on the core's clock; None if there is no need."""
        waits = any(not self.comes(number) for number in self._held)
        return min(known((self._until if waits else None, self._say_at)), default=None)

    def _has_ended(self, numbers: Iterable[int]) -> None:
        """These occurrences do not run any more."""
        for number in [*numbers]:
            self._running.pop(number, None)
            if number not in self._storing:
                self._release(number, LOST)

    def _release(self, number: int, reason: str | None) -> None:
        """Nobody will bring a result of an occurrence: its task is pending again, or unrunnable.

        Args:
            reason: why a task is unrunnable that must not run twice; None if it has not run.
        """
        task = self._held.pop(number, None)
        span = None if task is None else self.state.jar.delayed.tasks.get(task)
        if span is None or span.pause_s < inf:
            return
        if reason is None or span.policy.retry or self.rerun_failed:
            self.state.record(records.TasksDue([span.whole], not_started=reason is None))
        else:
            self._handback.give_up_unsent(span, reason)

    def text(self, now: float) -> str:
        """What is waited for; empty if nothing is."""
        others = len(self._doubtful())
        parts: list[str] = []
        if running := len(self._running):
            run = "still runs" if running == 1 else "still run"
            parts.append(f"{counted(running, 'task')} {run} at slaves that have outlived the former master")
        if others:
            parts.append(
                f"{counted(others, 'task')} with retry=False wait {self._left_s(now):.0f} s longer for agents that may "
                f"have run them before the master was started again; with --mw-rerun failed they run at once"
            )
        return ", and ".join(parts)

    def check(self) -> None:
        """Assert that each task that waits without an end is waited for."""
        waiting = [task for task, span in self.state.jar.delayed.tasks.items() if span.pause_s == inf]
        assert all(task in self._held.values() for task in waiting), "a task waits for nobody"


def is_holdable(span: Span) -> bool:
    """Whether the tasks of a span may wait for an agent."""
    return span.policy.sid is None and not span.refers
