"""Tasks of a simulated computation leave states, and report. This checks from outside which state each attempt begins
with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

from msgspec import Struct, field

from mwpy._simulation.reference_checker import ReferenceChecker
from mwpy._simulation.world import World
from mwpy._transport.call_parts import split_resumed
from mwpy._transport.codec import Codec, loads_call, loads_state
from mwpy._values import groups, messages
from mwpy._values.ids import Buffer
from mwpy._values.messagepack import REFERRING, Pickled
from mwpy._values.records import TaskCheckpointed, TaskRange

__all__ = ["StateChecker", "StatesOfSlave"]

CODEC = Codec()

Progress = tuple[int, int, int]
"""A state: the task and the attempt that left it, and how far the task is."""


class StateChecker(Struct, eq=False):
    """Follows the states from their slaves to the next attempts."""

    cancelled: dict[int, None]
    """Tasks that must not be sent to a slave again. Nobody needs their states."""
    unheard: dict[bytes, None]
    """Connections that broke, or that the master does not listen to any more."""
    _arrived: dict[int, Progress] = field(default_factory=dict)
    """The newest state of each task that reached the master, from any of its attempts."""
    _newest: dict[tuple[int, int], Progress] = field(default_factory=dict)
    """The newest state of each task and attempt that reached the master."""
    _unkept: dict[int, list[Progress]] = field(default_factory=dict)
    """The states of each task that reached the master later than the last one that it kept."""
    _expected: dict[tuple[int, int], Progress | None] = field(default_factory=dict)
    """For each task and attempt: the state with which the attempt must begin."""
    _left: dict[tuple[bytes, int], Progress] = field(default_factory=dict)
    """The newest state that each slave left, by connection and number."""

    def left(self, peer: bytes, slave: int, state: Progress) -> None:
        """A slave sends a state to its agent."""
        self._left[peer, slave] = state

    def forget(self, peer: bytes, slave: int) -> None:
        """A slave begins another attempt, or has written nonsense into its stream, so that states are lost."""
        self._left.pop((peer, slave), None)

    def heard(self, peer: bytes, message: messages.Checkpoint, frames: Sequence[Buffer]) -> None:
        """A state reaches the master, perhaps a repeated one."""
        if peer in self.unheard:
            return
        state = _read(frames)
        task, attempt, number = state
        assert (task, attempt) == (message.task, message.attempt), f"the state {state} is said to be of another task"
        assert (task, attempt) in self._expected, f"{state} is of an attempt that this master never sent"
        before = self._newest.get((task, attempt)) or self._expected[task, attempt] or (task, 0, 0)
        assert state == before or number > before[2], f"task {task} went back from {before} to {state}"
        self._newest[task, attempt] = state
        self._arrived[task] = state
        self._unkept.setdefault(task, []).append(state)

    def died(self, peer: bytes, message: messages.SlaveDied) -> None:
        """The death of a slave reaches the master: the newest state of the task that it ran arrived before."""
        state = self._left.get((peer, message.slave))
        if state is None:
            return
        if message.running == state[0] and state[0] not in self.cancelled:
            arrived = self._newest.get(state[:2])
            assert arrived == state, f"the state {state} is lost: its slave is dead, and {arrived} has arrived"

    def recorded(self, record: TaskCheckpointed) -> None:
        """The master keeps a state."""
        state = _read(record.frames)
        assert state[:2] == (record.task.first, record.task.attempt), f"{record.task} has the state {state}"
        assert state in self._unkept.get(state[0], []), f"{state} is kept, but it did not arrive or is not new"
        while self._unkept[state[0]].pop(0) != state:
            pass

    def sent(self, tasks: Sequence[TaskRange]) -> None:
        """Tasks are sent to a slave."""
        for each in tasks:
            for task in range(each.first, each.first + each.count):
                self._expected[task, each.attempt] = self._arrived.get(task)

    def began(self, task: int, attempt: int, state: Progress | None) -> None:
        """A slave begins an attempt with a state, or with none."""
        expected = self._expected[task, attempt]
        assert state == expected, f"attempt {attempt} of task {task} begins with {state}, not with {expected}"


class StatesOfSlave(Struct, eq=False):
    """The states that the tasks of one slave get and leave, and their reports."""

    _world: World
    _checker: StateChecker
    _references: ReferenceChecker
    _peer: bytes
    _number: int
    _send_results: Callable[[], None]
    """Sends the results of earlier tasks to the agent."""
    _reply: Callable[[messages.Message, Sequence[Buffer]], None]
    """Sends a message to the agent."""
    _running: tuple[int, int] | None = None
    """The task and the attempt that runs and may leave states."""
    _reported: int = 0
    """How many reports its tasks have made."""
    _given: dict[tuple[int, int], dict[int, object]] = field(default_factory=dict)
    """The values that each task got, by task and attempt."""
    _restored: dict[tuple[int, int], Progress] = field(default_factory=dict)
    """The state that each task got, by task and attempt."""

    def hear(self, group: messages.Tasks, frames: Sequence[Buffer]) -> None:
        """Tasks arrive, some of them with states, and some with values to which they refer."""
        entries, buffers = groups.entries(group, frames)
        for named, entry, own in zip(groups.each_task(group), entries, buffers or repeat(()), strict=False):
            call, rest, left = split_resumed(entry, own)
            if type(call) is Pickled and call.kind == REFERRING:
                (numbers, *values), _ = loads_call(call, rest)
                self._given[named] = dict(zip(numbers, values, strict=True))
            else:
                assert not rest, f"task {named[0]} got buffers of another task"
            if left:
                self._restored[named] = _read(left)

    def begin(self, task: int, attempt: int, algorithm: int, seconds: float) -> None:
        """An attempt begins, and lasts some seconds. Tasks of some algorithms leave states."""
        self._running = task, attempt
        given = self._given.pop((task, attempt), None)
        if given is not None:
            self._references.saw(task, given)
        state = self._restored.pop((task, attempt), None)
        self._checker.forget(self._peer, self._number)
        self._checker.began(task, attempt, state)
        random = self._world.random
        for _ in range(random.choice((0, 0, 1, 3))):
            self._world.after(random.random() * seconds, partial(self._report, task, attempt))
        if algorithm % 3 or random.random() < 0.3:
            return
        number = 0 if state is None else state[2]
        moments = sorted(random.choice((0.5, random.random())) * seconds for _ in range(random.randint(1, 4)))
        for moment in moments:
            number += random.randint(1, 3)
            self._world.after(moment, partial(self._leave, (task, attempt, number)))

    def _report(self, task: int, attempt: int) -> None:
        """Report, unless the attempt has ended."""
        if self._running == (task, attempt):
            self._reported += 1
            values: dict[str, object] = {"task": task, "attempt": attempt, "number": self._reported}
            message = messages.Reported(self._number, task, attempt, 0.5)
            self._reply(message, [CODEC.dumps_report(values)])

    def stop(self) -> None:
        """The attempt has ended, or does nothing more."""
        self._running = None

    def _leave(self, state: Progress) -> None:
        if self._running != state[:2]:
            return
        entry, buffers = CODEC.dumps_state(state)
        self._checker.left(self._peer, self._number, state)
        self._send_results()
        self._reply(messages.Checkpoint(self._number, *state[:2]), [entry, *buffers])


def _read(frames: Sequence[Buffer]) -> Progress:
    state: Any = loads_state(frames)
    task, attempt, number = state
    return task, attempt, number
