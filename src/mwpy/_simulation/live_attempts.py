"""Checks from outside which attempts of a task live at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct, field

from mwpy._values import groups, records
from mwpy._values.ids import SlaveId
from mwpy._values.policy import TaskPolicy

__all__ = ["AttemptChecker"]

LIVE_MAX = 2
"""How many attempts of a task may live at the same time."""


class AttemptChecker(Struct, eq=False):
    """Checks the attempts of tasks, by the records of a master."""

    policies: dict[int, TaskPolicy]
    """The policy of each task."""
    answered: dict[int, int] = field(default_factory=dict)
    """The attempt of each task whose result counts."""
    repeated: dict[int, None] = field(default_factory=dict)
    """The tasks of which several attempts have lived at the same time."""
    _live: dict[int, dict[SlaveId, int]] = field(default_factory=dict)
    """The live attempts of each task, by slave."""
    _last: dict[int, int] = field(default_factory=dict)
    """The highest number of an attempt of each task."""
    _unaddressed: dict[int, None] = field(default_factory=dict)
    """Tasks that were addressed to a slave, until the master removed this address."""
    _agent_of: dict[SlaveId, str] = field(default_factory=dict)
    _away: dict[str, None] = field(default_factory=dict)
    """The agents that are away."""

    def holds(self, sid: SlaveId, task: int, attempt: int) -> bool:
        """Whether a slave has an attempt of a task, as far as the master knows."""
        return self._live.get(task, {}).get(sid) == attempt

    def recorded(self, record: records.Record) -> None:
        """The master states a fact."""
        match record:
            case records.SlaveConnected(sid, agent):
                self._agent_of[sid] = agent
            case records.AgentAway(agent):
                self._away[agent] = None
            case records.AgentBack(agent) | records.AgentLost(agent):
                self._away.pop(agent, None)
            case records.TasksUnaddressed(_, tasks):
                self._unaddressed.update((task, None) for task, _ in _each(tasks))
            case records.TasksAllocated(sid, tasks):
                for task, attempt in _each(tasks):
                    assert not self._live.get(task), f"task {task} is sent to {sid}, but {self._live[task]} has it"
                    self._start(task, attempt, sid)
            case records.AttemptsStarted(sid, tasks, beside):
                for task, attempt in _each(tasks):
                    self._start_another(task, attempt, sid, beside)
            case records.AttemptsEnded(sid, tasks):
                self._end(sid, _each(tasks), others=True)
            case records.ResultsReceived(sid, results):
                self.answered.update(groups.each_task(results))
                self._end(sid, groups.each_task(results), others=False)
            case records.TasksReturned(sid, tasks) | records.TasksGivenUp(sid, True, tasks):
                self._end(sid, _each(tasks), others=False)
            case records.TasksCancelled(sid, tasks) | records.TasksAnswered(sid, tasks) if sid is not None:
                self._end(sid, _each(tasks), others=False)

    def _start(self, task: int, attempt: int, sid: SlaveId) -> None:
        expected = self._last.get(task, 0) + 1
        assert attempt == expected, f"attempt {attempt} of task {task} starts, not {expected}"
        self._last[task] = attempt
        self._live.setdefault(task, {})[sid] = attempt

    def _start_another(self, task: int, attempt: int, sid: SlaveId, beside: SlaveId) -> None:
        policy, live = self.policies[task], self._live.get(task, {})
        is_wanted = policy.speculate or self._agent_of[beside] in self._away
        assert is_wanted, f"task {task} gets a second attempt, and nobody wanted that"
        assert policy.retry, f"task {task} may only run once"
        is_for_any = policy.sid is None or task in self._unaddressed
        assert is_for_any, f"task {task} is for {policy.sid}, but {sid} gets a second attempt"
        assert beside in live, f"task {task} is not at {beside}"
        agents = [self._agent_of[other] for other in (*live, sid)]
        assert len({*agents}) == len(agents), f"two attempts of task {task} are at one agent: {agents}"
        self._start(task, attempt, sid)
        assert len(live) <= LIVE_MAX, f"{len(live)} attempts of task {task} live"
        self.repeated[task] = None

    def _end(self, sid: SlaveId, tasks: Iterator[tuple[int, int]], *, others: bool) -> None:
        """Attempts end at a slave. Either other attempts of each task live, or of none."""
        for task, attempt in tasks:
            assert self._live[task].pop(sid, 0) == attempt, f"{sid} does not have attempt {attempt} of task {task}"
            assert bool(self._live[task]) == others, f"attempt {attempt} of task {task} ends, beside {self._live[task]}"

    def check_end(self) -> None:
        """All tasks have ended."""
        left = {task: live for task, live in self._live.items() if live}
        assert not left, f"attempts live on after the ends of their tasks: {left}"


def _each(tasks: Sequence[records.TaskRange]) -> Iterator[tuple[int, int]]:
    """The ids and attempts of all tasks."""
    for span in tasks:
        for task in range(span.first, span.first + span.count):
            yield task, span.attempt
