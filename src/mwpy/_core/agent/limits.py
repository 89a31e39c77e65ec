"""When an agent looks at a slave, and when it kills it: limits of time and memory.

*Time.* Before a slave starts a task with a limit of time, it writes the time into the memory that it shares with its
agent. The agent does not follow each start. No task that it passes on now can be over its limit before the shortest
limit has passed. Then the agent looks once, and knows from the start of the running task when to look again. A timer in
the slave would not do: C code can hold the interpreter, and a task can change the handlers of signals.

*Memory.* While a slave holds a task with a limit of memory, its agent measures the memory of the slave and its
descendants every `MEASURE_S`. Where the agent may make a control group, the kernel enforces the limit, too. Then it
kills one process, and this may be a process of the task instead of the slave. If no other task has run since the
measurement before, this task is over its limit.

*Shortage.* A batch system kills a job that uses more memory than it has, with all its tasks. So before this happens,
the agent kills one slave: the one that is furthest beyond what its task may use then. Numbers that are
rough or old may be too large, so all slaves with limits are measured again, exactly, before one is killed. If the task
would have had enough memory without the others, it is not charged.

An HTCondor without control groups holds a job whose memory is over what it asked for. The job only gets SIGTERM, as for
an eviction, and nothing on its machine says why. So the agent measures its slaves at that moment: a slave that alone
uses more than the job has is charged, because its task would take one job after the other out of the queue. HTCondor
with groups of version 2 sets `memory.oom.group`, so the kernel also kills the agent, and its tasks are suspects.

A slave whose task is over a limit is killed as for a cancelled task: after a recall, and only if it still runs this
task. So no other task is killed or charged. If the task has just finished, its result counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from attrs import Factory, define

from mwpy._core.agent.child import OVERWROTE, AgentState, Child, ChildState, Doom, Due
from mwpy._values import records
from mwpy._values.causes import Cause
from mwpy._values.phrases import amount
from mwpy._values.policy import Limits
from mwpy._values.requires import MEMORY

# When a slave needs the agent's attention: it is silent, its stream ended, or its process ended.
#
# *Silence.* A slave sends results in groups. Its journal holds the results that it has not sent. A long task must not
# delay the results of the tasks before it. So the agent reads the journal of a slave that holds tasks and has sent
# nothing for `SILENT_S`. A few results are not in the journal (see `Traffic.look_for_late`). If the master fixes the
# size of groups, only the slave sends results.
#
# *End of the stream.* The slave can run no more tasks. It may still run its tear-down in Python, for at most `EXIT_S`.
# Then it is killed with a reason. Otherwise, SIGKILL would seem to come from the kernel.
#
# *Limits.* The agent looks when a task of the slave may be over its limit of time, and measures the memory of a slave
# whose tasks have such a limit.
#
# *Cancelled task.* A slave that runs a cancelled task gets some time to finish it (see `traffic`). Then the agent looks
# which task the slave runs.
#
# *End of the process.* Batch systems end a job by killing its processes in any order. The agent waits `KILLED_TOO_S`
# before it reports a slave that SIGKILL has ended. If the agent is killed before that, the task of this slave is not
# charged with a death. The agent does not wait after it has killed the slave itself.
#
# *Trust.* A slave runs the user's code, which may write into any memory and any file descriptor of its process. So the
# agent does not rely on the numbers in the memory that both share, or on the messages of the slave. A slave that shows
# nonsense is killed and replaced, and its end has the reason. From then on, nothing of it counts.
#
# *Wear* is found out by the slave itself: it may run a limited number of tasks, and have a limited amount of memory
# between two tasks. It sends its results and the reason (`SlaveWorn`), and ends. The tasks that it has not started go
# back to the master, as those of any slave that ends.


LOOK_S = 0.05
"""The agent looks at a slave at most this often, in seconds. So a task may run for this time beyond its limit."""

MEASURE_S = 0.5
"""Seconds between two measurements of the memory of a slave."""

NEARLY = 0.9
"""The part of its job's memory that the slaves may use. The job has other processes, and may grow between two
measurements."""

STOPS_KEPT = 100
"""How many stops of this agent are remembered."""

SILENT_S = 0.04
"""The journal of a busy slave is read after this many seconds of silence. A slave
sends its results itself before that, unless a task takes long."""

EXIT_S = 5.0
"""Seconds that a slave gets between the end of its stream and its exit, for its tear-down in Python."""

STILL_THERE = (
    f"because it was still there {EXIT_S:g} s after its connection to the agent had ended: its tear-down takes long, "
    f"or a task closed the connection"
)
"""Why a slave is killed that does not end."""

KILLED_TOO_S = 0.25
"""Seconds between a slave's end by SIGKILL and its report: the agent itself may be killed next."""


