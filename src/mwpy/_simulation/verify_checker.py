"""Checks from outside that results which hosts computed wrongly are found, and that nobody else is blamed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from msgspec import Struct, field

from mwpy._core.master.kept_calls import DoubtedCall
from mwpy._simulation.retries import RetryChecker
from mwpy._transport.codec import Codec
from mwpy._values import groups, messages, records
from mwpy._values.ids import SlaveId
from mwpy._values.policy import TaskPolicy
from mwpy._values.task import KEPT, Result, SlaveKind, SlaveState, encoded_in

__all__ = ["VerifyChecker"]

CODEC = Codec()

_SERVING = (SlaveState.IDLE, SlaveState.BUSY)


class _Slave(Struct, eq=False):
    host: str
    agent: str
    state: SlaveState = SlaveState.CONNECTING
    kind: SlaveKind = SlaveKind.UNORDERED


class VerifyChecker(Struct, eq=False):
    """Checks the comparison of results. Some hosts compute some results wrongly, each time in another way."""

    policies: dict[int, TaskPolicy]
    """The policy of each task."""
    lost: dict[int, int]
    """How many agents vanished with each task."""
    retries: RetryChecker
    """Knows the tasks with kept answers, too."""
    numbers: Mapping[int, int]
    """The values of tasks; all others have their ids as values."""
    seed: int = 0
    """The seed of the history."""
    percent: float = 0.0
    """How many percent of the tasks are repeated."""
    wrong: dict[str, float] = field(default_factory=dict)
    """The hosts that compute wrongly, and the share of their results that is wrong."""
    num_wrong: int = 0
    """How many wrong results the algorithm got."""
    late_wrong: list[int] = field(default_factory=list)
    """The tasks of those that three hosts could have computed."""
    num_sure: int = 0
    """How many results were confirmed."""
    num_outvoted: int = 0
    """How often a host was outvoted."""
    num_recomputed: int = 0
    """How many results were computed again because they were in doubt."""
    _sure: dict[int, None] = field(default_factory=dict)
    _unsure: dict[int, None] = field(default_factory=dict)
    """Tasks whose results the algorithm gets although nobody could confirm them."""
    _num_hosts: dict[int, int] = field(default_factory=dict)
    """How many hosts could compute each task when it had its first answer."""
    _ended_early: dict[int, None] = field(default_factory=dict)
    """Tasks that were cancelled or lost before they were repeated."""
    _not_repeated: dict[int, None] = field(default_factory=dict)
    """Tasks that are cancelled, but may finish, and tasks that had several live attempts."""
    _hosts: dict[int, list[str]] = field(default_factory=dict)
    """The hosts that answered each task."""
    _latest: dict[int, str] = field(default_factory=dict)
    """The hosts of wrong results that the algorithm has got, by the first task; without those that run again."""
    _named: dict[int, None] = field(default_factory=dict)
    """Tasks that the master names because their results cannot be corrected."""
    _outvoted: dict[str, None] = field(default_factory=dict)
    _host_of: dict[str, str] = field(default_factory=dict)
    _agents: dict[str, None] = field(default_factory=dict)
    """The agents that serve and may run any task."""
    _slaves: dict[SlaveId, _Slave] = field(default_factory=dict)
    _refused: dict[str, None] = field(default_factory=dict)
    """Agents and slaves that refused any algorithm."""

    def value(self, task: int, attempt: int, host: str, *, digested: bool) -> bytes:
        """What a slave on a host encodes as its result: the value of the task, or something wrong."""
        random = Random(f"{self.seed} {task} {attempt} {host}")
        is_wrong = random.random() < self.wrong.get(host, 0.0)
        value = random.randrange(1, 1 << 60) if is_wrong else self.numbers.get(task, task)
        return (CODEC.dumps_digested if digested else CODEC.dumps_value)(value)[0]

    def recorded(self, record: records.Record) -> None:
        """The master states a fact."""
        match record:
            case records.AgentConnected(agent, _, host, seconds_left=left_s):
                self._host_of[agent] = host
                if left_s is None:  # else it may have too little time
                    self._agents[agent] = None
            case records.AgentLeaving(agent) | records.AgentLost(agent) | records.AgentLeft(agent):
                self._agents.pop(agent, None)
            case records.PeerDropped(agent):
                self._agents.pop(agent, None)
            case records.AlgorithmRefused(agent, sid=sid):
                self._refused[sid or agent] = None
            case records.SlaveConnected(sid, agent):
                self._slaves[sid] = _Slave(self._host_of[agent], agent)
            case records.SlaveChanged(sid, state, kind):
                self._slaves[sid].state, self._slaves[sid].kind = state, kind
            case records.SlaveEnded(sid):
                self._slaves.pop(sid, None)
            case records.ResultsReceived(sid, results):
                self._check_alone(sid, results)
            case records.AnswersKept(_, host, results):
                for task, _ in groups.each_task(results):
                    self._num_hosts.setdefault(task, self._num_able)
                    self.retries.answered[task] = None
                    hosts = self._hosts.setdefault(task, [])
                    assert host not in hosts, f"task {task} was repeated on the same host {host}"
                    hosts.append(host)
            case records.TasksCancelling(_, tasks) | records.AttemptsStarted(_, tasks):
                self._not_repeated.update((each.first + at, None) for each in tasks for at in range(each.count))
            case records.AnswersGiven(tasks, verdict, is_sure):
                for each in tasks:
                    if "was cancelled" in verdict or "was lost" in verdict:
                        self._ended_early[each.first] = None
                    (self._sure if is_sure else self._unsure)[each.first] = None
                    self.num_sure += is_sure
            case records.ResultsDoubted(missing=missing):
                self._named.update((first + at, None) for first, count in missing for at in range(count))
            case records.ResultsRecomputed(tasks):
                self.num_recomputed += sum(count for _, count in tasks)
            case records.AnswersDiffer(task, _, wrong):
                self.num_outvoted += len(wrong)
                self._outvoted.update(dict.fromkeys(wrong))
                innocent = [host for host in wrong if host not in self.wrong]
                assert not innocent, f"{innocent} computed {task} rightly"

    def _check_alone(self, sid: SlaveId, results: messages.Results) -> None:
        """If every task is repeated, a result may be given out at once only if no other host can compute it."""
        if self.percent < 100.0:
            return
        own = self._slaves[sid].host
        others = [other for other in self._able if self._slaves[other].host != own]
        for task in self._verifiable(results):
            self._num_hosts[task] = self._num_able
            assert not others, f"the result of task {task} was given out at once, but {others} could compute it"

    @property
    def _able(self) -> list[SlaveId]:
        """The slaves that can certainly run any task."""
        return [
            sid
            for sid, slave in self._slaves.items()
            if slave.agent in self._agents
            and slave.state in _SERVING
            and slave.kind is not SlaveKind.ORDERED
            and not {sid, slave.agent} & self._refused.keys()
        ]

    @property
    def _num_able(self) -> int:
        return len({self._slaves[sid].host for sid in self._able})

    def _verifiable(self, results: messages.Results) -> Sequence[int]:
        again = {*results.again}
        return [
            task
            for place, (task, _) in enumerate(groups.each_task(results))
            if self.policies[task].retry and self.policies[task].sid is None and not self.lost.get(task)
            if place not in again and task not in self._not_repeated
        ]

    def finished(self, result: Result[Any]) -> None:
        """The algorithm gets a result of a task that was not cancelled."""
        task, call = result.task_id, result.tag
        is_wrong = result.ok and encoded_in(result)[0] is not KEPT and result.value != self.numbers.get(task, task)
        if isinstance(call, DoubtedCall) and call.only:
            assert call.only in self._outvoted, f"task {task} corrects a result, and does not count without a reason"
            return  # the algorithm gets a failure
        if is_wrong:
            self._latest[call.task_id if isinstance(call, DoubtedCall) else task] = str(result.host)
        self.num_wrong += is_wrong
        excused = task in self._ended_early or task in self._not_repeated
        if is_wrong and min(self._num_hosts.get(task, 0), self._num_able) >= 3 and not excused:
            self.late_wrong.append(task)
        assert not (is_wrong and task in self._sure), f"the result of task {task} is wrong, and was confirmed"
        assert not is_wrong or result.host in self.wrong, f"{result.host} computed task {task} wrongly"

    def reused(self, result: Result[Any]) -> None:
        """The algorithm gets a result of a former life of the master."""
        is_wrong = result.ok and result.value != self.numbers.get(result.task_id, result.task_id)
        assert not is_wrong or result.host in self.wrong, f"{result.task_id} has the result {result.value}"

    def recomputes(self, call: DoubtedCall) -> None:
        """A result that the algorithm has got is computed again."""
        self._latest.pop(call.task_id, None)

    def check_corrected(self) -> None:
        """No result is in doubt any more that can be computed again: each wrong result that only a wrong host computed
        was computed again, or is named, unless no other host can run any task."""
        wrong = [task for task, host in self._latest.items() if host in self._outvoted and task not in self._named]
        others = [sid for sid in self._able if self._slaves[sid].host not in self._outvoted]
        assert not (wrong and others), f"the results of tasks {wrong} are wrong, and {others} could compute them again"
