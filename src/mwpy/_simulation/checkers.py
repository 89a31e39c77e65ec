"""Checks a simulated computation from outside: these facts must be true after every kind of fault.

The checker knows what was submitted and with which policy. It sees what each slave starts, which deaths are reported to
the master, what the master records, and what the master gives to the algorithm. It does not read the state of a core.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, field

from mwpy._values import messages, records
from mwpy._values.ids import SlaveId
from mwpy._values.task import Result, TaskPolicy, UnrunnableTask

__all__ = ["HistoryChecker", "SimulationFailure"]

DEATHS_ALLOWED = 3
"""A task that was running in this many slaves when they died must not start again."""


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


@define(eq=False)
class HistoryChecker:
    """Checks one simulated computation. Each method raises an `AssertionError` that says what is wrong."""

    ended: dict[int, str] = field(factory=dict)
    """How each task ended: `result` or `unrunnable`."""
    runs: dict[int, int] = field(factory=dict)
    """How often each task was started."""
    deaths: dict[int, int] = field(factory=dict)
    """How many slaves died while they ran each task. Only deaths that the master knows of count."""
    killers: dict[int, None] = field(factory=dict)
    """Tasks that kill their slave in each run."""
    unheard: dict[bytes, None] = field(factory=dict)
    """Connections that broke, or that the master does not listen to any more."""
    _policies: dict[int, TaskPolicy] = field(factory=dict)
    _tags: dict[int, object] = field(factory=dict)
    _unaddressed: dict[int, None] = field(factory=dict)
    """Tasks that were addressed to a slave, until the master removed this address."""
    _last: dict[SlaveId, int] = field(factory=dict)
    """For each slave: the newest started task that is addressed to it."""
    _dead: dict[tuple[bytes, int], None] = field(factory=dict)
    _uncharged: dict[tuple[bytes, int], None] = field(factory=dict)
    """Slaves that were killed together with their agent."""
    _leaving: dict[bytes, None] = field(factory=dict)
    """Connections of agents that have announced that they leave. No task is charged for what happens there."""

    def submitted(self, task: int, policy: TaskPolicy, kills: bool) -> object:
        """A task is submitted, after all tasks with lower numbers. Returns its tag."""
        self._policies[task] = policy
        self._tags[task] = object()
        if kills:
            self.killers[task] = None
        return self._tags[task]

    def recorded(self, record: records.Record) -> None:
        """The master states a fact."""
        if isinstance(record, records.TasksUnaddressed):
            for span in record.tasks:
                for task in range(span.first, span.first + span.count):
                    policy = self._policies[task]
                    assert policy.sid == record.sid and policy.do_it_anyway, f"{task} must only run on {policy.sid}"
                    self._unaddressed[task] = None

    def killed_together(self, peer: bytes, slave: int) -> None:
        """A batch system kills a slave, and then the agent of this connection."""
        self._uncharged[peer, slave] = None

    def heard(self, peer: bytes, message: messages.Message) -> None:
        """The master gets a message about a death or a departure, perhaps a repeated one."""
        if isinstance(message, messages.Leaving):
            self._leaving[peer] = None
        if not isinstance(message, messages.SlaveDied) or peer in self.unheard or (peer, message.slave) in self._dead:
            return
        self._dead[peer, message.slave] = None
        if message.running and peer not in self._leaving:
            together = (peer, message.slave) in self._uncharged
            assert not together, f"task {message.running} is charged for a slave that was killed with its agent"
            self.deaths[message.running] = self.deaths.get(message.running, 0) + 1

    def started(self, task: int, sid: SlaveId | None, peer: bytes) -> None:
        """A slave starts a task."""
        policy = self._policies[task]
        self.runs[task] = self.runs.get(task, 0) + 1
        assert policy.retry or self.runs[task] == 1, f"task {task} ran twice despite retry=False"
        if peer not in self.unheard:  # else the task may have been sent before the deaths were reported
            assert self.deaths.get(task, 0) < DEATHS_ALLOWED, f"task {task} runs again after it killed three slaves"
        if policy.sid is None or task in self._unaddressed:
            return
        assert sid == policy.sid, f"task {task} is addressed to {policy.sid}, but {sid} starts it"
        last = self._last.get(policy.sid, 0)
        assert task > last or self.runs[task] > 1, f"{sid} starts task {task} after the newer task {last}"
        self._last[policy.sid] = max(last, task)

    def finished(self, result: Result[Any]) -> None:
        """The algorithm gets a result."""
        self._end(result.task_id, "result", result.tag)

    def given_up(self, task: UnrunnableTask) -> None:
        """The algorithm gets a task back."""
        heard_of = self.deaths.get(task.task_id, 0)
        assert len(task.deaths) == heard_of, f"task {task.task_id} has {len(task.deaths)} deaths, not {heard_of}"
        assert heard_of <= DEATHS_ALLOWED, f"task {task.task_id} killed {heard_of} slaves"
        self._end(task.task_id, "unrunnable", task.tag)

    def _end(self, task: int, how: str, tag: object) -> None:
        assert task not in self.ended, f"task {task} ended twice"
        assert tag is self._tags[task], f"task {task} has another's tag"
        self.ended[task] = how

    def check_end(self, total: int) -> None:
        """The computation is over."""
        assert sorted(self.ended) == list(range(1, total + 1)), "a task was lost"
        for task in self.killers:
            ran = self.runs.get(task, 0)  # a call that is too large fails without being run
            assert self.ended[task] == "unrunnable" or not ran, f"task {task} kills, but it has a result"