@define(eq=False, repr=False)
class Watch:
    """Looks at slaves, and kills them."""

    _state: AgentState
    ends_silence: bool = True
    """Whether the agent looks at silent slaves; False if the master fixes the size of groups of results."""
    _stops: deque[tuple[float, float]] = Factory(lambda: deque(maxlen=STOPS_KEPT))
    """When this agent resumed after a stop, and for how many seconds it was stopped. Its slaves are stopped with it."""
    _is_short: bool = False
    """Whether the job seems to be short of memory, so that all slaves are measured exactly."""

    def active(self, child: Child, now: float) -> None:
        """A slave sent results, or got tasks while it had none: its silence begins now."""
        child.dues.pop(Due.SILENCE, None)
        if self.ends_silence and child.held:
            child.dues[Due.SILENCE] = now + SILENT_S

    def stream_ended(self, child: Child, now: float) -> None:
        """The slave closed its stream. If it is to be killed anyway, that is not put off."""
        child.due(Due.KILL, now + EXIT_S)

    def exit_seen(self, child: Child, by_sigkill: bool, leaving: bool, now: float) -> None:
        """The process of a slave ended."""
        child.ended = True
        unexpected = by_sigkill and not leaving and child.state is not ChildState.KILLED
        child.dues = {Due.COLLECT: now + KILLED_TOO_S if unexpected else now}

    def measure(self, child: Child) -> None:
        """Let the memory of a slave be measured, if a task that it holds has a limit."""
        limits = [limit for limit in child.memory_limits if limit is not None]
        if limits:
            self._state.actions.measure.append((child.number, 0 if child.exactly else min(limits)))

    def does_not_end(self, child: Child) -> None:
        """Kill a slave that is still there although it should have ended."""
        if not child.killed_because:
            child.kill(STILL_THERE, Cause.START_UP if child.state is ChildState.STARTING else child.loss)
        self._state.actions.kill.append(child.number)

    # ---- trust ----------------------------------------------------------------------------------------------

    def believes(self, child: Child, started: int) -> bool:
        """Whether a slave may have started the task at this position last. If not, the slave is killed."""
        if child.believes(started):
            return True
        self.condemn(child, OVERWROTE, f"it says that it runs task {started} of {child.passed_on}")
        return False

    def last_started(self, child: Child, started: int) -> int:
        """Position of the task that an ended slave started last. If it says nonsense, each task may have run."""
        if child.killed_at is not None:
            return child.killed_at
        return started if self.believes(child, started) else child.passed_on + 1

    def condemn(self, child: Child, fault: str, details: str) -> None:
        """A slave shows nonsense: `UNREADABLE` or `OVERWROTE`."""
        if child.condemned or child.killed_because:
            return
        child.condemned = f"{fault}: {details}"
        end = "has ended" if child.ended else "is killed"
        self._state.record(records.Notice(f"slave {child.number} {end}: {child.condemned}"))
        if not child.ended:
            child.kill(f"because {child.condemned}", Cause.CRASH)
            self._state.actions.kill.append(child.number)

    # ---- limits of time and memory --------------------------------------------------------------------------

    def resumed(self, stopped_s: float, now: float) -> None:
        """This agent was stopped: the time of a stop is not counted."""
        self._stops.append((now, stopped_s))

    def passed_on(self, child: Child, limits: Iterable[Limits | None], now: float) -> None:
        """Tasks with some limits were passed on to a slave."""
        times = _times(limits)
        if times:
            child.due(Due.TIME, now + max(LOOK_S, min(times)))
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
                self.condemn(child, OVERWROTE, "it says that its task began at an impossible time")
                return
            over_at = began + most + self._stopped_since(began)
            if now >= over_at:
                why = f"because it ran {{}} for more than {most:g} s, its seconds_max"
                self._doom(child, f"{why}: raise this limit, or give such tasks less to do", Cause.TIME_LIMIT)
            else:
                due = min(due, over_at)
        child.due(Due.TIME, max(due, now + LOOK_S))

    def _stopped_since(self, began: float) -> float:
        """For how many seconds this agent was stopped since a task began. It may have begun during a stop, if only the
        agent was stopped."""
        return sum(min(stopped_s, resumed_at - began) for resumed_at, stopped_s in self._stops if resumed_at > began)

    def measured(self, child: Child, used: int, kills: int, now: float) -> None:
        """The memory was measured that a slave and its descendants use, and the `kills` of the kernel were counted."""
        if child.ended:
            return
        if child.sets_up is not None:
            self._measured_set_up(child, used, kills, now)
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

    def _measured_set_up(self, child: Child, used: int, kills: int, now: float) -> None:
        """A set-up has no tasks, so its limit is that of its process and all that this process starts."""
        most = child.sets_up.memory_max if child.sets_up is not None else None
        self._limit_memory(child, now + MEASURE_S)
        if most is None or child.killed_because or not (used > most or kills > child.kills):
            return
        why = f"because its processes used {amount(used)} of memory, and its memory_max is {amount(most)}: raise it"
        child.kill(why, Cause.SET_UP)
        self._state.actions.kill.append(child.number)

    def about_limit(self, child: Child, started: int) -> str:
        """The limit of memory of the task at a position, or of a set-up, as the end of a sentence; empty if there is
        none."""
        span = child.span_at(started)
        most = None if span is None or span.limits is None else span.limits.memory
        if child.sets_up is not None:
            most = child.sets_up.memory_max
        limit = "" if most is None else f"; its memory_max is {amount(most)}: {_REMEDY}"
        return f"{limit}{self._about_offer()}"

    def _about_offer(self) -> str:
        """That the memory of this agent is what its user has stated, as the end of a sentence; empty if it is not."""
        offers = self._state.settings.hello.offers
        if MEMORY not in offers.stated:
            return ""
        return f"; --mw-offers says that this agent has {amount(offers.amounts[MEMORY])}: correct it if this is wrong"

    def _relieve(self, now: float) -> None:
        """If the slaves use nearly all memory of their job, kill the one that is furthest beyond what it may use."""
        has = self._state.settings.memory_bytes
        if has is not None:
            has = max(1, has - self._state.template_bytes)
        children = self._state.children.values()
        users = [child for child in children if any(child.memory_limits) and child.sets_up is None]
        used = sum(child.used for child in users)
        if has is None or used <= NEARLY * has:
            self._is_short = False
        elif not self._is_short:
            self._is_short = True
            for child in users:
                child.exactly, child.dues[Due.MEMORY] = True, now
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
        if bounds:
            child.dues.setdefault(Due.MEMORY, measure_at)
        largest = max(bounds) if bounds and len(bounds) == len(limits) else None
        if largest != child.memory_limit:
            child.memory_limit = largest
            self._state.actions.limit_memory.append((child.number, largest))

    def _doom(self, child: Child, because: str, cause: Cause, allowed: int = 0) -> None:
        task, attempt = child.running(child.started)
        if cause is Cause.OUT_OF_MEMORY:
            because += self._about_offer()
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
