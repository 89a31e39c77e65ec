"""Agents and slaves of a master: records change their states as the table of transitions says."""

from __future__ import annotations

import pytest
from tests.master_state import Books, sid

from mwpy._core.master.members import SlaveEvent
from mwpy._values import records
from mwpy._values.causes import Cause
from mwpy._values.errors import InternalError
from mwpy._values.last_words import NO_WORDS
from mwpy._values.task import SlaveKind, SlaveState


@pytest.fixture
def books() -> Books:
    return Books()


def test_a_slave_is_idle_hungry_or_gone_as_its_records_say(books: Books) -> None:
    slave, members = books.slave(), books.state.members
    assert (list(members.idle), list(members.hungry)) == ([sid(0)], [])
    books.give(slave, 1)
    members.hungry[slave.sid] = slave
    assert list(members.idle) == []
    books.state.record(records.SlaveChanged(slave.sid, SlaveState.SHUTTING_DOWN, slave.kind))
    assert list(members.hungry) == []
    books.state.record(records.SlaveEnded(slave.sid, Cause.CRASH, "why", "", NO_WORDS))
    assert (slave.state, members.slaves, slave.agent.slaves) == (SlaveState.GONE, {}, {})


def test_a_slave_that_ends_without_notice_is_lost(books: Books) -> None:
    slave = books.slave()
    books.state.record(records.SlaveEnded(slave.sid, Cause.CRASH, "why", "", NO_WORDS))
    assert slave.state is SlaveState.LOST


def test_a_slave_that_was_never_ready_changes_nothing_when_it_ends(books: Books) -> None:
    books.slave()
    books.state.record(records.SlaveEnded(sid(7), Cause.CRASH, "why", "", NO_WORDS))
    assert list(books.state.members.slaves) == [sid(0)]


def test_a_state_that_no_event_leads_to_is_an_internal_error(books: Books) -> None:
    slave = books.slave()
    with pytest.raises(InternalError, match="SLAVE-0 is idle, which cannot drain"):
        books.state.change(slave, SlaveEvent.DRAIN)
    with pytest.raises(InternalError, match="SLAVE-0 is idle, which cannot become connecting"):
        books.state.record(records.SlaveChanged(slave.sid, SlaveState.CONNECTING, slave.kind))


def test_an_agent_that_leaves_announces_no_slaves(books: Books) -> None:
    agent, members = books.slave().agent, books.state.members
    agent.announced = 3
    assert members.coming() == 2
    books.state.record(records.AgentLeaving(agent.name, "evicted", Cause.EVICTED))
    assert (members.coming(), agent.leaving) == (0, "evicted")


@pytest.mark.parametrize(
    "record",
    [
        records.AgentLost("AGENT-0", "why", Cause.AGENT_LOST),
        records.AgentLeft("AGENT-0", "why"),
        records.PeerDropped("AGENT-0", "why"),
    ],
)
def test_an_agent_that_is_gone_is_known_by_neither_name_nor_connection(books: Books, record: records.Record) -> None:
    books.slave()
    books.slave()
    books.state.record(record)
    members = books.state.members
    assert (list(members.agents), list(members.peers)) == (["AGENT-1"], [b"AGENT-1"])


def test_names_are_never_used_twice(books: Books) -> None:
    slave = books.slave()
    books.state.record(records.SlaveEnded(slave.sid, Cause.CRASH, "why", "", NO_WORDS))
    books.state.record(records.AgentLost("AGENT-0", "why", Cause.AGENT_LOST))
    assert (books.state.members.next_agent, books.state.members.next_sid) == ("AGENT-1", sid(1))


def test_a_freed_slave_counts_as_unordered_and_gets_no_tasks_of_others(books: Books) -> None:
    freed, other, ordered = (books.slave(kind) for kind in (*[SlaveKind.INTERMINGLE] * 2, SlaveKind.ORDERED))
    freed.freed = True
    assert [slave.runs_unaddressed for slave in (freed, other, ordered)] == [False, True, False]
    assert (freed.kind_to_be, other.kind_to_be) == (SlaveKind.UNORDERED, SlaveKind.INTERMINGLE)


def test_an_inconsistent_list_of_slaves_fails_its_check(books: Books) -> None:
    slave = books.slave()
    books.state.check()
    del books.state.members.idle[slave.sid]
    with pytest.raises(AssertionError, match="SLAVE-0 is idle"):
        books.state.check()
