"""Kinds of slaves: how many of each are wanted, and which slave becomes what."""

from __future__ import annotations

import pytest
from tests.master_state import Books, sid
from tests.spans import ids_of

from mwpy._core.master.commands import AllocateSlaves, ExpectTasks
from mwpy._core.master.core import MasterCore, MasterSettings
from mwpy._core.master.handback import HandBack
from mwpy._core.master.kinds import SlaveKinds
from mwpy._values import records
from mwpy._values.causes import Cause
from mwpy._values.last_words import NO_WORDS
from mwpy._values.policy import TaskPolicy
from mwpy._values.records import TaskRange
from mwpy._values.task import SlaveKind, SlaveState

ORDERED, INTERMINGLE, UNORDERED = SlaveKind.ORDERED, SlaveKind.INTERMINGLE, SlaveKind.UNORDERED


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.fixture
def kinds(books: Books) -> SlaveKinds:
    return SlaveKinds(books.state, HandBack(books.state))


def test_ordered_slaves_are_needed_before_intermingle_ones(kinds: SlaveKinds) -> None:
    kinds.allocate(1, INTERMINGLE)
    kinds.allocate(2, ORDERED)
    assert [*kinds.vacancies()] == [ORDERED, ORDERED, INTERMINGLE]
    assert kinds.next_kind() is ORDERED
    kinds.deallocate(5, ORDERED)
    assert kinds.next_kind() is INTERMINGLE
    kinds.deallocate(1, INTERMINGLE)
    assert kinds.next_kind() is UNORDERED


def test_it_is_known_whether_the_algorithm_ever_asked_for_unordered_slaves(kinds: SlaveKinds) -> None:
    kinds.allocate(1, ORDERED)
    assert kinds.unordered_unasked
    kinds.deallocate(0, UNORDERED)
    assert not kinds.unordered_unasked


def test_idle_unordered_slaves_fill_vacancies_before_busy_ones(books: Books, kinds: SlaveKinds) -> None:
    busy, idle = books.slave(), books.slave()
    books.give(busy, 1)
    kinds.allocate(1, ORDERED)
    assert (idle.kind, busy.kind) == (ORDERED, UNORDERED)
    kinds.allocate(1, INTERMINGLE)
    assert busy.kind is INTERMINGLE
    kinds.allocate(1, ORDERED)  # no slave is left
    assert books.state.actions.connected == [idle.sid, busy.sid]
    assert kinds.count(UNORDERED) == 0


def test_a_slave_that_is_leaving_fills_no_vacancy(books: Books, kinds: SlaveKinds) -> None:
    slave = books.slave()
    books.state.record(records.SlaveChanged(slave.sid, SlaveState.SHUTTING_DOWN, UNORDERED))
    kinds.allocate(1, ORDERED)
    assert slave.kind is UNORDERED


def test_a_freed_slave_becomes_unordered_when_it_has_finished(books: Books, kinds: SlaveKinds) -> None:
    """Until then the slave counts as unordered, and another slave gets its place."""
    kinds.allocate(1, ORDERED)
    slave = books.slave(ORDERED)
    books.submit(2, policy=TaskPolicy(slave.sid))
    books.send(slave, 1)
    kinds.free(slave.sid)
    kinds.free(slave.sid)  # once is enough
    assert (slave.kind, slave.freed, kinds.wanted[ORDERED], kinds.count(UNORDERED)) == (ORDERED, True, 0, 1)
    books.state.record(records.TasksGivenUp(slave.sid, True, [TaskRange(1, 1, 1, 0, "max")], "why"))
    kinds.unload(slave)
    kinds.check()
    assert (slave.kind, slave.freed, slave.state) == (UNORDERED, False, SlaveState.IDLE)
    [unrunnable] = books.state.actions.unrunnable
    assert (unrunnable.task_id, unrunnable.reason) == (2, "SLAVE-0, to which it was addressed, is gone: it was freed")


def test_an_unordered_or_unknown_slave_cannot_be_freed(books: Books, kinds: SlaveKinds) -> None:
    slave = books.slave()
    before = books.taken()
    kinds.free(slave.sid)
    kinds.free(sid(9))
    assert before
    assert books.taken() == []


def test_a_busy_slave_with_fewer_tasks_is_hungry(books: Books, kinds: SlaveKinds) -> None:
    slave = books.slave()
    books.give(slave, 2)
    books.state.record(records.TasksReturned(slave.sid, [TaskRange(2, 1, 1, 0, "max")], "why"))
    kinds.unload(slave)
    assert list(books.state.members.hungry) == [slave.sid]
    assert slave.state is SlaveState.BUSY


def test_another_slave_takes_the_place_of_a_lost_one(books: Books, kinds: SlaveKinds) -> None:
    """Tasks for the lost slave run elsewhere if their policy says so."""
    kinds.allocate(1, ORDERED)
    lost, other = books.slave(ORDERED), books.slave()
    books.submit(1, policy=TaskPolicy(lost.sid, do_it_anyway=True))
    books.state.record(records.SlaveEnded(lost.sid, Cause.CRASH, "it died", "", NO_WORDS))
    kinds.lost(lost, "it died")
    assert other.kind is ORDERED
    assert books.state.actions.disconnected == [lost.sid]
    assert ids_of(books.state.jar.pending.queues[0]) == [1]


def test_a_slave_that_waits_to_be_unordered_without_need_fails_the_check(books: Books, kinds: SlaveKinds) -> None:
    slave = books.slave(ORDERED)
    kinds.check()
    slave.freed = True
    with pytest.raises(AssertionError, match="freed"):
        kinds.check()


def test_tasks_that_wait_outside_of_the_master_need_slaves_like_others() -> None:
    """As many as the algorithm wants, if it said how many these are."""
    core = MasterCore(MasterSettings("m", "g"))
    core.obey(ExpectTasks(5))
    assert (core.counts().slaves_wanted, core.counts().slaves_needed) == (5, 5)
    core.obey(AllocateSlaves(3, SlaveKind.UNORDERED))
    assert (core.counts().slaves_wanted, core.counts().slaves_needed) == (3, 3)
    core.obey(ExpectTasks(-5))
    assert (core.counts().slaves_wanted, core.counts().slaves_needed) == (3, 0)
