"""Checks a simulated computation from outside: these facts must be true after every kind of fault.

The checker knows what was submitted and with which policy. It sees what each slave starts, which deaths are reported to
the master, what the master records, and what the master gives to the algorithm. It does not read the state of a core.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

from mwpy._core.master.commands import CancelTasks, Running
from mwpy._simulation.code_checker import CodeChecker
from mwpy._simulation.end_checker import EndChecker
from mwpy._simulation.host_checker import HostChecker
from mwpy._simulation.live_attempts import AttemptChecker
from mwpy._simulation.lives import LifeChecker
from mwpy._simulation.overrun_checker import OverrunChecker
from mwpy._simulation.reference_checker import ReferenceChecker
from mwpy._simulation.retries import RetryChecker
from mwpy._simulation.states import StateChecker
from mwpy._simulation.stop_checker import StopChecker
from mwpy._simulation.time_checker import TimeChecker
from mwpy._values import groups, messages, records
from mwpy._values.causes import Cause
from mwpy._values.errors import DependencyFailed, TaskCancelled
from mwpy._values.ids import SlaveId
from mwpy._values.policy import TaskPolicy
from mwpy._values.task import Result, UnrunnableTask

__all__ = ["LARGE_BYTES", "HistoryChecker", "SimulationFailure", "is_cancelled"]

LOST_AGENTS_ALLOWED = 3
"""A task that was at this many agents when they vanished must run alone on an agent."""

LOST_ALONE_ALLOWED = 30
"""It is given up when it ran alone on one more agent that vanished, or on so many more that had finished no task."""

_LONG_TASK = re.compile(
    r"task (?P<task>\d+) \([^)]*\) for \d+ s on (?P<sid>\S+) at (?P<host>.+?)(?=, task |\. If such | and \d+ more)"
)
"""How a master reports a task that runs for long."""


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

    def __init__(self) -> None:
        self.ended: dict[int, str] = {}
        """How each task ended: `result`, `unrunnable`, `cancelled` or `discarded`."""
        self.runs: dict[int, int] = {}
        """How often each task was started."""
        self.deaths: dict[int, int] = {}
        """How many attempts of each task were lost by its own fault. Only those that the master knows of count."""
        self.killers: dict[int, None] = {}
        """Tasks that kill their slave in each run."""
        self.agent_killers: dict[int, None] = {}
        """Tasks that kill their agent in each run."""
        self.lost: dict[int, int] = {}
        """How many agents vanished without notice while each task was at them, as far as the master knows."""
        self.unheard: dict[bytes, None] = {}
        """Connections that broke, or that the master does not listen to any more."""
        self.unable: dict[str, None] = {}
        """Machines that may be unable to run an algorithm. On all others, only some slaves fail."""
        self.killed_tasks: dict[int, float] = {}
        """Tasks that must be killed if they run, and when the master decided this or the algorithm learned it. Nobody
        waits for their results."""
        self.unfetched_bytes = 0
        """How many bytes of results the algorithm got and did not fetch."""
        self.most_waiting = 0
        """How many of them may wait when a task is sent."""
        self.shares: dict[int, list[str]] = {}
        """The digests of the shared objects that tasks need, for tasks that need any."""
        self.code = CodeChecker()
        """Checks which code runs."""
        self.lives = LifeChecker()
        """Checks what is computed again after the master crashed."""
        self.stops = StopChecker()
        """Checks the stops because of failures."""
        self.hosts = HostChecker()
        """Checks which hosts get no more work."""
        self.overruns = OverrunChecker()
        """Checks which tasks are lost because of a limit."""
        self.ends = EndChecker()
        self._host_of: dict[str, str] = {}
        self._alone: dict[int, bool] = {}
        """Whether each of these tasks was alone at the last agent that vanished with it."""
        self._at: dict[str, dict[int, None]] = {}
        """The tasks that were sent to each agent and did not come back."""
        self._agent_of: dict[SlaveId, str] = {}
        self._announced: dict[str, None] = {}
        """Agents that the master knows to leave."""
        self._policies: dict[int, TaskPolicy] = {}
        self.tags: dict[int, object] = {}
        self._unaddressed: dict[int, None] = {}
        """Tasks that were addressed to a slave, until the master removed this address."""
        self._last: dict[SlaveId, int] = {}
        """For each slave: the newest started task that is addressed to it."""
        self._begun: dict[bytes, list[messages.Message]] = {}
        """The messages of each connection that must not come twice."""
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
        self.attempts = AttemptChecker(self._policies)
        self.retries = RetryChecker(self.attempts, self.deaths, self._last_attempts)
        self.times = TimeChecker(self._policies)
        self.states = StateChecker(self._last_attempts, self.unheard)
        self.references = ReferenceChecker(self.lives.numbers)

    @property
    def unended(self) -> list[int]:
        """The tasks that have started, but have not ended."""
        return [task for task in self.runs if task not in self.ended]

    def submitted(
        self, task: int, policy: TaskPolicy, kills: str, errors: int, algorithm: records.AlgorithmDefined
    ) -> object:
        """A task is submitted, after all tasks with lower numbers.

        Args:
            kills: what it kills: "slave", "agent" or nothing ("").
            errors: how many of its first attempts end with an exception.

        Returns:
            Its tag.
        """
        self._policies[task] = policy
        self.code.submitted(task, algorithm)
        self.lives.submitted(task, policy, algorithm)
        self.tags[task] = object()
        self.retries.errors[task] = errors
        if kills:
            (self.killers if kills == "slave" else self.agent_killers)[task] = None
        return self.tags[task]

    def recorded(self, record: records.Record) -> None:
        """The master states a fact."""
        for part in (self.stops, self.hosts, self.attempts, self.lives):
            part.recorded(record)
        match record:
            case records.TasksUnaddressed(sid, tasks):
                for task in _each(tasks):
                    policy = self._policies[task]
                    assert policy.sid == sid and policy.do_it_anyway, f"{task} must only run on {policy.sid}"
                    self._unaddressed[task] = None
            case records.AgentConnected(agent, _, host):
                self._at[agent], self._host_of[agent] = {}, host
                self.times.connected(record, self.retries.now)
            case records.AlgorithmRefused(agent, algorithm, sid=None):
                may_fail = self._host_of[agent] in self.unable
                assert may_fail, f"{agent} gets no more tasks of {algorithm}, but a new slave can run it"
            case records.SlaveConnected(sid, agent):
                self._agent_of[sid] = agent
            case records.AgentLeaving(agent):
                self._announced[agent] = None
            case records.AgentLost(agent, cause=Cause.AGENT_LOST):
                self._agent_vanished(agent)
            case records.TaskCheckpointed():
                self.states.recorded(record)
                self.times.checkpointed(record.task)
            case records.TasksAllocated(sid, tasks) | records.AttemptsStarted(sid, tasks):
                self.retries.sent(tasks)
                self.times.sent(self._agent_of[sid], tasks, self.retries.now)
                self.states.sent(tasks)
                waiting = self.unfetched_bytes
                assert waiting <= self.most_waiting, f"{sid} is sent tasks although {waiting} bytes of results wait"
                self._sent(self._agent_of[sid], _each(tasks))
            case records.AttemptsEnded(sid, tasks, _, charges):
                self._back(self._agent_of[sid], _each(tasks))
                self.retries.lost(tasks, charges)
            case records.ResultsReceived(sid, results):
                self._back(self._agent_of[sid], (task for task, _ in groups.each_task(results)))
                repeated = [task for task, _ in groups.each_task(results) if task in self.attempts.repeated]
                self.killed_tasks.update(dict.fromkeys(repeated, self.retries.now))
            case records.TasksReturned(sid, tasks, _, charges, pause_s):
                self._back(self._agent_of[sid], _each(tasks))
                self.retries.returned(tasks, charges, pause_s)
            case records.TasksGivenUp(sid, True, tasks):
                self._back(self._agent_of[sid], _each(tasks))
            case records.TasksCancelled(sid, tasks) | records.TasksAnswered(sid, tasks):
                if isinstance(record, records.TasksCancelled):
                    self._must_not_start(tasks)
                self.killed_tasks.update(dict.fromkeys(_each(tasks), self.retries.now))
                if sid is not None:
                    self._back(self._agent_of[sid], _each(tasks))
            case records.TasksCancelling(sid, tasks):
                self._must_not_start(tasks)
            case records.Notice(text):
                _check_reports(text, self._agent_of, self._at, self._host_of)

    def _must_not_start(self, tasks: Sequence[records.TaskRange]) -> None:
        """Tasks must not be sent to a slave again."""
        for task in _each(tasks):
            assert task in self._cancelled or self.stops.stopped, f"task {task} is cancelled, and nobody wanted that"
            self._last_attempts[task] = None

    def _sent(self, agent: str, tasks: Iterator[int]) -> None:
        """Tasks are sent to an agent. A task that must run alone must be the only one there."""
        here = self._at[agent]
        here.update((task, None) for task in tasks)
        suspects = [task for task in here if self.lost.get(task, 0) >= LOST_AGENTS_ALLOWED]
        assert not suspects or len(here) == 1, f"{suspects} must be alone, but {agent} has {list(here)}"

    def _back(self, agent: str, tasks: Iterator[int]) -> None:
        """An agent has these tasks no more."""
        for task in tasks:
            del self._at[agent][task]

    def _agent_vanished(self, agent: str) -> None:
        """An agent is lost. Its tasks are suspects, unless it has announced that it leaves."""
        here = self._at[agent]
        for task in here if agent not in self._announced else ():
            self.lost[task] = self.lost.get(task, 0) + 1
            self._alone[task] = len(here) == 1
            most = LOST_AGENTS_ALLOWED + LOST_ALONE_ALLOWED + 1
            assert self.lost[task] <= most, f"task {task} was lost with {self.lost[task]} agents"

    def blameless(self, peer: bytes, slave: int) -> None:
        """A slave of this connection ends as it was asked to, or a batch system kills it and then its agent."""
        self._uncharged[peer, slave] = None

    def heard(self, peer: bytes, message: messages.Message) -> None:
        """The master gets a message about a death, a departure or a beginning, perhaps a repeated one."""
        if isinstance(message, messages.Hello | messages.SlaveReady):
            if message in self._begun.setdefault(peer, []):
                self.unheard[peer] = None  # the master drops it
            self._begun[peer].append(message)
        if isinstance(message, messages.Hello):
            self.times.heard(peer, message)
            self.hosts.heard(peer, message)
        if isinstance(message, messages.Leaving):
            self._leaving[peer] = None
        if not isinstance(message, messages.SlaveDied) or peer in self.unheard or (peer, message.slave) in self._dead:
            return
        self._dead[peer, message.slave] = None
        self.states.died(peer, message)
        self.ends.died(peer, message)
        self.overruns.died(peer, message, leaves=peer in self._leaving)
        leaves = peer in self._leaving or self.hosts.charges_nothing(peer)
        leaves = leaves and message.cause is not Cause.OUT_OF_MEMORY  # this may be why the agent leaves
        if message.running and message.cause.is_charged and not message.allowed and not leaves:
            # an agent that leaves because of the memory of a slave knew the cause before the slave was killed
            together = (peer, message.slave) in self._uncharged and message.cause is not Cause.OUT_OF_MEMORY
            assert not together, f"task {message.running} is charged for a slave that it did not kill"
            self.deaths[message.running] = self.deaths.get(message.running, 0) + 1

    def started(self, task: int, sid: SlaveId | None, peer: bytes, beside: Sequence[int]) -> None:
        """A slave starts a task, while the other slaves of its agent run the tasks `beside`.

        After its result has arrived at the master, a task starts only in another attempt that is about to be killed.
        """
        policy = self._policies[task]
        self.lives.started(task)
        self.runs[task] = self.runs.get(task, 0) + 1
        assert policy.retry or self.runs[task] == 1, f"task {task} ran twice despite retry=False"
        if peer not in self.unheard:  # else the task may have been sent before the deaths were reported
            arrived = task in self.attempts.answered and task not in self.killed_tasks
            assert not arrived, f"task {task} starts again after its result has arrived"
            killed = self.deaths.get(task, 0)
            assert killed < policy.attempts_max, f"task {task} runs again after it killed {killed} slaves"
            others = [each for each in beside if each not in self.killed_tasks]  # these end soon
            suspects = [each for each in (task, *others) if others and self.lost.get(each, 0) >= LOST_AGENTS_ALLOWED]
            assert not suspects, f"{suspects} must run alone, but one agent runs {[task, *others]}"
        if policy.sid is None or task in self._unaddressed:
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
        number, policy = task.task_id, self._policies[task.task_id]
        heard_of, lost = self.deaths.get(number, 0), self.lost.get(number, 0)
        causes = [death.cause for death in task.deaths]
        charged = sum(death.is_charged for death in task.deaths)
        assert charged == heard_of, f"task {number} is charged {charged} times, not {heard_of}"
        assert causes.count(Cause.AGENT_LOST) == lost, f"task {number} was lost with {lost} agents: {causes}"
        assert number not in self._last_attempts, f"task {number} is handed back although it is cancelled"
        assert heard_of <= policy.attempts_max, f"task {number} killed {heard_of} slaves"
        before = heard_of == 0 and self.lives.was_used_up(number)
        if policy.retry and policy.sid is None and heard_of < policy.attempts_max and not before:
            alone = self._alone.get(number, False)
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
                self._end(task, "discarded", self.tags[task])
            if command.running is not Running.FINISH:
                self.killed_tasks[task] = now
                assert self.ended.get(task) in ("cancelled", "discarded"), f"task {task} does not come back"
        ended = [task for task, _ in command.ranges if task not in unended]
        assert all(task in self.ended for task in ended), f"not all of {ended} have ended, but none is cancelled"

    def runs_on(self, task: int, peer: bytes, frozen_until: float, began: float, grown_at: float, now: float) -> None:
        """A slave has run a task since `began` up to this moment, and used much memory since `grown_at`. Its agent was
        frozen until some earlier moment, or never."""
        over_from = _over_from(self._policies[task], began, grown_at)
        in_time = now < max(over_from, frozen_until) + KILLED_WITHIN_S
        assert in_time, f"task {task} ran on although it was over its limit from {over_from} on"
        if task in self.killed_tasks and peer not in self.unheard:
            in_time = now < max(self.killed_tasks[task], frozen_until) + KILLED_WITHIN_S
            assert in_time, f"task {task} ran on although it was cancelled"

    def killed(
        self, task: int, peer: bytes, slave: int, faults: tuple[bool, bool], moments: tuple[float, ...], ends_at: float
    ) -> None:
        """An agent kills a slave that has run a task since `began`, and uses much memory since `grown_at`.

        A faulty slave may be killed at any time, and any slave with a limit of memory if the job is short of it. The
        slave knows from its agent that its tasks end at `ends_at`.

        Args:
            faults: `is_faulty` and `is_short`.
            moments: `began`, `grown_at` and `now`.
        """
        (is_faulty, is_short), (began, grown_at, now) = faults, moments
        if (is_short and self._policies[task].memory_max) or now >= _over_from(self._policies[task], began, grown_at):
            self.overruns.killed(peer, slave, task)
        elif is_faulty:
            return
        elif task in self.killed_tasks:
            self._uncharged[peer, slave] = None
        else:
            leaves = peer in self._leaving or peer in self.unheard
            assert leaves, f"slave {slave} is killed while it runs task {task}, which may go on"
            assert now >= ends_at, (
                f"task {task} is killed at {now}, but it has time until {ends_at}, as its slave knows"
            )

    def _end(self, task: int, how: str, tag: object) -> None:
        assert task not in self.ended, f"task {task} ended twice"
        assert tag is self.tags[task], f"task {task} has another's tag"
        self.ended[task] = how

    def check_end(self, total: int) -> None:
        """The computation is over."""
        assert sorted(self.ended) == list(range(1, total + 1)), "a task was lost"
        self.attempts.check_end()
        # A slave may have run the same call in an earlier life, where it did not kill.
        for task in {*self.killers, *self.agent_killers}.difference(self.lives.reused):
            ran = self.runs.get(task, 0)  # a call that is too large fails without being run
            has_value = self.ended[task] == "result" and task not in self.references.causes
            assert not (has_value and ran), f"task {task} kills, but it has a result"


def _check_reports(
    text: str, agent_of: dict[SlaveId, str], at: dict[str, dict[int, None]], host_of: dict[str, str]
) -> None:
    """Check what a notice says about tasks that run for long."""
    reports = list(_LONG_TASK.finditer(text))
    assert reports or "for long" not in text, f"no task is named: {text}"
    for found in reports:
        agent = agent_of[SlaveId(found["sid"])]
        assert int(found["task"]) in at[agent], f"{agent} does not run the task: {text}"
        assert found["host"] == host_of[agent], f"{agent} is elsewhere: {text}"


def _each(tasks: Sequence[records.TaskRange]) -> Iterator[int]:
    """The ids of all tasks."""
    for span in tasks:
        yield from range(span.first, span.first + span.count)


def _over_from(policy: TaskPolicy, began: float, grown_at: float) -> float:
    """When a task is over one of its limits; infinity if it never is."""
    late = inf if policy.seconds_max is None else began + policy.seconds_max
    return late if policy.memory_max is None or policy.memory_max >= LARGE_BYTES else min(late, grown_at)
