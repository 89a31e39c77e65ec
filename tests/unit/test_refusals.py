"""Tasks whose algorithm all slaves refuse: a master that no other slave can join hands them back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.driven import Driven
from tests.spans import MIN

from mwpy._core.master.state import Actions, Command, Event
from mwpy._values import messages
from mwpy._values.causes import Cause
from mwpy._values.connections import Vanished
from mwpy._values.last_words import LastWords
from mwpy._values.messages import LoadFailure
from mwpy._values.policy import TaskPolicy

WHY = "no module app: install it"


class Master(Driven):
    """A master that only slaves on its machine can join, and one agent with two slaves that are not ready."""

    def __init__(self, *, only_here: bool = True) -> None:
        super().__init__(only_here=only_here)
        self.unrunnable: list[tuple[int, str]] = []
        """The unrunnable tasks: the id and the reason of each."""
        self.receive(messages.Hello("m", "g", "here", 1, "3.11", 2, session="s", returns_s=100.0))

    def step(self, event: Event | Command | None = None) -> Actions:
        actions = super().step(event)
        self.unrunnable += [(task.task_id, task.reason) for task in actions.unrunnable]
        return actions

    def ready(self, *slaves: int) -> None:
        for number in slaves:
            self.receive(messages.SlaveReady(number))

    def refuse(self, slave: int, failure: LoadFailure) -> None:
        """A slave gives back all tasks that it holds, because it cannot run their algorithm."""
        held = self.core.state.members.peers[b"a"].slaves[slave].held.spans
        tasks, counts = [int(each.first) for each in held], [each.count for each in held]
        self.receive(messages.AlgorithmFailed(slave, 0, WHY, tasks, counts, [each.attempt for each in held], failure))

    @property
    def num_waiting(self) -> int:
        return self.core.state.jar.runnable


@pytest.fixture
def master() -> Master:
    return Master()


def test_tasks_that_all_slaves_refuse_are_unrunnable_if_no_other_slave_can_join(master: Master) -> None:
    """So are all others of the algorithm, and those that are submitted later. Other algorithms run."""
    master.ready(1, 2)
    master.submit(5)
    master.submit(policy=TaskPolicy(seconds_expected=2.0))
    master.refuse(1, LoadFailure.SURE)
    master.refuse(2, LoadFailure.SURE)
    reason = f"no slave can run it, and only slaves on this machine can join: {WHY}"
    assert sorted(master.unrunnable) == [(number, reason) for number in range(1, 7)]
    master.submit()
    assert master.unrunnable[6:] == [(7, reason)]
    master.submit(algorithm=MIN)
    assert master.held() == [8]


def test_tasks_that_all_slaves_refuse_wait_if_others_can_join() -> None:
    master = Master(only_here=False)
    master.ready(1, 2)
    master.submit()
    master.refuse(1, LoadFailure.SURE)
    assert (master.unrunnable, master.num_waiting) == ([], 1)


def test_a_task_waits_until_each_slave_has_refused_it_for_itself(master: Master) -> None:
    """A slave that is not ready yet was not asked, and so was not the one that replaces another slave."""
    master.ready(1)
    master.submit()
    master.refuse(1, LoadFailure.REPEATED)
    assert master.unrunnable == []
    master.ready(2)
    assert master.held("SLAVE-1") == [1]
    master.receive(messages.SlaveDied(1, 0, Cause.SCALED_DOWN, "it is replaced", LastWords()))
    master.refuse(2, LoadFailure.REPEATED)
    assert master.unrunnable == []
    master.ready(3)
    assert master.held("SLAVE-2") == [1]
    master.refuse(3, LoadFailure.REPEATED)
    assert [number for number, _ in master.unrunnable] == [1]


@pytest.mark.parametrize(
    "change",
    [
        lambda master: master.receive(messages.Leaving("it has a limit", Cause.CANCELLED)),
        lambda master: master.step(Vanished(b"a", 31.0)),
        lambda master: master.receive(messages.Hello("m", "g", "here", 2, "3.11", 1), peer=b"b"),
    ],
    ids=["its agent leaves", "its agent is away", "another agent has come"],
)
def test_a_task_waits_while_another_agent_may_run_it(master: Master, change: Callable[[Master], None]) -> None:
    master.ready(1, 2)
    master.submit()
    change(master)
    master.refuse(1, LoadFailure.SURE)
    master.submit()
    assert (master.unrunnable, master.num_waiting) == ([], 2)
