"""Isolation: which agents are reserved for suspects, and where each suspect runs."""

from __future__ import annotations

import pytest
from tests.master_state import Books
from tests.spans import MIN, ids_of

from mwpy._core.master.dispatch import Dispatch
from mwpy._core.master.handback import HandBack
from mwpy._core.master.isolation import Isolation
from mwpy._core.master.members import ConnectedSlave
from mwpy._core.master.shares import Shares
from mwpy._core.master.spans import LOST_AGENTS_ALLOWED
from mwpy._values import records
from mwpy._values.causes import Cause
from mwpy._values.ids import SlaveId, TaskId
from mwpy._values.last_words import NO_WORDS
from mwpy._values.messages import Results
from mwpy._values.policy import TaskPolicy
from mwpy._values.records import AlgorithmDefined, Charge, TaskRange
from mwpy._values.task import SlaveKind, SlaveState


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.fixture
def isolation(books: Books) -> Isolation:
    return Isolation(books.state)


@pytest.fixture
def dispatch(books: Books, isolation: Isolation) -> Dispatch:
    others = books.definitions(), books.verification(), Shares(books.state)
    return Dispatch(books.state, HandBack(books.state), isolation, *others)


def suspect(books: Books, algorithm: AlgorithmDefined | None = None) -> int:
    """Add a pending task that was at three agents when they vanished, before all other suspects."""
    state = books.state
    [task] = books.submit(1, algorithm) if algorithm else books.submit(1)
    number = algorithm.definition.number if algorithm else 0
    for attempt in range(1, LOST_AGENTS_ALLOWED + 1):
        sid = SlaveId(f"LOST-{task}-{attempt}")
        state.record(records.AgentConnected(sid, "here", "host", 1, "", 1, "3.11"))
        state.record(records.SlaveConnected(sid, sid, "here", SlaveKind.UNORDERED, 1))
        tasks = [TaskRange(TaskId(task), 1, attempt, number, "")]
        state.record(records.TasksAllocated(sid, tasks))
        state.record(records.AgentLost(sid, "gone", Cause.AGENT_LOST))
        state.record(records.SlaveEnded(sid, Cause.CRASH, "gone", "", NO_WORDS))
        state.record(records.TasksReturned(sid, tasks, "gone", (Charge(sid, Cause.AGENT_LOST, "gone"),)))
    return task


def held(*slaves: ConnectedSlave) -> list[list[int]]:
    return [ids_of(slave.held.spans) for slave in slaves]


def finish(books: Books, slave: ConnectedSlave) -> None:
    """A slave finishes all its tasks."""
    for span in list(slave.held.spans):
        results = Results(slave.number, [span.first], [span.count], [span.attempt], [0.1] * span.count, [])
        books.state.record(records.ResultsReceived(slave.sid, results, []))
    books.state.record(records.SlaveChanged(slave.sid, SlaveState.IDLE, slave.kind))


def decide(books: Books, dispatch: Dispatch, isolation: Isolation) -> None:
    dispatch.decide(0.0)
    isolation.check()
    books.state.check()


def test_a_suspect_runs_alone_on_an_idle_agent(books: Books, dispatch: Dispatch, isolation: Isolation) -> None:
    """The second slave of this agent gets no task until the suspect has ended, and also no task that is addressed."""
    number = suspect(books)
    first = books.slave()
    second = books.slave(SlaveKind.INTERMINGLE, agent=first.agent.name)
    books.submit(1)
    books.submit(1, policy=TaskPolicy(second.sid))
    decide(books, dispatch, isolation)
    assert held(first, second) == [[number], []]
    assert first.agent.reserved
    finish(books, first)
    decide(books, dispatch, isolation)
    assert held(first, second) == [[number + 1], [number + 2]]
    assert not first.agent.reserved


def test_a_fresh_agent_runs_another_task_before_a_suspect(
    books: Books, dispatch: Dispatch, isolation: Isolation
) -> None:
    """If it vanishes, this says little about the suspect. If no other task waits for it, it gets the suspect."""
    number = suspect(books)
    fresh = books.slave(is_fresh=True)
    [other] = books.submit(1)
    decide(books, dispatch, isolation)
    assert held(fresh) == [[other]]
    another = books.slave(is_fresh=True)
    decide(books, dispatch, isolation)
    assert held(fresh, another) == [[other], [number]]


def test_a_suspect_waits_for_a_busy_agent_that_has_finished_tasks_rather_than_use_a_fresh_one(
    books: Books, dispatch: Dispatch, isolation: Isolation
) -> None:
    busy, fresh = books.slave(), books.slave(is_fresh=True)
    books.give(busy, 1)
    suspect(books)
    decide(books, dispatch, isolation)
    assert held(fresh) == [[]]
    assert busy.agent.reserved


