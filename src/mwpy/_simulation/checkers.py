"""Checks a simulated computation from outside: these facts must be true after every kind of fault.

The checker knows what was submitted and with which policy. It sees what each slave starts, which deaths are reported to
the master, what the master records, and what the master gives to the algorithm. It does not read the state of a core:
which slave has which task, it knows from a state that is built from the records alone (`Replay`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import inf
from typing import Any

from attrs import Factory, define, frozen
from msgspec import Struct

from mwpy._core.master.members import ConnectedAgent, Members
from mwpy._core.master.state import CancelTasks, Running, Stopped
from mwpy._simulation.lives import Replay
from mwpy._transport.channel import AGAIN, FAILED, VALUE
from mwpy._transport.codec import loads_state
from mwpy._values import groups, messages, records
from mwpy._values.bounds import Buffer, SlaveId
from mwpy._values.causes import Cause
from mwpy._values.errors import DependencyFailed, TaskCancelled
from mwpy._values.policy import MaxFailures, TaskPolicy
from mwpy._values.records import AlgorithmDefined, TaskRange
from mwpy._values.task import Result, UnrunnableTask


class SubmittedTask(Struct, frozen=True):
    """What is known of a task when it is submitted."""

    policy: TaskPolicy
    kills: str
    """What it kills in each run: its slave ("slave"), its agent ("agent") or nothing ("")."""
    errors: int
    """How many of its first attempts end with an exception; all if it is not tried again."""
    algorithm: AlgorithmDefined
    edits: int
    """How often a module of the algorithm had been edited before."""
    shares: Sequence[str]
    """The digests of the shared objects that it needs."""
    tag: object


@frozen(eq=False)
class Run:
    """A run of a task in a slave."""

    task: int
    attempt: int
    peer: bytes
    """The first connection of its agent to this life of the master."""
    slave: int
    in_portion: bool
    began: float
    seconds: float
    """How long it takes."""
    grown_at: float
    """When it begins to use much memory."""

    @property
    def ends_at(self) -> float:
        """When it ends by itself."""
        return self.began + self.seconds

    def over_from(self, policy: TaskPolicy) -> float:
        """When it exceeds one of its limits; infinity if it never does."""
        late = inf if policy.seconds_max is None else self.began + policy.seconds_max
        return late if policy.memory_max is None or policy.memory_max >= LARGE_BYTES else min(late, self.grown_at)


# Checks from outside that a death charges no task but the one that ran, and is due to a limit only if the task was over
# it.


Attempt = tuple[bytes, int, int, int]
"""The connection of an agent, its slave, a task and an attempt."""


@define(eq=False, repr=False)
class EndChecker:
    """Knows what slaves ran when they ended. A slave is named by the connection of its agent, and its number."""

    late: dict[Attempt, None] = Factory(dict)
    """The attempts that agents gave back because their results waited behind a long task."""
    ran: dict[tuple[bytes, int], Sequence[int]] = Factory(dict)
    """The tasks that slaves ran when they ended, or were about to start; of slaves that damaged nothing they share."""

    killed: dict[tuple[bytes, int], int] = Factory(dict)
    """Slaves that were killed when they ran a task that was over a limit, and this task."""
    too_large: dict[tuple[bytes, int, int], None] = Factory(dict)
    """Slaves that alone used more memory than their jobs have, and the tasks that they ran. If the agent is evicted
    then, the task is charged."""

    def sends(self, agent: bytes, message: messages.Message) -> None:
        """An agent sends a message, perhaps again on a new connection."""
        if isinstance(message, messages.Revoked) and message.late:
            self.late.update(((agent, message.slave, *task), None) for task in groups.each_task(message))

    def died(self, agent: bytes, message: messages.SlaveDied, *, leaves: bool) -> None:
        """The master hears of the end of a slave; `leaves`: whether its agent has announced that it leaves."""
        task, slave = message.running, (agent, message.slave)
        ran = self.ran.get(slave, (task,))
        assert task in (0, *ran), f"task {task} is said to have run at a death, not {ran}"
        if task and message.cause in (Cause.TIME_LIMIT, Cause.OUT_OF_MEMORY):
            is_evicted = leaves and (*slave, task) in self.too_large and message.cause is Cause.OUT_OF_MEMORY
            over = self.killed.get(slave)
            assert over == task or is_evicted, f"task {task} is said to be over its limit, not task {over}"


# Checks from outside which agents get work: none of an excluded host, and none that has too little time left.


ROUNDING_S = 1e-6
"""Tolerance for rounding, in seconds."""


@define(eq=False, repr=False)
class MemberChecker:
    """Checks which agents of one computation get work."""

    tasks: Mapping[int, SubmittedTask]
    members: Members
    """The agents and slaves, as the records say that were stated before."""
    unable: dict[str, None] = Factory(dict)
    """Machines that may be unable to run an algorithm. On all others, only some slaves fail."""
    times: int = 0
    """How often a host was excluded."""
    _ends: dict[str, float | None] = Factory(dict)
    """Until when tasks may run at each agent, as the master knows it."""
    _goes_on: dict[int, None] = Factory(dict)
    """The algorithms, by number, whose tasks have left states. Their tasks may be sent to any agent."""

    def recorded(self, record: records.Record, now: float) -> None:
        """The master states a fact."""
        agents, excluded = self.members.agents, self.members.excluded
        match record:
            case records.AgentConnected(agent, _, host):
                assert host not in excluded, f"{agent} joins, but {host} is excluded"
                self._ends[agent] = None if record.seconds_left is None else now + record.seconds_left
            case records.AlgorithmRefused(agent, algorithm, sid=None):
                may_fail = agents[agent].host in self.unable
                assert may_fail, f"{agent} gets no more tasks of {algorithm}, but a new slave can run it"
            case records.TaskCheckpointed():
                self._goes_on[record.task.algorithm] = None
            case records.TasksAllocated(sid, tasks):
                at = self.members.slaves[sid].agent
                assert at.host not in excluded, f"{sid} is sent tasks, but {at.host} is excluded"
                self._check_time(at.name, tasks, now)
            case records.HostExcluded(host):
                assert host not in excluded, f"{host} is excluded twice"
                self.times += 1
                hosts = {host, *excluded, *(agent.host for agent in agents.values())}
                is_few = 2 * (len(excluded) + 1) <= len(hosts)
                assert is_few, f"too many of {hosts} are excluded: {[*excluded, host]}"

    def _check_time(self, agent: str, tasks: Sequence[TaskRange], now: float) -> None:
        """Check that an agent has enough time left for tasks that are sent to it."""
        end = self._ends[agent]
        for task in _each([each for each in tasks if each.algorithm not in self._goes_on]):
            expected_s = self.tasks[task].policy.seconds_expected
            if expected_s is not None and end is not None:
                left_s = end - now
                assert expected_s <= left_s + ROUNDING_S, f"task {task} takes {expected_s} s, {agent} has {left_s} s"


# Checks from outside that a task is at one slave, and who answers it.


LOST_AGENTS_ALLOWED = 3
"""A task that was at this many agents when they vanished must run alone on an agent."""

LOST_ALONE_ALLOWED = 10
"""It is given up when it ran alone on one more agent that vanished, or on so many more that had finished no task."""


@define(eq=False, repr=False)
class AttemptChecker:
    """Checks the attempts of tasks, by the records of a master."""

    tasks: Mapping[int, SubmittedTask]
    members: Members
    """The agents and slaves with their tasks, as the records say that were stated before."""
    unaddressed: dict[int, None] = Factory(dict)
    """Tasks that were addressed to a slave, until the master removed this address."""
    answered: dict[int, int] = Factory(dict)
    """The attempt of each task whose result counts."""
    repeated: dict[int, dict[SlaveId, int]] = Factory(dict)
    """The tasks that were given to others while slaves may have run them, and the attempts of these slaves."""
    lost: dict[int, int] = Factory(dict)
    """How many agents vanished without notice while each task was at them, as far as the master knows."""
    was_alone: dict[int, bool] = Factory(dict)
    """Whether each of these tasks was alone at the last agent that vanished with it."""
    _straggling: dict[int, str] = Factory(dict)
    """The stragglers that were taken from a slave and not sent to another one yet, and the agent of that slave."""
    _last: dict[int, int] = Factory(dict)
    """The last attempt of each task."""

    def holds(self, sid: SlaveId, task: int, attempt: int) -> bool:
        """Whether a slave has an attempt of a task, as far as the master knows."""
        return (task, attempt) in self._at(sid)

    def was_taken(self, sid: SlaveId | None, task: int) -> bool:
        """Whether a task was taken from a slave that may still run it, and did not return there."""
        return sid is not None and sid in self.repeated.get(task, ()) and task not in dict(self._at(sid))

    def is_suspect(self, task: int) -> bool:
        """Whether a task must run alone."""
        return self.lost.get(task, 0) >= LOST_AGENTS_ALLOWED

    def _at(self, *sids: SlaveId) -> list[tuple[int, int]]:
        """The tasks and attempts that slaves have."""
        spans = chain.from_iterable(self.members.held[sid].spans for sid in sids if sid in self.members.held)
        return [(task, span.attempt) for span in spans for task in span.ids]

    def _at_agent(self, agent: ConnectedAgent) -> list[int]:
        """The tasks that an agent has."""
        return [task for task, _ in self._at(*(slave.sid for slave in agent.slaves.values()))]

    def recorded(self, record: records.Record, now: float) -> None:
        """The master states a fact."""
        match record:
            case records.TasksUnaddressed(sid, tasks):
                for task in _each(tasks):
                    policy = self.tasks[task].policy
                    assert policy.sid == sid and policy.do_it_anyway, f"{task} must only run on {policy.sid}"
                    self.unaddressed[task] = None
            case records.AgentLost(agent, cause=Cause.AGENT_LOST):
                self._agent_vanished(self.members.agents[agent])
            case records.TasksAllocated(sid, tasks):
                self._sent(self.members.slaves[sid].agent, tasks)
            case records.TasksReclaimed(sid, tasks, attempt):
                for task in _each(tasks):
                    before = self.repeated[task].pop(sid, 0)
                    assert before == attempt, f"{sid} never had attempt {attempt} of task {task}"
            case records.TasksReturned(sid, tasks, reason):
                self._give_away(sid, tasks, reason)
            case records.ResultsReceived(_, results):
                self.answered.update(groups.each_task(results))

    def _sent(self, agent: ConnectedAgent, tasks: Sequence[TaskRange]) -> None:
        """Tasks are sent to an agent. A task that must run alone must be the only one there."""
        for task, attempt in _each_number(tasks):
            was_here = self._straggling.pop(task, "") == agent.name
            assert not was_here, f"two attempts of task {task} are at one agent: {agent.name}"
            assert attempt > self._last.get(task, 0), f"task {task} is sent in attempt {attempt} again"
            self._last[task] = attempt
        here = [*self._at_agent(agent), *_each(tasks)]
        suspects = [task for task in here if self.is_suspect(task)]
        assert not suspects or len(here) == 1, f"{suspects} must be alone, but {agent.name} has {here}"

    def _agent_vanished(self, agent: ConnectedAgent) -> None:
        """An agent is lost. Its tasks are suspects, unless it has announced that it leaves."""
        here = self._at_agent(agent)
        for task in () if agent.leaving else here:
            self.lost[task] = self.lost.get(task, 0) + 1
            self.was_alone[task] = len(here) == 1
            most = LOST_AGENTS_ALLOWED + LOST_ALONE_ALLOWED + 1
            assert self.lost[task] <= most, f"task {task} was lost with {self.lost[task]} agents"

    def _give_away(self, sid: SlaveId, tasks: Sequence[TaskRange], reason: str) -> None:
        """If a slave may still run tasks, they are given to another one: only those that may run twice."""
        straggles = reason.startswith("it has run for")
        if not straggles and not reason.endswith("is away"):
            return
        agent = self.members.slaves[sid].agent
        for task, attempt in _each_number(tasks):
            policy = self.tasks[task].policy
            assert policy.speculate or agent.is_away, f"task {task} is given away, and nobody wanted that"
            assert policy.retry, f"task {task} may only run once"
            is_for_any = policy.sid is None or task in self.unaddressed
            assert is_for_any, f"task {task} is for {policy.sid}, and is given away"
            self.repeated.setdefault(task, {})[sid] = attempt
            if straggles:
                self._straggling[task] = agent.name


def _each(tasks: Sequence[TaskRange]) -> Iterator[int]:
    """The ids of all tasks."""
    for span in tasks:
        yield from range(span.first, span.first + span.count)


def _each_number(tasks: Sequence[TaskRange]) -> Iterator[tuple[int, int]]:
    """The ids and attempts of all tasks."""
    for span in tasks:
        for task in range(span.first, span.first + span.count):
            yield task, span.attempt


# Checks from outside what tasks get whose arguments refer to results of other tasks, and which of them run.


@define(eq=False, repr=False)
class ReferenceChecker:
    """Follows values from the tasks that gave them to those that refer to them."""

    refers: dict[int, Sequence[int]] = Factory(dict)
    """The tasks that refer to others, and these others."""
    values: dict[int, object] = Factory(dict)
    """The values that the algorithm got."""
    causes: dict[int, int] = Factory(dict)
    """For each task that failed because of another one: the id of that task."""
    _seen: dict[int, dict[int, object]] = Factory(dict)
    """The values that each task got."""

    def saw(self, task: int, values: dict[int, object]) -> None:
        """A slave begins a task with these values. All attempts must get the same."""
        assert self._seen.setdefault(task, values) == values, f"task {task} gets {values}, not {self._seen[task]}"

    def finished(self, result: Result[Any]) -> None:
        """The algorithm gets a result."""
        if result.ok:
            self.values[result.task_id] = result.value
        if isinstance(result.error, DependencyFailed):
            self.causes[result.task_id] = result.error.dependency

    def check_end(self, runs: Mapping[int, int]) -> None:
        """All tasks have ended.

        Args:
            runs: how often each task was started.
        """
        for task, numbers in self.refers.items():
            without = [number for number in numbers if number not in self.values]
            assert not (runs.get(task) and without), f"task {task} has run, but {without} have no values"
            assert task not in self.causes or without, f"task {task} has failed, but {numbers} have values"
            if task in self._seen:
                expected = {number: self.values[number] for number in numbers}
                assert self._seen.get(task) == expected, f"task {task} got {self._seen.get(task)}, not {expected}"
        for task, cause in self.causes.items():
            assert cause not in self.values, f"task {task} failed because of task {cause}, which has a value"
            assert cause not in self.causes, f"task {task} names task {cause}, which is not the first cause"


# Checks from outside which tasks are tried again after exceptions, and how long they pause before.


@define(eq=False, repr=False)
class RetryChecker:
    """Checks the attempts of tasks."""

    attempts: AttemptChecker
    """Knows each task, and which attempt has answered."""
    charged: dict[int, int]
    """How many attempts of each task were lost by its own fault, as far as the master knows."""
    cancelled: dict[int, None]
    """Tasks that must not be sent to a slave again."""
    spoilt: dict[tuple[int, int], None] = Factory(dict)
    """Tasks and their attempts that raise an exception, because they run on a bad host."""
    _due_at: dict[int, float] = Factory(dict)
    """When the last pause of each task ends."""

    def end_of(self, task: int, attempt: int) -> int:
        """How an attempt of a task ends that kills nothing: with a value, a failure, or a reason to try again."""
        fails = (task, attempt) in self.spoilt
        if not self.attempts.tasks[task].policy.retries_errors:
            return FAILED if fails or self.attempts.tasks[task].errors else VALUE
        return AGAIN if fails or attempt <= self.attempts.tasks[task].errors else VALUE

    def recorded(self, record: records.Record, now: float) -> None:
        """The master states a fact. Tasks that come back and are charged pause."""
        match record:
            case records.TasksAllocated(_, tasks):
                for task in _each(tasks):
                    assert task not in self.cancelled, f"task {task} is sent again although it is cancelled"
                    assert now >= self._due_at.get(task, 0.0), f"task {task} is sent again before its pause ends"
            case records.TasksReturned(_, tasks, _, charges, pause_s):
                has_raised = any(charge.cause is Cause.ERROR for charge in charges)
                is_charged = any(charge.is_charged for charge in charges)
                for task, attempt in _each_number(tasks):
                    if has_raised:
                        self._raised(task, attempt)
                    doubled = 2 ** (self.charged[task] - 1) if is_charged else 0
                    wanted_s = self.attempts.tasks[task].policy.after * doubled
                    assert pause_s == wanted_s, f"task {task} pauses for {pause_s} s, not {wanted_s} s"
                    self._due_at[task] = now + pause_s

    def _raised(self, task: int, attempt: int) -> None:
        assert self.end_of(task, attempt) == AGAIN, f"task {task} raised nothing in attempt {attempt}"
        assert task not in self.cancelled, f"task {task} is tried again although it is cancelled"
        self.charged[task] = self.charged.get(task, 0) + 1

    def finished(self, result: Result[Any]) -> None:
        """The algorithm gets a result of a task that was not cancelled."""
        task = result.task_id
        if result.sid is None:
            return  # it failed at its submission
        end = self.end_of(task, self.attempts.answered[task])
        assert result.ok == (end == VALUE), f"task {task} has the result of another attempt"
        used_up = self.charged.get(task, 0) + 1 >= self.attempts.tasks[task].policy.attempts_max
        assert end != AGAIN or used_up or task in self.cancelled, f"task {task} was not tried again"


# Tasks of a simulated computation leave states, and report. This checks from outside which state each attempt begins
# with.


Progress = tuple[int, int, int]
"""A state: the task and the attempt that left it, and how far the task is."""


@define(eq=False, repr=False)
class StateChecker:
    """Follows the states from their slaves to the next attempts."""

    cancelled: dict[int, None]
    """Tasks that must not be sent to a slave again. Nobody needs their states."""
    unheard: dict[bytes, None]
    """Connections that broke, or that the master does not listen to any more."""
    _arrived: dict[int, Progress] = Factory(dict)
    """The newest state of each task that reached the master while the slave that left it had the task."""
    _newest: dict[tuple[int, int], Progress] = Factory(dict)
    """The newest state of each task and attempt that reached the master."""
    _expected: dict[tuple[int, int], Progress | None] = Factory(dict)
    """For each task and attempt: the state with which the attempt must begin."""
    left: dict[tuple[bytes, int], Progress] = Factory(dict)
    """The newest state that each slave left, by connection and number. It is forgotten when the slave begins another
    attempt, or has written nonsense into its stream, so that states are lost."""

    def heard(self, peer: bytes, message: messages.Checkpoint, frames: Sequence[Buffer], *, counts: bool) -> None:
        """A state reaches the master. It counts unless its task was taken from its slave."""
        if peer in self.unheard:
            return
        state = read_state(frames)
        task, attempt, number = state
        assert (task, attempt) == (message.task, message.attempt), f"the state {state} is said to be of another task"
        assert (task, attempt) in self._expected, f"{state} is of an attempt that this master never sent"
        before = self._newest.get((task, attempt)) or self._expected[task, attempt] or (task, 0, 0)
        assert number > before[2], f"task {task} went back from {before} to {state}"
        self._newest[task, attempt] = state
        if counts:
            self._arrived[task] = state

    def died(self, peer: bytes, message: messages.SlaveDied) -> None:
        """The death of a slave reaches the master: the newest state of the task that it ran arrived before."""
        state = self.left.get((peer, message.slave))
        if state is None:
            return
        if message.running == state[0] and state[0] not in self.cancelled:
            arrived = self._newest.get(state[:2])
            assert arrived == state, f"the state {state} is lost: its slave is dead, and {arrived} has arrived"

    def recorded(self, record: records.Record, now: float) -> None:
        """The master states a fact."""
        if isinstance(record, records.TasksAllocated):
            for task, attempt in _each_number(record.tasks):
                self._expected[task, attempt] = self._arrived.get(task)

    def began(self, task: int, attempt: int, state: Progress | None) -> None:
        """A slave begins an attempt with a state, or with none."""
        expected = self._expected[task, attempt]
        assert state == expected, f"attempt {attempt} of task {task} begins with {state}, not with {expected}"


def read_state(frames: Sequence[Buffer]) -> Progress:
    """The state in a message or a record."""
    state: Any = loads_state(frames)
    task, attempt, number = state
    return task, attempt, number


# Checks from outside that a run with too many failures stops, and goes on when the algorithm knows of it.


@define(eq=False, repr=False)
class StopChecker:
    """Checks the stops of one computation. Each method raises an `AssertionError` that says what is wrong."""

    failures: int = 0
    """How many failures the algorithm got since the run went on after the last stop."""
    stopped: int = 0
    """How many stops the algorithm does not know to be over. If there is one, the master may cancel all tasks."""
    _sends_nothing: bool = False
    """Whether it may send no task, because the algorithm does not know of the stop yet."""
    _submitted: int = 0
    """The last task that was submitted before the algorithm knew of the stop."""

    def recorded(self, record: records.Record, now: float) -> None:
        """The master states a fact."""
        match record:
            case records.Notice(text) if text.startswith("the run is stopped"):
                self.stopped += 1
                self._sends_nothing = True
            case records.TasksAllocated(sid):
                assert not self._sends_nothing, f"{sid} is sent tasks although the run is stopped"

    def learned(self, stopped: Stopped, limit: MaxFailures) -> None:
        """The algorithm learns that the run is stopped, and has all results that came before."""
        assert self.stopped, "a stop was not recorded"
        assert limit.is_reached(stopped.failed, stopped.ended), f"{stopped.failed} failures are not too many"
        assert stopped.failed <= self.failures, f"there were {self.failures} failures, not {stopped.failed}"

    def lets_go_on(self, submitted: int) -> None:
        """The algorithm lets the run go on. It has submitted tasks up to this number."""
        self._sends_nothing, self._submitted = False, submitted

    def went_on(self, not_run: Sequence[int], ended: Mapping[int, str]) -> None:
        """The algorithm learns which tasks did not run. All tasks that it submitted before have ended."""
        self.stopped, self.failures = self.stopped - 1, 0
        assert all(task in ended for task in range(1, self._submitted + 1)), "a task goes on after a stop"
        wrong = [task for task in not_run if ended[task] not in ("cancelled", "discarded")]
        assert not wrong, f"tasks {wrong} are reported as not run, and they ran"


# Checks from outside what is computed again after the master crashed.


Identity = tuple[str, str, int]
"""The name and the code of an algorithm, and the number of a call."""

Occurrence = tuple[Identity, int]
"""A call, and its position among the equal calls of a life."""


class _Answer(Struct, frozen=True):
    """What the algorithm got."""

    ok: bool
    value: object


@define(eq=False, repr=False)
class LifeChecker:
    """Checks one life against those before."""

    earlier: dict[Occurrence, _Answer] = Factory(dict)
    """What the algorithm got in the lives before."""
    got: dict[Occurrence, _Answer] = Factory(dict)
    """What it got in this life."""
    numbers: dict[int, int] = Factory(dict)
    """The number of the call of each task. All other tasks have their ids as numbers."""
    reused: dict[int, None] = Factory(dict)
    """The tasks that were answered from the run database."""
    occurrences: dict[int, Occurrence] = Factory(dict)
    life: int = 1
    """The number of this life."""
    ran: dict[Occurrence, int] = Factory(dict)
    """The calls that must not run twice and were started, in any life, and that life."""
    used_up: dict[Occurrence, None] = Factory(dict)
    """The calls whose attempts were used up, in any life. The master may have been killed before it stored this."""
    spent: dict[Occurrence, int] = Factory(dict)
    """Those of them that the algorithm got back, and in which life. No later life may run them."""
    _once: dict[int, None] = Factory(dict)
    """Tasks that must not run twice."""
    _made: Counter[Identity] = Factory(Counter)

    def next(self) -> LifeChecker:
        """Make the checker of the next life."""
        earlier = self.earlier | self.got
        return LifeChecker(earlier, life=self.life + 1, ran=self.ran, used_up=self.used_up, spent=self.spent)

    def number(self, task: int) -> int:
        """The value of a task."""
        return self.numbers.get(task, task)

    def submitted(self, task: int, policy: TaskPolicy, algorithm: records.AlgorithmDefined) -> None:
        """A task is submitted, after all tasks with lower ids."""
        if task in self.numbers and algorithm.code:
            identity = algorithm.definition.name, algorithm.code, self.numbers[task]
            self.occurrences[task] = identity, self._made[identity]
            self._made[identity] += 1
            if not policy.retry:
                self._once[task] = None

    def recorded(self, record: records.Record, now: float) -> None:
        """The master states a fact."""
        match record:
            case records.ResultsReused(tasks):
                for each in tasks:
                    self.reused.update(dict.fromkeys(range(each.first, each.first + each.count)))
            case records.TasksAnswered(tasks=answered):
                self.reused.update(dict.fromkeys(_each(answered)))
            case records.TasksGivenUp(tasks=ranges, used_up=True):
                known = (self.occurrences[task] for task in _each(ranges) if task in self.occurrences)
                self.used_up.update(dict.fromkeys(known))

    def started(self, task: int) -> None:
        """A slave starts a task."""
        if task in self._once:
            before = self.ran.setdefault(self.occurrences[task], self.life)
            assert before == self.life, f"task {task} ran in life {before}, and again in life {self.life}"
        occurrence = self.occurrences.get(task)
        spent = occurrence is not None and self.spent.get(occurrence, self.life) < self.life
        assert not spent, f"task {task} runs, but its attempts were used up in an earlier life"
        answered = occurrence in self.earlier
        assert not answered, f"task {task} runs, but the algorithm got its result in an earlier life"

    def given_up(self, task: UnrunnableTask) -> None:
        """The algorithm gets a task back."""
        occurrence = self.occurrences.get(task.task_id)
        if occurrence in self.used_up and occurrence not in self.earlier:
            self.spent[occurrence] = self.life

    def finished(self, result: Result[Any]) -> None:
        """The algorithm gets a result."""
        task = result.task_id
        occurrence = self.occurrences.get(task)
        at_once = result.sid is None or isinstance(result.error, TaskCancelled | DependencyFailed)
        if occurrence is None or at_once:
            assert task not in self.reused, f"task {task} was answered from the run database with {result}"
            return
        answer = self.got[occurrence] = _Answer(result.ok, result.value if result.ok else None)
        before = self.earlier.get(occurrence)
        if before is not None:
            assert task in self.reused, f"task {task} was computed again"
            assert answer == before, f"task {task} had the result {before} in an earlier life, and has {answer}"


KILLED_WITHIN_S = 1.0
"""Seconds in which an agent that is not frozen ends a task that must be killed."""


LARGE_BYTES = 1000
"""What a task uses that needs much memory."""


def is_cancelled(result: Result[Any]) -> bool:
    """Whether a task was cancelled."""
    return isinstance(result.error, TaskCancelled)


class SimulationFailure(AssertionError):
    """A checker found a fault.

    Args:
        seed: the seed of the history.
        transcript: the last lines of what happened.
        reason: the fault.
    """

    def __init__(self, seed: int, transcript: Sequence[str], reason: str) -> None:
        super().__init__(f"seed {seed}: {reason}")
        self.seed = seed
        self.transcript = transcript


class HistoryChecker:
    """Checks one simulated computation. Each method raises an `AssertionError` that says what is wrong."""

    def __init__(self, lives: LifeChecker) -> None:
        self.ended: dict[int, str] = {}
        """How each task ended: `result`, `unrunnable`, `cancelled` or `discarded`."""
        self.runs: dict[int, int] = {}
        """How often each task was started."""
        self.deaths: dict[int, int] = {}
        """How many attempts of each task were lost by its own fault. Only those that the master knows of count."""
        self.unheard: dict[bytes, None] = {}
        """Connections that broke, or that the master does not listen to any more."""
        self.killed_tasks: dict[int, float] = {}
        """Tasks that must be killed if they run, and when the master decided this or the algorithm learned it. Nobody
        waits for their results."""
        self.unfetched_bytes = 0
        """How many bytes of results the algorithm got and did not fetch."""
        self.most_waiting = 0
        """How many of them may wait when a task is sent."""
        self.set_up = ""
        """The name of the set-up after which slaves may run tasks; empty for none."""
        self.edits = 0
        """How often a module of the algorithm was edited. No slave that has started may run a later task."""
        self.lives = lives
        """Checks what is computed again after the master crashed."""
        self.replay = Replay()
        """Rebuilds the state of the master from its records."""
        self.stops = StopChecker()
        """Checks the stops because of failures."""
        self.ends = EndChecker()
        self.tasks: dict[int, SubmittedTask] = {}
        self._last: dict[SlaveId, int] = {}
        """For each slave: the newest started task that is addressed to it."""
        self.sids: dict[tuple[bytes, int], SlaveId] = {}
        """The ids of slaves, by the connections of their agents and their numbers."""
        self._dead: dict[tuple[bytes, int], None] = {}
        self._uncharged: dict[tuple[bytes, int], None] = {}
        """Slaves that have ended well, or were killed together with their agent, or because the task that they ran was
        cancelled."""
        self._leaving: dict[bytes, None] = {}
        """Connections of agents that have announced that they leave. No task is charged for what happens there."""
        self._cancelled: dict[int, None] = {}
        """Tasks that the algorithm has cancelled; they may have ended before."""
        self._last_attempts: dict[int, None] = {}
        """Tasks that must not be sent to a slave again, because the master has recorded that they are cancelled."""
        self._host_at: dict[bytes, str] = {}
        """The hosts of connections."""
        members = self.replay.rebuilt.members
        self.members, self.attempts = MemberChecker(self.tasks, members), AttemptChecker(self.tasks, members)
        self.retries = RetryChecker(self.attempts, self.deaths, self._last_attempts)
        self.states = StateChecker(self._last_attempts, self.unheard)
        self.references = ReferenceChecker()

    @property
    def unended(self) -> list[int]:
        """The tasks that have started, but have not ended."""
        return [task for task in self.runs if task not in self.ended]

    def submitted(
        self,
        task: int,
        policy: TaskPolicy,
        kills: str,
        errors: int,
        algorithm: AlgorithmDefined,
        shares: Sequence[str] = (),
        tag: object = None,
    ) -> object:
        """A task is submitted, after all tasks with lower numbers.

        Returns:
            Its tag, which is new if none is given.
        """
        tag = tag or object()
        self.tasks[task] = SubmittedTask(policy, kills, errors, algorithm, self.edits, shares, tag)
        self.lives.submitted(task, policy, algorithm)
        return tag

    def has(self, task: int, sid: SlaveId | None, edits: int, algorithm: tuple[str, bytes]) -> None:
        """A slave is about to start a task.

        Args:
            edits: how often a module had been edited when the slave process started.
            algorithm: what the slave has for the task's algorithm: the reference and the pickle.
        """
        submitted = self.tasks[task]
        assert edits >= submitted.edits, f"{sid} runs task {task} with a module from before an edit"
        is_same = algorithm == (submitted.algorithm.definition.reference, submitted.algorithm.packed)
        assert is_same, f"task {task} runs another function than it was submitted with"

    def recorded(self, record: records.Record, now: float) -> None:
        """The master states a fact."""
        parts = self.stops, self.members, self.attempts, self.retries, self.states, self.lives
        for part in parts:
            part.recorded(record, now)
        self.replay.recorded(record)
        ended: Iterable[int] = ()
        match record:
            case records.TasksAllocated(sid):
                waiting = self.unfetched_bytes
                assert waiting <= self.most_waiting, f"{sid} is sent tasks although {waiting} bytes of results wait"
            case records.ResultsReceived(_, results):
                ended = (task for task, _ in groups.each_task(results) if task in self.attempts.repeated)
            case records.TasksGivenUp(_, _, tasks):
                ended = (task for task in _each(tasks) if task in self.attempts.repeated)
            case records.TasksAnswered(_, tasks):
                ended = _each(tasks)
            case records.TasksCancelled(_, tasks):
                self._must_not_start(tasks)
                ended = _each(tasks)
            case records.TasksCancelling(_, tasks):
                self._must_not_start(tasks)
        self.killed_tasks.update(dict.fromkeys(ended, now))

    def _must_not_start(self, tasks: Sequence[records.TaskRange]) -> None:
        """Tasks must not be sent to a slave again."""
        for task in _each(tasks):
            assert task in self._cancelled or self.stops.stopped, f"task {task} is cancelled, and nobody wanted that"
            self._last_attempts[task] = None

    def blameless(self, peer: bytes, slave: int) -> None:
        """A slave of this connection ends as it was asked to, or a batch system kills it and then its agent."""
        self._uncharged[peer, slave] = None

    def heard(self, peer: bytes, message: messages.Message, frames: Sequence[Buffer]) -> None:
        """The master gets a message."""
        if isinstance(message, messages.Checkpoint):
            taken = self.attempts.was_taken(self.sids.get((peer, message.slave)), message.task)
            self.states.heard(peer, message, frames, counts=not taken)
        if isinstance(message, messages.Hello):
            self._host_at[peer] = message.host
        if isinstance(message, messages.Leaving):
            self._leaving[peer] = None
        if not isinstance(message, messages.SlaveDied) or peer in self.unheard or (peer, message.slave) in self._dead:
            return
        self._dead[peer, message.slave] = None
        self.states.died(peer, message)
        self.ends.died(peer, message, leaves=peer in self._leaving)
        leaves = peer in self._leaving or self._host_at.get(peer) in self.replay.rebuilt.members.excluded
        leaves = leaves and message.cause is not Cause.OUT_OF_MEMORY  # this may be why the agent leaves
        taken = self.attempts.was_taken(self.sids.get((peer, message.slave)), message.running)
        if message.running and message.cause.is_charged and not message.allowed and not leaves and not taken:
            # an agent that leaves because of the memory of a slave knew the cause before the slave was killed
            together = (peer, message.slave) in self._uncharged and message.cause is not Cause.OUT_OF_MEMORY
            assert not together, f"task {message.running} is charged for a slave that it did not kill"
            self.deaths[message.running] = self.deaths.get(message.running, 0) + 1

    def started(self, task: int, sid: SlaveId | None, peer: bytes, beside: Sequence[int]) -> None:
        """A slave starts a task, while the other slaves of its agent run the tasks `beside`.

        After its result has arrived at the master, a task starts only in another attempt that is about to be killed.
        """
        policy = self.tasks[task].policy
        self.lives.started(task)
        self.runs[task] = self.runs.get(task, 0) + 1
        assert policy.retry or self.runs[task] == 1, f"task {task} ran twice despite retry=False"
        if peer not in self.unheard:  # else the task may have been sent before the deaths were reported
            arrived = task in self.attempts.answered and task not in self.killed_tasks
            assert not arrived, f"task {task} starts again after its result has arrived"
            killed = self.deaths.get(task, 0)
            assert killed < policy.attempts_max, f"task {task} runs again after it killed {killed} slaves"
            others = [each for each in beside if each not in self.killed_tasks]  # these end soon
            suspects = [each for each in (task, *others) if others and self.attempts.is_suspect(each)]
            assert not suspects, f"{suspects} must run alone, but one agent runs {[task, *others]}"
        if policy.sid is None or task in self.attempts.unaddressed:
            return
        assert sid == policy.sid, f"task {task} is addressed to {policy.sid}, but {sid} starts it"
        last = self._last.get(policy.sid, 0)
        in_order = task > last or self.runs[task] > 1 or task in self.references.refers
        assert in_order, f"{sid} starts task {task} after the newer task {last}"
        self._last[policy.sid] = max(last, task)

    def finished(self, result: Result[Any]) -> None:
        """The algorithm gets a result, perhaps that of a cancelled task."""
        self.stops.failures += not (result.ok or is_cancelled(result) or isinstance(result.error, DependencyFailed))
        self.lives.finished(result)
        if result.ok:
            number = self.lives.number(result.task_id)
            assert result.value == number, f"task {result.task_id} has the value {result.value}, not {number}"
        if not is_cancelled(result):
            self.references.finished(result)
            if result.task_id not in self.lives.reused:
                self.retries.finished(result)
        self._end(result.task_id, "cancelled" if is_cancelled(result) else "result", result.tag)

    def given_up(self, task: UnrunnableTask) -> None:
        """The algorithm gets a task back."""
        number, policy = task.task_id, self.tasks[task.task_id].policy
        heard_of, lost = self.deaths.get(number, 0), self.attempts.lost.get(number, 0)
        causes = [death.cause for death in task.deaths]
        charged = sum(death.is_charged for death in task.deaths)
        assert charged == heard_of, f"task {number} is charged {charged} times, not {heard_of}"
        assert causes.count(Cause.AGENT_LOST) == lost, f"task {number} was lost with {lost} agents: {causes}"
        assert number not in self._last_attempts, f"task {number} is handed back although it is cancelled"
        assert heard_of <= policy.attempts_max, f"task {number} killed {heard_of} slaves"
        before = heard_of == 0 and self.lives.occurrences.get(number) in self.lives.used_up
        if policy.retry and policy.sid is None and heard_of < policy.attempts_max and not before:
            alone = self.attempts.was_alone.get(number, False)
            assert lost > LOST_AGENTS_ALLOWED and alone, f"task {number} is given up after {lost} lost agents"
        self.lives.given_up(task)
        self.stops.failures += 1
        self._end(number, "unrunnable", task.tag)

    def cancelled(self, tasks: Sequence[int]) -> None:
        """The algorithm cancels tasks."""
        self._cancelled.update(dict.fromkeys(tasks))

    def answered(self, command: CancelTasks, unended: Sequence[int], now: float) -> None:
        """The algorithm learns which of the tasks that it has cancelled had not ended, after it got all that ended."""
        for task in unended:
            if command.running is Running.DISCARD:
                self._end(task, "discarded", self.tasks[task].tag)
            if command.running is not Running.FINISH:
                self.killed_tasks[task] = now
                assert self.ended.get(task) in ("cancelled", "discarded"), f"task {task} does not come back"
        ended = [task for task, _ in command.ranges if task not in unended and command.running is not Running.LEAVE]
        assert all(task in self.ended for task in ended), f"not all of {ended} have ended, but none is cancelled"

    def runs_on(self, run: Run, frozen_until: float, frozen_s: float, now: float) -> None:
        """A task has run up to this moment.

        Args:
            frozen_until: until when its agent was frozen.
            frozen_s: for how many seconds since it began. The agent takes it for a stop of the whole job, and does not
                count this time.
        """
        over_from = run.over_from(self.tasks[run.task].policy)
        in_time = now < max(over_from + frozen_s, frozen_until) + KILLED_WITHIN_S
        assert in_time, f"task {run.task} ran on although it was over its limit from {over_from} on"
        if run.task in self.killed_tasks and run.peer not in self.unheard:
            in_time = now < max(self.killed_tasks[run.task], frozen_until) + KILLED_WITHIN_S
            assert in_time, f"task {run.task} ran on although it was cancelled"

    def killed(self, run: Run, is_faulty: bool, is_short: bool, now: float, ends_at: float) -> None:
        """An agent kills a slave that runs a task.

        Args:
            is_faulty: whether the slave is faulty. Such a slave may be killed at any time.
            is_short: whether the job is short of memory. Then any slave with a limit of memory may be killed.
            ends_at: when its tasks end, as the slave knows it.
        """
        policy, slave = self.tasks[run.task].policy, (run.peer, run.slave)
        if (is_short and policy.memory_max) or now >= run.over_from(policy):
            self.ends.killed[slave] = run.task
        elif is_faulty:
            return
        elif run.task in self.killed_tasks:
            self._uncharged[slave] = None
        else:
            leaves = run.peer in self._leaving or run.peer in self.unheard
            assert leaves, f"slave {run.slave} is killed while it runs task {run.task}, which may go on"
            assert now >= ends_at, (
                f"task {run.task} is killed at {now}, but it has time until {ends_at}, as its slave knows"
            )

    def _end(self, task: int, how: str, tag: object) -> None:
        assert task not in self.ended, f"task {task} ended twice"
        assert tag is self.tasks[task].tag, f"task {task} has another's tag"
        self.ended[task] = how

    def check_end(self, total: int) -> None:
        """The computation is over."""
        assert sorted(self.ended) == list(range(1, total + 1)), "a task was lost"
        # A slave may have run the same call in an earlier life, where it did not kill.
        for task in [task for task, each in self.tasks.items() if each.kills and task not in self.lives.reused]:
            ran = self.runs.get(task, 0)  # a call that is too large fails without being run
            has_value = self.ended[task] == "result" and task not in self.references.causes
            assert not (has_value and ran), f"task {task} kills, but it has a result"
