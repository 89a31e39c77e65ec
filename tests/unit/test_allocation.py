"""The arithmetic of sending, with numbers that were worked out by hand.

A slave should hold 0.25 s of work. It counts as full with more than 0.125 s of work in at least two tasks.
"""

from __future__ import annotations

import pytest
from tests.driven import Driven
from tests.master_state import Books
from tests.spans import MAX, MIN, portion

from mwpy._core.master import dispatch
from mwpy._core.master.members import ConnectedSlave
from mwpy._values import messages
from mwpy._values.bounds import SlaveId
from mwpy._values.groups import ARGUMENTS, PackedCalls
from mwpy._values.policy import TaskPolicy
from mwpy._values.task import SlaveKind


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.fixture
def slave(books: Books) -> ConnectedSlave:
    return books.slave()


def room(books: Books, slave: ConnectedSlave, fixed: int | None = None, algorithm: int = 0) -> int:
    return dispatch.room(books.state.members, slave, algorithm, fixed)


@pytest.mark.parametrize(
    ("pace", "held", "expected"),
    [
        (None, 0, 1),  # unknown: one task
        (None, 1, 0),  # unknown, and one is running
        (0.01, 0, 25),  # 0.25 / 0.01
        (0.01, 10, 15),  # (0.25 - 0.1) / 0.01
        (0.01, 12, 13),  # 0.12 s of work is not full
        (0.01, 13, 0),  # 0.13 s of work is full
        (0.1, 0, 2),  # 0.25 / 0.1
        (0.1, 1, 1),  # (0.25 - 0.1) / 0.1
        (0.1, 2, 0),  # 0.2 s in two tasks is full
        (3.0, 0, 1),  # one task to run
        (3.0, 1, 1),  # and one to wait
        (3.0, 2, 0),
        (0.0001, 0, 1000),  # 2500 would fit into 0.25 s; a message has at most 1000
        (0.00001, 2501, 0),  # more than half of the most that a slave holds
    ],
)
def test_a_slave_has_room_for_a_quarter_of_a_second(
    books: Books, slave: ConnectedSlave, pace: float | None, held: int, expected: int
) -> None:
    if held:
        books.give(slave, held)
    if pace is not None:
        slave.pace[0] = pace
    assert room(books, slave) == expected
    assert dispatch.is_full(books.state.members, slave, None) == (expected == 0 and held >= 2)


def test_the_work_of_all_algorithms_counts(books: Books, slave: ConnectedSlave) -> None:
    """Three tasks of 0.02 s and two of 0.03 s are 0.12 s; so (0.25 - 0.12) / 0.02 = 6.5 more fit."""
    slave.pace.update({0: 0.02, 1: 0.03})
    books.give(slave, 3)
    books.give(slave, 2, MIN)
    assert dispatch.work_before(books.state.members, slave) == pytest.approx(0.12)
    assert room(books, slave) == 6


@pytest.mark.parametrize(("held", "expected"), [(0, 5), (4, 5), (5, 0), (9, 0)])
def test_a_fixed_group_is_sent_when_the_slave_holds_fewer_tasks(
    books: Books, slave: ConnectedSlave, held: int, expected: int
) -> None:
    """The pace of the tasks has no effect."""
    slave.pace[0] = 1000.0
    if held:
        books.give(slave, held)
    assert room(books, slave, fixed=5) == expected
    assert dispatch.is_full(books.state.members, slave, 5) == (not expected)


def test_the_fullest_slave_gives_tasks_back(books: Books) -> None:
    """The slaves have 0.3 s, 0.5 s, 0.4 s and 0.9 s of work. The last slave was already asked."""
    slaves = [books.slave() for _ in range(4)]
    books.state.members.pace[0] = 0.1
    for slave, count in zip(slaves, (3, 5, 4, 9), strict=True):
        books.give(slave, count)
    slaves[3].asked_back = True
    assert dispatch.fullest(books.state.members, 0.0) == (slaves[1], None)


def test_little_work_is_taken_back_only_from_a_slave_that_is_silent(books: Books, slave: ConnectedSlave) -> None:
    """Two tasks of 1 ms are not worth a round trip. After 0.1 s without a result, the running task is a long one."""
    slave.pace[0] = 0.001
    books.give(slave, 2)
    slave.last_heard = 7.0
    assert dispatch.fullest(books.state.members, 7.05) == (None, 7.1)
    assert dispatch.fullest(books.state.members, 7.1) == (slave, None)


def test_nothing_is_taken_back_from_a_slave_with_one_task_or_with_addressed_ones(books: Books) -> None:
    one, addressed = books.slave(), books.slave(SlaveKind.ORDERED)
    books.state.members.pace[0] = 1.0
    books.give(one, 1)
    books.submit(4, MAX, policy=TaskPolicy(SlaveId("SLAVE-1")))
    books.send(addressed, 4)
    assert addressed.held.count == 4
    assert dispatch.fullest(books.state.members, 100.0) == (None, None)


def test_tasks_are_taken_back_from_a_slave_that_retires_but_not_from_an_agent_that_leaves(books: Books) -> None:
    """A slave that retires runs the tasks that it holds. An agent that leaves returns them by itself."""
    retires, leaves = books.slave(), books.slave()
    books.state.members.pace[0] = 0.1
    for slave, count in ((retires, 3), (leaves, 9)):
        books.give(slave, count)
        books.core.admission.retire_slave(slave)
    leaves.agent.leaving = "evicted"
    assert dispatch.fullest(books.state.members, 0.0) == (retires, None)


def test_a_portion_is_sent_as_a_whole() -> None:
    """Also one that has more tasks than any other message."""
    master = Driven()
    master.join()
    master.core.state.members.pace[0] = 1e-5
    master.core.submit([portion(1, PackedCalls.of(ARGUMENTS, [*range(5000)]))])
    master.step()
    assert [send.message.counts for send in master.actions.sends if isinstance(send.message, messages.Tasks)] == [
        [5000]
    ]


def test_useful_slaves_are_one_for_each_task_that_can_go_elsewhere(books: Books) -> None:
    """Three tasks are pending. One slave runs one task and can give back four others. Another slave runs one task."""
    first, second, ordered = books.slave(), books.slave(), books.slave(SlaveKind.ORDERED)
    books.give(first, 5)
    books.give(second, 1)
    books.give(ordered, 1)
    books.submit(3)
    members = books.state.members
    assert dispatch.useful(members, 3, None) == 3 + (1 + 4) + 1
    assert dispatch.useful(members, 3, 2) == 2 + 1 + 1  # groups of two: two messages, and nothing is taken back
    first.gave_nothing_back = True
    assert dispatch.useful(members, 3, None) == 3 + 1 + 1
    first.gave_nothing_back, first.asked_back = False, True
    assert dispatch.useful(members, 3, None) == 3 + (1 + 4) + 1
