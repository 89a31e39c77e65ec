"""Tasks whose algorithm all slaves refuse: a master that no other slave can join hands them back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attrs import define, field
from tests.spans import MAX, MIN, held_by, span

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.core import MasterCore
from mwpy._core.master.state import Event, MasterSettings, Received, Vanished
from mwpy._values import messages
from mwpy._values.causes import Cause
from mwpy._values.last_words import LastWords
from mwpy._values.messages import LoadFailure
from mwpy._values.policy import TaskPolicy

WHY = "no module app: install it"


@define
class _Master:
    """A master that only slaves on its machine can join, and one agent with two slaves."""

    core: MasterCore = field(factory=lambda: MasterCore(MasterSettings("m", "g", only_here=True)))
    unrunnable: list[tuple[int, str]] = field(factory=list)
    """The unrunnable tasks: the id and the reason of each."""

    def __attrs_post_init__(self) -> None:
        for algorithm in (MAX, MIN):
            self.core.definitions.add(Defined(algorithm))
        self.hear(messages.Hello("m", "g", "here", 1, "3.11", 2, session="s", returns_s=100.0))

    def hear(self, message: messages.Message, peer: bytes = b"a") -> None:
        self.handle(Received(peer, "here", message, ()))

    def handle(self, event: Event) -> None:
        self.core.handle(event, 1.0)
        self.decide()

    def decide(self) -> None:
        self.core.decide(1.0)
        self.core.check()
        self.unrunnable += [(task.task_id, task.reason) for task in self.core.take_actions().unrunnable]

    def ready(self, *slaves: int) -> None:
        for number in slaves:
            self.hear(messages.SlaveReady(number))

    def submit(self, first: int, count: int = 1, expected_s: float | None = None) -> None:
        self.core.submit([span(first, MAX, count, policy=TaskPolicy(seconds_expected=expected_s))])
        self.decide()

    def refuse(self, slave: int, failure: LoadFailure) -> None:
        """A slave gives back all tasks that it holds, because it cannot run their algorithm."""
        held = self.core.state.members.peers[b"a"].slaves[slave].held.spans
        tasks, counts = [int(each.first) for each in held], [each.count for each in held]
        self.hear(messages.AlgorithmFailed(slave, 0, WHY, tasks, counts, [each.attempt for each in held], failure))

    @property
    def num_waiting(self) -> int:
        return self.core.state.jar.runnable


@pytest.fixture
def master() -> _Master:
    return _Master()


def test_tasks_that_all_slaves_refuse_are_unrunnable_if_no_other_slave_can_join(master: _Master) -> None:
    """So are all others of the algorithm, and those that are submitted later. Other algorithms run."""
    master.ready(1, 2)
    master.submit(1, 5)
    master.submit(6, 1, expected_s=2.0)
    master.refuse(1, LoadFailure.SURE)
    master.refuse(2, LoadFailure.SURE)
    reason = f"no slave can run it, and only slaves on this machine can join: {WHY}"
    assert sorted(master.unrunnable) == [(number, reason) for number in range(1, 7)]
    master.submit(7)
    assert master.unrunnable[6:] == [(7, reason)]
    master.core.submit([span(8, MIN)])
    master.decide()
    assert held_by(master.core, "SLAVE-0") == [8]


def test_tasks_that_all_slaves_refuse_wait_if_others_can_join() -> None:
    master = _Master(MasterCore(MasterSettings("m", "g")))
    master.ready(1, 2)
    master.submit(1)
    master.refuse(1, LoadFailure.SURE)
    assert (master.unrunnable, master.num_waiting) == ([], 1)


def test_a_task_waits_until_each_slave_has_refused_it_for_itself(master: _Master) -> None:
    """A slave that is not ready yet was not asked, and so was not the one that replaces another slave."""
    master.ready(1)
    master.submit(1)
    master.refuse(1, LoadFailure.REPEATED)
    assert master.unrunnable == []
    master.ready(2)
    assert held_by(master.core, "SLAVE-1") == [1]
    master.hear(messages.SlaveRetiring(1))
    master.refuse(2, LoadFailure.REPEATED)
    assert master.unrunnable == []
    master.hear(messages.SlaveDied(1, 0, Cause.SCALED_DOWN, "it is replaced", LastWords()))
    assert master.unrunnable == []
    master.ready(3)
    assert held_by(master.core, "SLAVE-2") == [1]
    master.refuse(3, LoadFailure.REPEATED)
    assert [number for number, _ in master.unrunnable] == [1]


@pytest.mark.parametrize(
    "change",
    [
        lambda master: master.hear(messages.Leaving("it has a limit", Cause.CANCELLED)),
        lambda master: master.handle(Vanished(b"a", 31.0)),
        lambda master: master.hear(messages.Hello("m", "g", "here", 2, "3.11", 1), b"b"),
    ],
    ids=["its agent leaves", "its agent is away", "another agent has come"],
)
def test_a_task_waits_while_another_agent_may_run_it(master: _Master, change: Callable[[_Master], None]) -> None:
    master.ready(1, 2)
    master.submit(1)
    change(master)
    master.refuse(1, LoadFailure.SURE)
    master.submit(2)
    assert (master.unrunnable, master.num_waiting) == ([], 2)
