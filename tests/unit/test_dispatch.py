"""Dispatch: which messages a decision sends."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.master_state import Books
from tests.spans import MIN, ids_of

from mwpy._core.master import allocation
from mwpy._core.master.dispatch import Dispatch
from mwpy._core.master.handback import HandBack
from mwpy._core.master.isolation import Isolation
from mwpy._core.master.members import ConnectedSlave
from mwpy._core.master.shares import Shares
from mwpy._values import messages, records
from mwpy._values.policy import Limits, TaskPolicy
from mwpy._values.task import SlaveKind, SlaveState


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.fixture
def dispatch(books: Books) -> Dispatch:
    others = books.definitions(), books.verification(), Shares(books.state)
    return Dispatch(books.state, HandBack(books.state), Isolation(books.state), *others)


def held(*slaves: ConnectedSlave) -> list[list[int]]:
    return [ids_of(slave.held.spans) for slave in slaves]


def sent(books: Books) -> list[messages.Message]:
    books.state.check()
    return [send.message for send in books.state.take_actions().sends]


def test_idle_slaves_divide_the_pending_tasks(books: Books, dispatch: Dispatch) -> None:
    """Each of three slaves gets a third of the remaining tasks, rounded up. Then the busy slaves get the rest."""
    slaves = [books.slave() for _ in range(3)]
    books.state.members.pace[0] = 0.001
    books.submit(7)
    dispatch.decide(0.0)
    assert held(*slaves) == [[1, 2, 3, 7], [4, 5], [6]]
    assert {slave.state for slave in slaves} == {SlaveState.BUSY}


def test_few_short_tasks_are_not_spread_over_busy_slaves(books: Books, dispatch: Dispatch) -> None:
    """A message costs more than these tasks. The busy slaves take turns."""
    slaves = [books.slave() for _ in range(3)]
    books.state.members.pace[0] = allocation.LEAST_S / 10
    books.submit(6)
    dispatch.decide(0.0)
    assert held(*slaves) == [[1, 2], [3, 4], [5, 6]]
    books.submit(15)
    dispatch.decide(0.0)
    books.submit(5)
    dispatch.decide(0.0)
    assert [len(each) for each in held(*slaves)] == [12, 7, 7]


def test_few_short_tasks_go_to_the_idle_slaves(books: Books, dispatch: Dispatch) -> None:
    """They share them. With longer tasks, the busy slave has a share, too."""
    busy = books.slave()
    books.state.members.pace.update({0: allocation.LEAST_S / 10, 1: allocation.LEAST_S})
    books.submit(1)
    dispatch.decide(0.0)
    idle = [books.slave() for _ in range(2)]
    books.submit(6)
    dispatch.decide(0.0)
    assert held(busy, *idle) == [[1], [2, 3, 4], [5, 6, 7]]
    idle = [books.slave() for _ in range(2)]
    books.submit(6, MIN)
    dispatch.decide(0.0)
    assert [len(each) for each in held(*idle)] == [2, 1]


def test_a_definition_goes_before_the_first_task_of_its_algorithm(books: Books, dispatch: Dispatch) -> None:
    slave = books.slave()
    books.submit(1)
    dispatch.decide(0.0)
    first, second = sent(books)
    assert isinstance(first, messages.Algorithms)
    assert [definition.name for definition in first.definitions] == ["max"]
    assert second == messages.Tasks(slave.number, [1], [1], [1], [0])
    books.state.members.pace[0] = 0.001
    books.submit(1)
    dispatch.decide(0.0)
    assert [type(message) for message in sent(books)] == [messages.Tasks]


def test_the_limits_of_tasks_travel_with_them(books: Books, dispatch: Dispatch) -> None:
    """A group in which no task has a limit has no column of limits."""
    books.slave()
    books.state.members.pace[0] = 0.001
    books.submit(2)
    dispatch.decide(0.0)
    books.submit(1, policy=TaskPolicy(seconds_max=2.5))
    books.submit(1)
    dispatch.decide(0.0)
    groups = [message for message in sent(books) if isinstance(message, messages.Tasks)]
    assert [group.limits for group in groups] == [[], [Limits(2.5), None]]


def test_algorithms_take_turns(books: Books, dispatch: Dispatch) -> None:
    """While no durations are known, each slave gets one task, of the algorithm that has waited longest."""
    slaves = [books.slave() for _ in range(3)]
    books.submit(2)
    books.submit(2, MIN)
    dispatch.decide(0.0)
    assert held(*slaves) == [[1], [3], [2]]


def test_addressed_tasks_go_to_their_slave_in_order(books: Books, dispatch: Dispatch) -> None:
    ordered, other = books.slave(SlaveKind.ORDERED), books.slave()
    books.state.members.pace[0] = 0.001
    books.submit(2, policy=TaskPolicy(ordered.sid))
    books.submit(1)
    books.submit(1, policy=TaskPolicy(ordered.sid))
    dispatch.decide(0.0)
    assert held(ordered, other) == [[1, 2, 4], [3]]


def test_an_addressed_task_that_its_slave_cannot_run_is_handed_back(books: Books, dispatch: Dispatch) -> None:
    slave = books.slave(SlaveKind.ORDERED)
    books.state.record(records.AlgorithmRefused("AGENT-0", "max", "no module", 0))
    books.submit(1, policy=TaskPolicy(slave.sid))
    dispatch.decide(0.0)
    [unrunnable] = books.state.actions.unrunnable
    assert unrunnable.reason == "SLAVE-0, to which it was addressed, cannot run it: no module"


def test_a_fixed_group_is_sent_whole(books: Books, dispatch: Dispatch) -> None:
    books.state.settings = replace(books.state.settings, task_group=3)
    slaves = [books.slave() for _ in range(2)]
    books.submit(4)
    dispatch.decide(0.0)
    assert held(*slaves) == [[1, 2, 3], [4]]


def test_half_of_the_fullest_slaves_tasks_are_asked_back_for_an_idle_one(books: Books, dispatch: Dispatch) -> None:
    """A slave is not asked again before it has answered."""
    full, _ = books.slave(), books.slave()
    books.state.members.pace[0] = 0.05
    books.give(full, 5)
    dispatch.decide(0.0)
    assert sent(books) == [messages.Revoke(full.number, 2)]
    dispatch.decide(0.0)
    assert sent(books) == []


def test_a_slave_that_is_asked_for_tasks_gets_no_addressed_one_before_it_answers(
    books: Books, dispatch: Dispatch
) -> None:
    """It gives its last tasks back. Otherwise an addressed task could come back, and run after the next one."""
    slave, _ = books.slave(), books.slave()
    books.state.members.pace[0] = 0.05
    books.give(slave, 5)
    dispatch.decide(0.0)
    assert slave.asked_back
    books.state.members.pace[0] = 0.001
    books.submit(1, policy=TaskPolicy(slave.sid))
    dispatch.decide(0.0)
    assert (held(slave), books.state.jar.pending.count) == ([[1, 2, 3, 4, 5]], 1)
    slave.asked_back = False
    dispatch.decide(0.0)
    assert held(slave) == [[1, 2, 3, 4, 5, 6]]


def test_it_is_known_when_a_quick_slave_is_worth_another_look(books: Books, dispatch: Dispatch) -> None:
    full, _ = books.slave(), books.slave()
    books.state.members.pace[0] = 0.001
    books.give(full, 2)
    full.last_heard = 5.0
    dispatch.decide(5.0)
    assert (sent(books), dispatch.look_again) == ([], 5.0 + allocation.SILENT_S)


def test_a_task_that_goes_before_its_definition_fails_the_check(books: Books, dispatch: Dispatch) -> None:
    slave = books.slave()
    dispatch.definitions.check()
    books.give(slave, 1)
    with pytest.raises(AssertionError, match=r"SLAVE-0 holds tasks of algorithms \[0\], which were not sent"):
        dispatch.definitions.check()
