"""Checks from outside how tasks end at agents: each attempt once, and a death charges no task but the one that ran."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from mwpy._values import groups, messages

__all__ = ["EndChecker"]

Attempt = tuple[bytes, int, int, int]
"""The connection of an agent, its slave, a task and an attempt."""


class EndChecker(Struct, eq=False):
    """Knows what agents say about the attempts of tasks."""

    _waiting: dict[Attempt, None] = field(default_factory=dict)
    """The attempts of tasks of portions whose results have waited in their slaves."""
    _late: dict[Attempt, None] = field(default_factory=dict)
    """The attempts that agents gave back because their results waited behind a long task."""
    _ends: dict[Attempt, str] = field(default_factory=dict)
    """How attempts have ended, as far as the master heard."""
    _ran: dict[tuple[bytes, int], Sequence[int]] = field(default_factory=dict)
    """The tasks that slaves ran when they ended, or were about to start."""

    def waits(self, agent: bytes, slave: int, task: int, attempt: int) -> None:
        """A task of a portion has ended, and its result waits in its slave."""
        self._waiting[agent, slave, task, attempt] = None

    def sends(self, agent: bytes, message: messages.Message) -> None:
        """An agent sends a message, perhaps again."""
        if isinstance(message, messages.Revoked) and message.late:
            late = [(agent, message.slave, *task) for task in groups.each_task(message)]
            unfinished = [task for task in late if task not in self._waiting]
            assert not unfinished, f"tasks are given back as late that have not ended: {unfinished}"
            self._late.update(dict.fromkeys(late))

    def is_given_back(self, agent: bytes, slave: int, task: int, attempt: int) -> bool:
        """Whether an agent has given back a task whose result waits in its slave."""
        return (agent, slave, task, attempt) in self._late

    def heard(self, agent: bytes, message: messages.Message) -> None:
        """The master gets a message that it did not get before."""
        match message:
            case messages.Results():
                self._end(agent, message, "has a result")
            case messages.Revoked(late=True):
                self._end(agent, message, "is given back because its result is late")
            case messages.Revoked():
                self._end(agent, message, "is given back")
            case messages.AlgorithmFailed():
                self._end(agent, message, "cannot run there")

    def _end(
        self, agent: bytes, message: messages.Results | messages.Revoked | messages.AlgorithmFailed, how: str
    ) -> None:
        for task, attempt in groups.each_task(message):
            before = self._ends.pop((agent, message.slave, task, attempt), "")
            assert not before, f"attempt {attempt} of task {task} {before} already, and now it {how}"
            self._ends[agent, message.slave, task, attempt] = how

    def slave_ended(self, agent: bytes, slave: int, tasks: Sequence[int]) -> None:
        """A slave ends that has not damaged what it shares with its agent."""
        self._ran[agent, slave] = tasks

    def died(self, agent: bytes, message: messages.SlaveDied) -> None:
        """The master hears of the end of a slave."""
        ran = self._ran.get((agent, message.slave), (message.running,))
        assert message.running in (0, *ran), f"task {message.running} is said to have run at a death, not {ran}"
