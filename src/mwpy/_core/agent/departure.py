"""How an agent leaves: it returns unstarted tasks, lets running ones finish within a grace period, kills what is left.

The first reason to leave decides the exit code. The shortest grace period counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from mwpy._core.agent.child import ChildState
from mwpy._core.agent.events import FAREWELL_S
from mwpy._core.agent.state import AgentState
from mwpy._values import messages, records
from mwpy._values.bounds import shortened
from mwpy._values.causes import Cause
from mwpy._values.environment import NEAR_THE_END_S
from mwpy._values.errors import ExitCode
from mwpy._values.phrases import amount

__all__ = ["FAREWELL_S", "Departure"]


class Departure:
    """Whether the agent leaves, why, and until when."""

    def __init__(self, state: AgentState) -> None:
        self._state = state
        self.code: ExitCode | None = None
        """The exit code; None while the agent stays."""
        self.why = ""
        self.cause = Cause.EVICTED
        """The cause of the loss of the tasks that do not finish in time."""
        self._deadline: float | None = None
        """When slaves are killed. After that: when the agent stops waiting for their exit."""
        self._idle_exit_s = state.settings.idle_exit_s
        """The agent leaves when its slaves held no task for this long; None if it stays."""
        self._idle_since: float | None = None
        """Since when no slave holds a task, if the agent then leaves some time later."""
        self._leave_at = self._before_the_end()
        """When to begin to leave, if it is known when the batch system ends this agent."""
        self.comes_back = False
        """Whether the agent leaves only because the master has given it up, and joins again as a new one."""
        self.was_stopped = False
        """Whether the master has given it up because this process was stopped."""
        self._stopped_s = 0.0
        self._resumed_at = 0.0

    def _before_the_end(self) -> float | None:
        settings = self._state.settings
        return None if settings.ends_at is None else settings.ends_at - settings.grace_s - FAREWELL_S

    def terminated(self, reason: str, cause: Cause, used: Mapping[int, int], now: float) -> None:
        """Leave, because a signal says so.

        Near the time limit of a job, its batch system sends the same signal. HTCondor also sends it to a job that it
        holds because of its memory. Then a task is charged only if its slave alone used more than the job has.

        Args:
            used: how many bytes of memory each busy slave used; empty if they were not measured.
        """
        settings = self._state.settings
        has, together, guilty = settings.memory_bytes, sum(used.values()), list[int]()
        if cause is Cause.EVICTED and settings.ends_at is not None and now > settings.ends_at - NEAR_THE_END_S:
            reason, cause = f"its time limit is near: {reason}", Cause.WALLTIME
        elif cause is Cause.EVICTED and has is not None and together > has:
            reason += (
                f"; its slaves used {amount(together)} of memory, and its job has {amount(has)} for them: ask for more"
            )
            guilty = [number for number in used if used[number] > has]
        self.leave(ExitCode.EVICTED, reason, cause, settings.grace_s, now)
        for child in self._state.living():
            if child.number in guilty:
                child.loss = Cause.OUT_OF_MEMORY

    def resumed(self, stopped_s: float, now: float) -> None:
        """This process was stopped for some seconds."""
        self._resumed_at, self._stopped_s = now, stopped_s

    def disconnected(self, reason: str, ended_at: float, now: float, *, again: bool = False) -> None:
        """Leave. If this process was stopped for long, the master has given it up, and it comes back as another one.

        Args:
            ended_at: when the connection ended. The agent may have looked for its master since then.
            again: whether it comes back in any case.
        """
        timeout_s = self._state.settings.client_timeout_s
        noticed_at = ended_at if ended_at >= self._resumed_at else now
        self.was_stopped = self._stopped_s > timeout_s / 2 and noticed_at < self._resumed_at + timeout_s
        self.comes_back = self.code is None and (self.was_stopped or again)
        if self.comes_back and self.was_stopped:
            reason = f"this agent was stopped for {self._stopped_s:.0f} s, and starts again"
        self._state.record(records.Notice(f"the master is lost: {reason}"))
        cause = Cause.SUSPENDED if self.comes_back and self.was_stopped else Cause.NETWORK
        self.leave(ExitCode.FAILED, "the master is lost", cause, FAREWELL_S, now)

    def leave(self, code: ExitCode, why: str, cause: Cause, grace_s: float, now: float) -> None:
        """Leave: tell the master, recall unstarted tasks, stop the slaves."""
        if self.code is None:
            self.code, self.why, self.cause = code, shortened(why), cause
            self._state.to_master(messages.Leaving(self.why, cause))
        until = now + grace_s
        self._deadline = until if self._deadline is None else min(self._deadline, until)
        tasks_end_at = self._state.settings.tasks_end_at
        self._state.actions.end_at = self._deadline if tasks_end_at is None else min(self._deadline, tasks_end_at)
        state = self._state
        waiting = [child.number for child in state.children.values() if child.state is ChildState.WAITING]
        for number in (*waiting, *state.actions.start, *state.actions.fork):  # they need not start any more
            state.children.pop(number, None)
        state.actions.start.clear()
        state.actions.fork.clear()
        for child in self._state.living():
            child.loss = self.cause  # it may end by itself, because its task gives up
            self._state.stop(child, self.code is ExitCode.OK)
        self.exit_if_alone()

    def decide(self, now: float) -> None:
        """Leave when the time has come, and kill the slaves that outlive their grace period."""
        if self._idle_exit_s is not None and self.code is None:
            self._leave_if_idle(self._idle_exit_s, now)
        if self.code is None and self._leave_at is not None and now >= self._leave_at:
            self.leave(ExitCode.EVICTED, "its time limit is near", Cause.WALLTIME, self._state.settings.grace_s, now)
        if self._deadline is None or now < self._deadline:
            return
        living = self._state.living()
        for child in living:
            child.kill(f"after the grace period: {self.why}", child.loss)
            self._state.actions.kill.append(child.number)
        if living:
            self._deadline = now + FAREWELL_S
        else:
            self._state.children.clear()  # they were killed, but the kernel cannot end them: do not wait for them
        self.exit_if_alone()

    def _leave_if_idle(self, limit_s: float, now: float) -> None:
        if not self._is_idle:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        elif now >= self._idle_since + limit_s:
            why = f"its slaves had no task for {limit_s:g} s (--mw-idle-exit)"
            self.leave(ExitCode.OK, why, Cause.SCALED_DOWN, self._state.settings.grace_s, now)

    @property
    def _is_idle(self) -> bool:
        """Whether there is a slave for tasks, and no slave holds any."""
        children = self._state.children.values()
        return any(child.is_ready for child in children) and not any(child.held for child in children)

    def exit_if_alone(self) -> None:
        """Say goodbye and exit if the agent leaves and has no slave."""
        state = self._state
        if self.code is None or state.children or state.actions.exit is not None:
            return
        state.to_master(messages.Goodbye(self.why, self.cause))
        state.record(records.Ended(self.why, state.settings.hello.member_id))
        state.actions.exit = self.code

    @property
    def deadline(self) -> float | None:
        """When `decide` is due; None if there is no such moment."""
        if self.code is not None:
            return self._deadline
        limit_s = self._idle_exit_s
        if limit_s is None or not self._is_idle:
            return self._leave_at
        idle_until = -inf if self._idle_since is None else self._idle_since + limit_s
        return idle_until if self._leave_at is None else min(idle_until, self._leave_at)

    def check(self) -> None:
        """An agent that leaves has a deadline."""
        assert (self.code is None) == (self._deadline is None), "it leaves without a deadline"
