"""Which slave processes start: as many as wanted, until too many fail in a row or the agent leaves.

Starts as many slave processes as wanted, and a new one for each that ends, until too many fail in a row.

*The template* is a process that has loaded the script and runs nothing. Slaves are forked from it, one at a time. The
others wait, and have no process. The start of the template is part of the start of its first slave: if it fails or
hangs, the start of this slave has failed. The next slave then starts another template. A template that dies between two
starts is also replaced at the next one.

Some scripts leave something that must not be copied, for example a random number generator. Then the template becomes
its first slave itself, and all other slaves start as fresh interpreters. They also do so if the template cannot fork.

A slave that another process kills has not failed: the next one may live. But somebody may kill each of them, so the
starts after that pause for longer and longer.

*The set-up* of a computation runs before all slaves, in a process of its own. It stands among the slaves, so its
limits, its output and its end are those of a slave that starts. If the machine or the network may be why it failed, it
is tried again, as the start of a slave is. If not, the agent leaves at once. The next generation of the master may want
another set-up: then slaves of the former generation only finish their tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, islice
from math import inf

from msgspec.structs import replace

from mwpy._core.agent.child import FAREWELL_S, AgentState, Child, ChildEvent, ChildState, Due, Forked, Outgoing
from mwpy._core.holding import known
from mwpy._core.pauses import Pause
from mwpy._values import messages, records
from mwpy._values.bounds import MAX_NAME, MAX_PACKAGES, Buffer, SlaveId, shortened
from mwpy._values.causes import Cause
from mwpy._values.errors import ExitCode
from mwpy._values.options import NEAR_THE_END_S
from mwpy._values.phrases import amount

# How an agent leaves: it returns unstarted tasks, lets running ones finish within a grace period, kills what is left.
#
# The first reason to leave decides the exit code. The shortest grace period counts.


class Departure:
    """Whether the agent leaves, why, and until when."""

    def __init__(self, state: AgentState) -> None:
        self._state = state
        self.code: ExitCode | None = None
        """The exit code; None while the agent stays."""
        self.why = ""
        self.cause = Cause.EVICTED
        """The cause of the loss of the tasks that do not finish in time."""
        self.drains = False
        """Whether it leaves after its tasks, however long they take. Then it needs its connection until the end."""
        self._deadline: float | None = None
        """When slaves are killed. After that: when the agent stops waiting for their exit."""
        self._idle_until: float | None = None
        """When to leave if no slave gets a task before; None if a slave holds a task, or the agent stays."""
        settings = state.settings
        self._leave_at = None if settings.ends_at is None else settings.ends_at - settings.grace_s - FAREWELL_S
        """When to begin to leave, if it is known when the batch system ends this agent."""
        self.comes_back = False
        """Whether the agent leaves only because the master has given it up, and joins again as a new one."""
        self.was_stopped = False
        """Whether the master has given it up because this process was stopped."""
        self._stopped_s = 0.0
        self._resumed_at = 0.0

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
        if self.code is None:
            self._leave_if_due(now)
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

    def _leave_if_due(self, now: float) -> None:
        limit_s, grace_s = self._state.settings.idle_exit_s, self._state.settings.grace_s
        if limit_s is not None:
            self._idle_until = (self._idle_until or now + limit_s) if self._is_idle else None
        if self._leave_at is not None and now >= self._leave_at:
            self.leave(ExitCode.EVICTED, "its time limit is near", Cause.WALLTIME, grace_s, now)
        elif self._idle_until is not None and now >= self._idle_until:
            why = f"its slaves had no task for {limit_s:g} s (--mw-idle-exit)"
            self.leave(ExitCode.OK, why, Cause.SCALED_DOWN, grace_s, now)

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
        if self._state.settings.idle_exit_s is not None and self._idle_until is None and self._is_idle:
            return -inf
        return min(known((self._leave_at, self._idle_until)), default=None)


FAILED_STARTS_ALLOWED = 3
"""When this many slaves in a row end before they start a task, the agent gives up."""

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0
"""How long starts pause after a slave that was killed from outside. Each further one in a row doubles this."""

ABORT_S = 2.0
"""Seconds that a slave that hangs gets to write where it hangs, before it is killed."""


class Starts:
    """Starts slave processes and gives them the definitions of algorithms."""

    def __init__(self, state: AgentState) -> None:
        self._state = state
        self._last_number = 0
        """Number of the slave that was started last. Numbers are never used twice."""
        self._failed = 0
        """How many slaves in a row ended by themselves before they started a task."""
        self._pause = Pause(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        """The pauses after slaves that were killed from outside before they started a task."""
        self.deadline: float | None = None
        """Until when no slave is started; None if slaves may start."""
        self._definitions: dict[int, tuple[messages.AlgorithmDefinition, Sequence[Buffer]]] = {}
        """The definitions that every new slave gets, by number, each with its payload."""
        self._looked_up: dict[str, None] = {}
        """The packages whose versions the agent has looked up."""
        self._forks = state.settings.forks
        """Whether slaves are forked from a template."""
        self._forked = 0
        """The slave that the template starts now; 0 if it starts none."""
        self._is_stale = False
        """Whether the template ends after this start, because the script was edited."""
        self._welcome: messages.Welcome | None = None
        self._was_set_up: messages.SetUp | None = None
        """The set-up that was done last."""

    @property
    def must_set_up(self) -> messages.SetUp | None:
        """The set-up that must be done before slaves may start; None if there is none, or it is done."""
        set_up = None if self._welcome is None else self._welcome.set_up
        return None if set_up == self._was_set_up else set_up

    def must_replace(self, child: Child) -> bool:
        """Whether a slave was started after another set-up than the one that this master wants."""
        wanted = None if self._welcome is None else self._welcome.set_up
        return wanted not in (None, child.after)

    def joined(self, welcome: messages.Welcome) -> None:
        """A master has accepted this agent, and says what to set up."""
        self._welcome = welcome
        for child in self._state.living():
            if child.sets_up not in (None, self.must_set_up):
                child.is_replaced = True
                self._state.stop(child, finished=False)
        if welcome.set_up is not None and self.must_set_up is None:
            self._state.to_master(messages.SetUpEnded(self._last_number))

    def set_up(self, child: Child, ended: messages.SetUpEnded) -> None:
        """A set-up has ended, well or not. Its process ends next."""
        child.set_up_ended = ended
        if not ended.failure:
            child.is_replaced = True
            self._was_set_up = child.sets_up
            self._state.actions.environment |= ended.environment
            self._state.to_master(replace(ended, environment={}))
            self.renew()
        elif not ended.is_passing:
            child.loss = Cause.SET_UP

    def fill(self, now: float, failed_before: int = 0) -> None:
        """Start slaves until there are as many as the settings want.

        Args:
            failed_before: how many slaves in a row, up to the one that is replaced, could not load an algorithm.
        """
        children, set_up = self._state.children, self.must_set_up
        while len(children) < self._state.settings.hello.slaves and set_up is None:
            self._add(now, failed_before=failed_before)
        if set_up is not None and not any(child.sets_up for child in children.values()):
            self._add(now, sets_up=set_up)
        self._start_waiting(now)

    def _add(self, now: float, *, failed_before: int = 0, sets_up: messages.SetUp | None = None) -> None:
        self._last_number += 1
        name = SlaveId("the set-up" if sets_up else f"slave {self._last_number}")
        child = Child(self._last_number, name, now, ChildState.WAITING, failed_before=failed_before, sets_up=sets_up)
        self._state.children[child.number] = child

    def _start_waiting(self, now: float) -> None:
        """Start the slaves that wait. The template starts one at a time."""
        if self.deadline is not None:
            return
        actions, set_up = self._state.actions, self.must_set_up
        for child in self._state.children.values():
            if child.state is not ChildState.WAITING or (set_up is not None and child.sets_up is None):
                continue
            if child.sets_up is not None or not self._forks:
                self._start(child, actions.start, now)
            elif not self._forked:
                self._forked = child.number
                self._start(child, actions.fork, now)

    def _start(self, child: Child, way: list[int], now: float) -> None:
        child.change(ChildEvent.START)
        child.started_at, child.dues[Due.START] = now, now + self._state.settings.start_timeout_s
        way.append(child.number)
        child.after = self._was_set_up
        if child.sets_up is None:
            self.give_definitions(child)
            return
        most = child.sets_up.seconds_max
        child.dues = {Due.MEMORY: now} if most is None else {Due.MEMORY: now, Due.START: now + most}
        assert self._welcome is not None, "a set-up is that of a master"
        self._state.to_slave(child, self._welcome)

    def give_definitions(self, child: Child) -> None:
        """Send a slave the definitions of all algorithms, before its first task."""
        if self._definitions:
            definitions, payloads = zip(*self._definitions.values(), strict=True)
            everything = Outgoing(messages.Algorithms([*definitions]), [*chain.from_iterable(payloads)])
            self._state.actions.to_slaves.append((child.number, everything))

    def forked(self, event: Forked, now: float) -> None:
        """The template has started a slave, or, if it must not fork, has become this slave."""
        assert event.slave == self._forked, "the template starts one slave at a time"
        self._forked, self._state.template_bytes = 0, event.template_bytes
        child = self._state.children[event.slave]
        if Due.START in child.dues:  # its messages are read from now on
            child.dues[Due.START] = now + self._state.settings.start_timeout_s
        if event.unsafe:
            self._give_up_forks(event.unsafe)
        elif self._is_stale:
            self._state.actions.end_template = True
        self._is_stale = False
        self._start_waiting(now)

    def not_forked(self, reason: str) -> None:
        """The template could not fork a slave. The slave has ended before it began."""
        self._give_up_forks(f"the process that has loaded the script cannot be forked: {reason}")
        self._state.actions.end_template = True

    def _give_up_forks(self, why: str) -> None:
        """From now on, start all slaves as fresh interpreters."""
        self._forks = False
        self._state.record(records.Notice(f"the slaves of this agent start as fresh interpreters, because {why}"))

    def renew_slaves(self, module_path: str) -> None:
        """Let each slave end after the tasks that it holds. When a slave has ended, a new one is started.

        Args:
            module_path: as in `Renew`.
        """
        self._state.actions.module_path = module_path or self._state.actions.module_path
        for child in self._state.living():
            if child.sets_up is None:
                child.is_replaced = child.is_replaced or child.state is ChildState.STARTING
                self._state.stop(child, finished=False)
        self.renew()

    def renew(self) -> None:
        """The script was edited: replace the template."""
        if self._forked:
            self._is_stale = True
        elif self._forks:
            self._state.actions.end_template = True

    def begin_again(self) -> None:
        """Another generation of the master begins. It defines its own algorithms."""
        self._definitions.clear()
        self._looked_up.clear()

    def ended(self, child: Child) -> None:
        """A slave ended. If the template was starting it, the template ended, too."""
        if child.number == self._forked:
            self._forked, self._is_stale = 0, False

    def knows(self, algorithm: int) -> bool:
        """Whether the master has defined an algorithm, and not forgotten it."""
        return algorithm in self._definitions

    def define(self, message: messages.Algorithms, received: Sequence[Buffer]) -> None:
        """Pass definitions on to all slaves, forget what the master has forgotten, and look up each package once."""
        for number in message.forgotten:
            self._definitions.pop(number, None)
        pickles = iter(received[1:])
        for definition in message.definitions:
            payload = () if definition.reference else (next(pickles),)
            self._definitions[definition.number] = definition, payload
        passed_on = Outgoing(message, (), received)
        receivers = [child.number for child in self._state.living() if child.former is None and not child.sets_up]
        self._state.actions.to_slaves += [(number, passed_on) for number in receivers]
        wanted = dict.fromkeys(name for each in message.definitions for name in each.packages)
        unknown = {name: None for name in wanted if name not in self._looked_up}
        self._looked_up |= unknown
        self._state.actions.look_up.extend(unknown)

    def looked_up(self, packages: dict[str, str]) -> None:
        """Report the installed versions of packages to the master, in as many messages as needed."""
        for start in range(0, len(packages), MAX_PACKAGES):
            some = islice(packages.items(), start, start + MAX_PACKAGES)
            self._state.to_master(messages.Installed({name: version[:MAX_NAME] for name, version in some}))

    def end_start(self, child: Child, now: float) -> None:
        """Kill a slave that hangs in its start. Before that, let it write where it hangs."""
        limit, set_up = self._state.settings.start_timeout_s, child.sets_up
        why, loss = f"because it was not ready after {limit:g} s (--mw-slave-start-timeout)", Cause.START_UP
        if set_up is not None:
            why, loss = f"because it ran for more than {set_up.seconds_max:g} s, its seconds_max", Cause.SET_UP
        child.kill(why, loss)
        child.dues[Due.KILL] = now + ABORT_S
        self._state.actions.abort.append(child.number)

    def resumed(self, stopped_s: float) -> None:
        """The agent was stopped, most likely with its slaves: those that start get more time."""
        for child in self._state.children.values():
            if Due.START in child.dues:
                child.dues[Due.START] += stopped_s

    def decide(self, now: float) -> None:
        """Start slaves again if a pause is over."""
        if self.deadline is not None and now >= self.deadline:
            self.deadline = None
            self._start_waiting(now)

    def succeeded(self) -> None:
        """A slave has started a task, or has ended well."""
        self._failed = 0
        self._pause.reset()

    def killed(self, now: float) -> None:
        """Another process killed a slave before it started a task."""
        self.deadline = now + self._pause.begin(now)

    def failed(self, child: Child, reason: str, headline: str = "") -> str | None:
        """A slave ended by itself before it started a task.

        Args:
            headline: the most useful line of what it wrote; empty if it wrote nothing.

        Returns:
            Why the agent must give up; None if it may start another slave.
        """
        self._failed += 1
        if self._failed < FAILED_STARTS_ALLOWED:
            return None
        if child.sets_up is not None:
            return f"in {self._failed} attempts, {reason}"
        wrote = f" ({headline})" if headline else ""
        return f"{self._failed} slaves in a row ended before they could take a task: {reason}{wrote}"
