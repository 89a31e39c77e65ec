"""Tasks go only to agents that have enough time left for them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.master_state import Books
from tests.spans import MAX, MIN, ids_of, span

from mwpy._core.master import allocation
from mwpy._core.master.algorithms import Defined
from mwpy._core.master.core import MasterCore, MasterSettings
from mwpy._core.master.dispatch import Dispatch
from mwpy._core.master.events import Received
from mwpy._core.master.handback import HandBack
from mwpy._core.master.isolation import Isolation
from mwpy._core.master.members import ConnectedSlave
from mwpy._core.master.shares import Shares
from mwpy._transport.codec import Codec
from mwpy._values import groups, messages, records
from mwpy._values.errors import UsageError
from mwpy._values.policy import TaskPolicy
from mwpy._values.task import SlaveKind, SlaveState

TAKES_60 = TaskPolicy(seconds_expected=60.0)


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.fixture
def dispatch(books: Books) -> Dispatch:
    others = books.definitions(), books.verification(), Shares(books.state)
    return Dispatch(books.state, HandBack(books.state), Isolation(books.state), *others)


def ending(books: Books, ends_at: float, kind: SlaveKind = SlaveKind.UNORDERED) -> ConnectedSlave:
    """A slave of a new agent, whose time is over at this moment."""
    slave = books.slave(kind)
    slave.agent.ends_at = ends_at
    return slave


def succeed(books: Books, algorithm: int, seconds: float) -> None:
    """Tasks of an algorithm have taken this time on average."""
    known = books.state.jar.algorithms.defined[algorithm]
    known.succeeded, known.succeeded_s = 2, 2 * seconds


def held(*slaves: ConnectedSlave) -> list[list[int]]:
    return [ids_of(slave.held.spans) for slave in slaves]


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(60, 60.0), (0.3, 0.3), (61.2, 62.0), (101, 110.0), (0.0101, 0.011), (1e9, 1e9), (None, None)],
)
def test_an_expectation_is_rounded_up_to_two_digits(given: float | None, seconds: float | None) -> None:
    assert TaskPolicy.of(seconds_expected=given).seconds_expected == seconds


def test_an_expectation_is_a_number_of_seconds() -> None:
    with pytest.raises(UsageError, match="seconds_expected='1 h': give a number of seconds greater than 0"):
        TaskPolicy.of(seconds_expected="1 h")  # type: ignore[arg-type]


def test_a_task_waits_for_an_agent_with_enough_time(books: Books, dispatch: Dispatch) -> None:
    """Agents without a known end get every task."""
    short = ending(books, 159.9)
    books.submit(2, policy=TAKES_60)
    dispatch.decide(100.0)
    assert held(short) == [[]]
    long, endless = ending(books, 160.0), books.slave()
    dispatch.decide(100.0)
    assert held(short, long, endless) == [[], [1], [2]]


def test_shorter_tasks_pass_a_task_that_is_too_long(books: Books, dispatch: Dispatch) -> None:
    slave = ending(books, 130.0)
    books.submit(1, policy=TAKES_60)
    books.submit(1, policy=TaskPolicy(seconds_expected=10.0))
    dispatch.decide(100.0)
    assert held(slave) == [[2]]
    assert list(books.state.jar.pending.queues) == [(0, 60.0)]
    books.state.check()


def test_without_an_expectation_the_mean_of_the_algorithm_counts(books: Books, dispatch: Dispatch) -> None:
    slave = ending(books, 130.0)
    books.submit(1)
    books.submit(1, MIN)
    succeed(books, 0, 30.1)
    dispatch.decide(100.0)
    assert held(slave) == [[2]]


def test_an_expectation_overrides_the_mean(books: Books, dispatch: Dispatch) -> None:
    slave = ending(books, 130.0)
    books.submit(1, policy=TaskPolicy(seconds_expected=10.0))
    succeed(books, 0, 3000.0)
    dispatch.decide(100.0)
    assert held(slave) == [[1]]


def test_tasks_that_leave_state_are_not_held_back(books: Books, dispatch: Dispatch) -> None:
    slave = ending(books, 101.0)
    books.submit(1, policy=TAKES_60)
    books.state.jar.algorithms.defined[0].leaves_state = True
    dispatch.decide(100.0)
    assert held(slave) == [[1]]


def test_the_tasks_that_a_slave_holds_need_time_too(books: Books, dispatch: Dispatch) -> None:
    """A slave gets as many tasks as can finish. Of those that it holds, tasks of unknown duration count as zero."""
    slave = ending(books, 100.5)
    books.state.members.pace[0] = 0.01
    books.submit(9, policy=TaskPolicy(seconds_expected=0.2))
    dispatch.decide(100.0)
    assert held(slave) == [[1, 2]]
    assert allocation.most_in_time(slave, books.state.jar.pending.queues[0, 0.2][0], 100.0) == 0


def test_a_suspect_waits_for_an_agent_with_enough_time(books: Books) -> None:
    """An agent with too little time is not reserved for it."""
    isolation = Isolation(books.state)
    short = ending(books, 130.0)
    books.submit(1, policy=TAKES_60)
    queue = books.state.jar.pending.queues.pop((0, 60.0))
    books.state.jar.pending.suspects[0, 60.0] = queue
    assert (isolation.places(100.0), short.agent.reserved) == ([], False)
    long = ending(books, 200.0)
    assert isolation.places(100.0) == [(long, (0, 60.0))]


def test_an_addressed_task_is_handed_back_if_its_slave_has_too_little_time(books: Books, dispatch: Dispatch) -> None:
    """The mean of the algorithm is only a guess, and ends no task."""
    slave = ending(books, 130.0, SlaveKind.ORDERED)
    succeed(books, 1, 3000.0)
    books.submit(1, policy=TaskPolicy(slave.sid, seconds_expected=60.0))
    books.submit(1, MIN, policy=TaskPolicy(slave.sid))
    dispatch.decide(100.0)
    [unrunnable] = books.state.actions.unrunnable
    assert unrunnable.reason == "SLAVE-0, to which it was addressed, has 30 s left, and it takes 60 s"
    assert held(slave) == [[2]]


def test_an_addressed_task_waits_behind_another_one_until_it_is_certain(books: Books, dispatch: Dispatch) -> None:
    slave = ending(books, 200.0, SlaveKind.ORDERED)
    books.state.members.pace[0] = 0.01
    books.submit(2, policy=TaskPolicy(slave.sid, seconds_expected=60.0))
    dispatch.decide(100.0)
    assert (held(slave), books.state.actions.unrunnable) == ([[1]], [])


def test_an_addressed_task_is_sent_alone_if_the_next_one_may_take_too_long(books: Books, dispatch: Dispatch) -> None:
    slave = ending(books, 130.0, SlaveKind.ORDERED)
    books.state.members.pace[0] = 0.01
    books.submit(1, policy=TaskPolicy(slave.sid))
    books.submit(1, policy=TaskPolicy(slave.sid, seconds_expected=60.0))
    dispatch.decide(100.0)
    assert (held(slave), [task.task_id for task in books.state.actions.unrunnable]) == ([[1]], [2])


def test_no_task_is_taken_back_for_a_slave_that_has_no_time_for_it(books: Books, dispatch: Dispatch) -> None:
    full = books.slave()
    books.state.members.pace[0] = 0.05
    books.submit(5, policy=TAKES_60)
    queue = books.state.jar.pending.queues[0, 60.0]
    books.state.record(records.TasksAllocated(full.sid, books.state.jar.pending.heads(queue, 5, 1000)))
    books.state.record(records.SlaveChanged(full.sid, SlaveState.BUSY, full.kind))
    books.state.take_actions()
    short = ending(books, 130.0)
    dispatch.decide(100.0)
    assert books.state.take_actions().sends == []
    short.agent.ends_at = 160.0
    dispatch.decide(100.0)
    assert [send.message for send in books.state.take_actions().sends] == [messages.Revoke(full.number, 2)]


def connect(core: MasterCore, slaves: int, seconds_left: float | None, peer: bytes = b"a") -> None:
    hello = messages.Hello("m", "g", "node", 1, "3.11", slaves, seconds_left=seconds_left)
    core.handle(Received(peer, "here", hello, ()), 100.0)
    for number in range(1, slaves + 1):
        core.handle(Received(peer, "here", messages.SlaveReady(number), ()), 100.0)


def test_slaves_with_too_little_time_do_not_count_as_present() -> None:
    """Otherwise no batch system would start others."""
    core = MasterCore(MasterSettings("m", "g"))
    connect(core, 2, 30.0)
    assert core.state.members.agents["AGENT-0"].ends_at == 130.0
    core.definitions.add(Defined(MAX))
    core.submit([span(1, MAX, policy=TAKES_60), span(2, MAX, policy=TAKES_60)])
    core.decide(100.0)
    core.check()
    assert core.counts().slaves_needed == 2
    connect(core, 2, 70.0, b"b")
    core.decide(100.0)
    assert (core.counts().slaves_needed, core.state.jar.num_allocated) == (0, 2)


def test_batch_systems_learn_how_long_the_shortest_task_takes() -> None:
    """As long as one of the tasks has no forecast, jobs of any length may be useful."""
    core = MasterCore(MasterSettings("m", "g"))
    assert core.counts().shortest_task_s == 0.0
    short = replace(TAKES_60, seconds_expected=30.0)
    core.definitions.add(Defined(MAX))
    core.submit([span(1, MAX, policy=TAKES_60), span(2, MAX, policy=short)])
    assert core.counts().shortest_task_s == 30.0
    core.submit([span(3, MAX)])
    assert core.counts().shortest_task_s == 0.0


def test_the_mean_of_an_algorithm_is_that_of_its_values() -> None:
    """Failures do not count."""
    core = MasterCore(MasterSettings("m", "g", task_group=3))
    connect(core, 1, None)
    algorithm = Defined(MAX)
    core.definitions.add(algorithm)
    new = span(1, MAX, 3)
    new.algorithm = algorithm
    core.submit([new])
    core.decide(100.0)
    assert algorithm.mean_s is None
    entries = [b"\0", b"\0", Codec().dumps_failure(OSError("no"))]
    results = messages.Results(1, [1], [3], [1], [2.0, 4.0, 900.0], [2])
    core.handle(Received(b"a", "here", results, [groups.payload(3, entries)]), 101.0)
    assert algorithm.mean_s == 3.0
