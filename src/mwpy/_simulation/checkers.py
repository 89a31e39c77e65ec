"""What the simulator sees from outside, and what must be true of it whatever fails.

The witness knows what was submitted and with which policy, sees what each slave starts, which deaths the master is
told of, what the master records and what it gives to the algorithm. It looks into no core.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, field

from mwpy._values import messages, records
from mwpy._values.ids import SlaveId
from mwpy._values.task import Result, TaskPolicy, UnrunnableTask

__all__ = ["SimulationFailure", "Witness"]

DEATHS_ALLOWED = 3
"""A task that was running in so many slaves when they died must not be started again."""


class SimulationFailure(AssertionError):
    """A checker found a fault.

    Args:
        seed: of the history in which it was found.
        transcript: the last lines of what happened.
        reason: what was found.
    """

    def __init__(self, seed: int, transcript: Sequence[str], reason: str) -> None:
        super().__init__(f"seed {seed}: {reason}")
        self.seed = seed
        self.transcript = transcript


@define(eq=False)
class Witness:
    """The checkers of one simulated computation; each raises an `AssertionError` that says what is wrong."""

    ended: dict[int, str] = field(factory=dict)
    """What became of each task: `result` or `unrunnable`."""
    runs: dict[int, int] = field(factory=dict)
    """How often each task was started."""
    deaths: dict[int, int] = field(factory=dict)
    """In how many deaths each task was running, of those that the master was told of."""
    killers: dict[int, None] = field(factory=dict)
    """Tasks that end their slave whenever they run."""
    unheard: dict[bytes, None] = field(factory=dict)
    """Connections that broke, or that the master closed its ears to."""
    _policies: dict[int, TaskPolicy] = field(factory=dict)
    _tags: dict[int, object] = field(factory=dict)
    _unaddressed: dict[int, None] = field(factory=dict)
    """Tasks that are addressed to their slave no more: the master said so."""
    _last: dict[SlaveId, int] = field(factory=dict)
    """The newest task addressed to a slave that the slave started, by order of submission."""
    _dead: dict[tuple[bytes, int], None] = field(factory=dict)
    _leaving: dict[bytes, None] = field(factory=dict)
    """Connections whose agent said that it must go: what happens there is charged to no task."""

    def submitted(self, task: int, policy: TaskPolicy, kills: bool) -> object:
        """A task is submitted, after all with lower numbers. Returns its tag."""
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
                    assert policy.sid == record.sid and policy.do_it_anyway, f"{task} must not run but at {policy.sid}"
                    self._unaddressed[task] = None

    def heard(self, peer: bytes, message: messages.Message) -> None:
        """The master is told of a death, once or again."""
        if isinstance(message, messages.Leaving):
            self._leaving[peer] = None
        if not isinstance(message, messages.SlaveDied) or peer in self.unheard or (peer, message.slave) in self._dead:
            return
        self._dead[peer, message.slave] = None
        if message.running and peer not in self._leaving:
            self.deaths[message.running] = self.deaths.get(message.running, 0) + 1

    def started(self, task: int, sid: SlaveId | None, peer: bytes) -> None:
        """A slave starts a task."""
        policy = self._policies[task]
        self.runs[task] = self.runs.get(task, 0) + 1
        assert policy.retry or self.runs[task] == 1, f"task {task} ran twice despite retry=False"
        if peer not in self.unheard:  # else it may have been sent before the master was told of the deaths
            assert self.deaths.get(task, 0) < DEATHS_ALLOWED, f"task {task} runs again after it killed so many slaves"
        if policy.sid is None or task in self._unaddressed:
            return
        assert sid == policy.sid, f"task {task} is addressed to {policy.sid}, but {sid} starts it"
        last = self._last.get(policy.sid, 0)
        assert task > last or self.runs[task] > 1, f"{sid} starts task {task} after the newer task {last}"
        self._last[policy.sid] = max(last, task)

    def finished(self, result: Result[Any]) -> None:
        """The algorithm is given a result."""
        self._end(result.task_id, "result", result.tag)

    def given_up(self, task: UnrunnableTask) -> None:
        """The algorithm is handed a task back."""
        told = self.deaths.get(task.task_id, 0)
        assert len(task.deaths) == told, f"task {task.task_id} has {len(task.deaths)} deaths, {told} were told of"
        assert told <= DEATHS_ALLOWED, f"task {task.task_id} killed {told} slaves"
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
            assert self.ended[task] == "unrunnable" or not ran, f"task {task} kills, yet it ended"
