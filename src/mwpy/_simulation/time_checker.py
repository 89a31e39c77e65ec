"""Checks from outside that no task is sent to an agent that has too little time left for it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from mwpy._values.messages import Hello
from mwpy._values.policy import TaskPolicy
from mwpy._values.records import AgentConnected, TaskRange

__all__ = ["TimeChecker"]

ROUNDING_S = 1e-6
"""Tolerance for rounding, in seconds."""


class TimeChecker(Struct, eq=False):
    """Checks the times of agents and tasks."""

    policies: dict[int, TaskPolicy]
    """The policy of each task."""
    _goes_on: dict[int, None] = field(default_factory=dict)
    """The algorithms, by number, whose tasks have left states. Their tasks may be sent to any agent."""
    _left: dict[bytes, float | None] = field(default_factory=dict)
    """How long the tasks of each connection may run from its beginning on."""
    _connects: dict[bytes, None] = field(default_factory=dict)
    """The connections of agents that greeted the master later."""
    _ends: dict[str, float | None] = field(default_factory=dict)
    """Until when tasks may run at each agent, as the master knows it."""

    def begins(self, peer: bytes, left_s: float | None, *, connects: bool = False) -> None:
        """An agent greets the master. Its tasks are killed after this time.

        Args:
            connects: whether it begins to connect, and greets the master a moment later.
        """
        self._left[peer] = left_s
        if connects:
            self._connects[peer] = None

    def heard(self, peer: bytes, hello: Hello) -> None:
        """The master gets the first message of an agent."""
        left_s = self._left[peer]
        earlier = peer in self._connects and (hello.seconds_left or 0.0) < (left_s or 0.0)
        same = (
            earlier or hello.seconds_left == left_s or abs((hello.seconds_left or 0.0) - (left_s or 0.0)) < ROUNDING_S
        )
        assert same, f"{peer!r} says that it has {hello.seconds_left} s left, but it has {left_s} s"

    def connected(self, record: AgentConnected, now: float) -> None:
        """The master has accepted an agent."""
        self._ends[record.agent] = None if record.seconds_left is None else now + record.seconds_left

    def checkpointed(self, task: TaskRange) -> None:
        """A task has left a state."""
        self._goes_on[task.algorithm] = None

    def sent(self, agent: str, tasks: Sequence[TaskRange], now: float) -> None:
        """Tasks are sent to an agent."""
        end = self._ends[agent]
        limited = [each for each in tasks if each.algorithm not in self._goes_on]
        for task in (each.first + place for each in limited for place in range(each.count)):
            expected_s = self.policies[task].seconds_expected
            if expected_s is not None and end is not None:
                left_s = end - now
                assert expected_s <= left_s + ROUNDING_S, f"task {task} takes {expected_s} s, {agent} has {left_s} s"