def test_idle_agents_are_used_at_once_and_one_busy_agent_is_emptied(
    books: Books, dispatch: Dispatch, isolation: Isolation
) -> None:
    """The agent with the fewest busy slaves is emptied. The others get more tasks."""
    books.state.members.pace[0] = 0.1
    large, small, idle = books.slave(), books.slave(), books.slave()
    for slave in (large, books.slave(agent=large.agent.name), small):
        books.give(slave, 1)
    fresh = books.slave(agent=large.agent.name)
    numbers = [suspect(books) for _ in range(3)]
    [other] = books.submit(1)
    decide(books, dispatch, isolation)
    assert held(idle) == [[numbers[0]]]
    assert [slave.agent.reserved for slave in (large, small, idle)] == [False, True, True]
    assert held(fresh) == [[other]]
    finish(books, small)
    decide(books, dispatch, isolation)
    assert held(small) == [[numbers[1]]]
    assert [slave.agent.reserved for slave in (large, small, idle)] == [True, True, True]


def test_an_agent_that_is_emptied_is_kept_unless_another_is_less_busy(
    books: Books, dispatch: Dispatch, isolation: Isolation
) -> None:
    first, second = books.slave(), books.slave()
    books.give(first, 1)
    suspect(books)
    books.state.record(records.AlgorithmRefused(first.agent.name, "max", "no module", 0))
    books.give(second, 1, MIN)
    decide(books, dispatch, isolation)
    assert [agent.name for agent in isolation.reserved] == [second.agent.name]
    first.refused.clear()
    decide(books, dispatch, isolation)
    assert [agent.name for agent in isolation.reserved] == [second.agent.name]
    finish(books, first)
    decide(books, dispatch, isolation)
    assert [agent.name for agent in isolation.reserved] == [first.agent.name]


def test_only_agents_that_can_run_a_suspect_are_reserved(
    books: Books, dispatch: Dispatch, isolation: Isolation
) -> None:
    """A refusing agent, an ordered slave and a leaving agent do not count. A suspect of another algorithm can run."""
    refusing, ordered, leaving = books.slave(), books.slave(SlaveKind.ORDERED), books.slave()
    books.state.record(records.AlgorithmRefused(refusing.agent.name, "max", "no module", 0))
    books.state.record(records.SlaveChanged(leaving.sid, SlaveState.SHUTTING_DOWN, leaving.kind))
    suspect(books)
    other = suspect(books, MIN)
    decide(books, dispatch, isolation)
    assert held(refusing, ordered, leaving) == [[other], [], []]


def test_while_one_agent_is_emptied_an_idle_one_runs_suspects_of_another_algorithm(
    books: Books, dispatch: Dispatch, isolation: Isolation
) -> None:
    busy, idle = books.slave(), books.slave()
    books.give(busy, 1)
    books.state.record(records.AlgorithmRefused(idle.agent.name, "max", "no module", 0))
    suspect(books)
    others = [suspect(books, MIN) for _ in range(2)]
    decide(books, dispatch, isolation)
    assert (held(idle), busy.agent.reserved) == ([others[:1]], True)


def test_an_agent_that_is_lost_while_it_is_reserved_is_forgotten(
    books: Books, dispatch: Dispatch, isolation: Isolation
) -> None:
    slave = books.slave()
    books.give(slave, 1)
    suspect(books)
    decide(books, dispatch, isolation)
    assert isolation.reserved == [slave.agent]
    books.state.record(records.AgentLost(slave.agent.name, "gone", Cause.AGENT_LOST))
    books.state.record(records.SlaveEnded(slave.sid, Cause.CRASH, "gone", "", NO_WORDS))
    books.state.record(records.TasksReturned(slave.sid, [slave.held.spans[0].whole], "gone"))
    decide(books, dispatch, isolation)
    assert isolation.reserved == []


def test_a_suspect_that_is_not_alone_and_a_reservation_for_nothing_fail_the_check(
    books: Books, dispatch: Dispatch, isolation: Isolation
) -> None:
    suspect(books)
    slave = books.slave()
    decide(books, dispatch, isolation)
    books.give(books.slave(agent=slave.agent.name), 1)
    with pytest.raises(AssertionError, match="a suspect is not alone on AGENT-3"):
        isolation.check()
    slave.agent.reserved = False
    with pytest.raises(AssertionError, match="AGENT-3 runs a suspect and is not reserved"):
        isolation.check()
    other = books.slave()
    other.agent.reserved = slave.agent.reserved = True
    finish(books, slave)
    with pytest.raises(AssertionError, match="AGENT-4 is reserved for nothing"):
        isolation.check()
