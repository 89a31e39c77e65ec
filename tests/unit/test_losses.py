"""Losses: what the end of a slave or an agent means for tasks, and which task is charged."""

from __future__ import annotations

import pytest
from tests.master_state import Books
from tests.spans import ids_of

from mwpy._core.master.checkpoints import Checkpoints
from mwpy._core.master.delays import Delays
from mwpy._core.master.handback import HandBack
from mwpy._core.master.kinds import SlaveKinds
from mwpy._core.master.losses import REASONS_KEPT, Losses
from mwpy._core.master.members import ConnectedSlave
from mwpy._core.master.spans import LOST_AGENTS_ALLOWED, LOST_ALONE_ALLOWED
from mwpy._core.master.totals import Totals
from mwpy._values import records
from mwpy._values.causes import BLAMELESS_ALLOWED, Cause
from mwpy._values.last_words import NO_WORDS, Death, LastWords
from mwpy._values.messages import Checkpoint, SlaveDied
from mwpy._values.policy import ATTEMPTS_MAX, TaskPolicy
from mwpy._values.task import SlaveState

DIED = "killed by signal 11"


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.fixture
def losses(books: Books) -> Losses:
    handback = HandBack(books.state)
    kinds, delays = SlaveKinds(books.state, handback), Delays(books.state, handback)
    return Losses(books.state, kinds, handback, Totals(books.state), delays, books.hosts(), books.verification())


def dies(
    losses: Losses, slave: ConnectedSlave, running: int, words: LastWords = NO_WORDS, cause: Cause = Cause.CRASH
) -> None:
    losses.slave_died(slave.agent, SlaveDied(slave.number, running, cause, DIED, words))
    losses.state.check()


def notices(books: Books) -> list[str]:
    return [record.text for record in books.taken() if isinstance(record, records.Notice)]


def test_a_death_charges_the_running_task_only(books: Books, losses: Losses) -> None:
    """The charged task goes to the tail of its queue. The unstarted tasks keep their order at the head."""
    slave = books.slave()
    books.submit(4)
    books.send(slave, 3)
    dies(losses, slave, 2, LastWords("out"))
    queue = books.state.jar.pending.queues[0]
    assert ids_of(queue) == [1, 3, 4, 2]
    assert [len(span.deaths) for span in queue for _ in span.ids] == [0, 0, 0, 1]
    assert str(queue[-1].deaths[0]) == f"attempt 1 on SLAVE-0: crash: {DIED}"
    assert queue[-1].deaths[0].words.stdout == "out"


def test_a_task_that_killed_three_slaves_is_handed_back_with_their_story(books: Books, losses: Losses) -> None:
    [task] = books.submit(1)
    for _ in range(ATTEMPTS_MAX):
        slave = books.slave()
        books.send(slave, 1)
        dies(losses, slave, task)
    [unrunnable] = books.state.actions.unrunnable
    assert [death.sid for death in unrunnable.deaths] == ["SLAVE-0", "SLAVE-1", "SLAVE-2"]
    assert unrunnable.reason.startswith(
        "it lost 3 attempts by its own fault, as many as attempts_max allows: attempt 1 on"
    )
    assert books.state.jar.runnable == 0


def test_a_task_that_may_run_once_is_handed_back_after_one_death(books: Books, losses: Losses) -> None:
    books.submit(2, policy=TaskPolicy(retry=False))
    slave = books.slave()
    books.send(slave, 2)
    dies(losses, slave, 1)
    [unrunnable] = books.state.actions.unrunnable
    assert (unrunnable.task_id, unrunnable.reason) == (
        1,
        f"SLAVE-0 may have started it when it was lost (crash: {DIED}), and its policy says retry=False",
    )
    assert ids_of(books.state.jar.pending.queues[0]) == [2]


def test_a_task_that_may_run_once_does_not_run_again_after_its_result_was_lost(books: Books, losses: Losses) -> None:
    """The slave had run tasks 1 and 2, and overwrote their results. It ran task 3 when it died, and not task 4."""
    books.submit(1)
    books.submit(3, policy=TaskPolicy(retry=False))
    slave = books.slave()
    books.send(slave, 4)
    losses.slave_died(slave.agent, SlaveDied(slave.number, 3, Cause.CRASH, DIED, NO_WORDS, [(1, 2, 1), (7, 1, 1)]))
    assert ids_of(books.state.jar.pending.queues[0]) == [1, 4]
    assert [(task.task_id, len(task.deaths)) for task in books.state.actions.unrunnable] == [(2, 0), (3, 1)]
    assert books.state.actions.unrunnable[0].reason == (
        "SLAVE-0 ran it, but its result was overwritten there, and its policy says retry=False"
    )
    books.state.check()


def test_a_task_is_given_up_after_a_hundred_losses_without_its_fault(books: Books, losses: Losses) -> None:
    """Otherwise a computation on machines that are always taken back would never end."""
    [task] = books.submit(1)
    for number in range(BLAMELESS_ALLOWED):
        assert books.state.actions.unrunnable == []
        slave = books.slave()
        books.send(slave, 1)
        books.state.record(records.AgentLeaving(f"AGENT-{number}", "evicted", Cause.EVICTED))
        dies(losses, slave, task)
        losses.check()
    [unrunnable] = books.state.actions.unrunnable
    assert unrunnable.reason == f"it was lost 100 times without its fault, the last time: evicted: {DIED}"


@pytest.mark.parametrize("attempts_max", [1, 2])
def test_a_task_is_tried_as_often_as_its_policy_says(books: Books, losses: Losses, attempts_max: int) -> None:
    [task] = books.submit(1, policy=TaskPolicy(attempts_max=attempts_max))
    for _ in range(attempts_max):
        assert books.state.actions.unrunnable == []
        slave = books.slave()
        books.send(slave, 1)
        dies(losses, slave, task)
        losses.check()
    assert [each.task_id for each in books.state.actions.unrunnable] == [task]


def test_a_death_without_a_running_task_charges_nothing(books: Books, losses: Losses) -> None:
    slave = books.slave()
    books.give(slave, 2)
    dies(losses, slave, 0)
    assert not any(span.deaths for span in books.state.jar.pending.queues[0])


def vanishes(losses: Losses, slave: ConnectedSlave) -> None:
    """The agent of a slave vanishes without notice."""
    losses.agent_vanished(slave.agent, 0.0)
    losses.check()
    losses.state.check()


def test_the_tasks_of_an_agent_that_vanished_are_suspects(books: Books, losses: Losses) -> None:
    """They keep their place at the head of the queue. Tasks that may run only once are handed back."""
    slave = books.slave()
    books.submit(1)
    books.submit(1, policy=TaskPolicy(retry=False))
    books.send(slave, 2)
    books.submit(1)
    vanishes(losses, slave)
    queue = books.state.jar.pending.queues[0]
    assert ids_of(queue) == [1, 3]
    assert [list(map(str, span.deaths)) for span in queue] == [
        ["attempt 1 on SLAVE-0: agent lost: AGENT-0: the connection broke"],
        [],
    ]
    [unrunnable] = books.state.actions.unrunnable
    assert unrunnable.reason == (
        "SLAVE-0 may have started it when it was lost (agent lost: AGENT-0: the connection broke), and its "
        "policy says retry=False"
    )
    assert [death.cause for death in unrunnable.deaths] == [Cause.AGENT_LOST]
    assert losses.departures == {"the connection broke": 1}


def test_an_agent_of_which_nothing_was_heard_makes_no_task_a_suspect(books: Books, losses: Losses) -> None:
    """A task can end its agent, but hardly the network."""
    slave = books.slave()
    books.give(slave, 1)
    losses.agent_vanished(slave.agent, 31.0)
    [span] = books.state.jar.pending.queues[0]
    assert list(map(str, span.deaths)) == [
        "attempt 1 on SLAVE-0: network: AGENT-0: nothing was heard from it for 31 s: its machine or the network "
        "failed, or it was stopped"
    ]
    assert (span.charged, span.blameless, span.runs_alone) == (0, 1, False)


def test_the_losses_of_an_agent_that_was_stopped_are_explained_when_it_comes_back(books: Books, losses: Losses) -> None:
    """Those of another silent agent, and other losses of the same task, keep their causes."""
    first, second = books.slave(), books.slave()
    books.give(first, 1)
    books.give(second, 1)
    losses.agent_vanished(first.agent, 31.0)
    losses.agent_vanished(second.agent, 31.0)
    for name in ("AGENT-0", "AGENT-0", "AGENT-7"):
        losses.agent_resumed(name)
    deaths = {int(span.first): span.deaths for span in books.state.jar.pending.queues[0]}
    assert [death.cause for task in (1, 2) for death in deaths[task]] == [Cause.SUSPENDED, Cause.NETWORK]
    assert deaths[1][0].reason == "AGENT-0: it was stopped for longer than the client timeout, and resumed"
    assert [type(record) for record in books.taken()].count(records.LossesExplained) == 1


def test_the_time_before_the_last_state_of_an_attempt_is_not_lost(books: Books, losses: Losses) -> None:
    """The next attempt goes on from this state."""
    slave = books.slave()
    books.submit(2)
    books.send(slave, 1)
    books.state.now = 30.0
    Checkpoints(books.state).receive(slave, Checkpoint(slave.number, 1, 1), [b"state"])
    books.state.now = 34.0
    dies(losses, slave, 1)
    row = losses.totals.rows["max", "host"]
    assert (row.lost, row.lost_s) == ({Cause.CRASH: 1}, 4.0)


def test_explained_losses_have_their_new_cause_in_the_totals(books: Books, losses: Losses) -> None:
    """A cancelled task was not lost, and an agent that had announced its end has the cause that it named."""
    agents = [books.slave().agent for _ in range(3)]
    slaves = [next(iter(agent.slaves.values())) for agent in agents]
    for slave in slaves:
        books.give(slave, 3)
    cancelled = [span.part(span.first, 1, span.attempt) for span in slaves[0].held.spans]
    books.state.record(records.TasksCancelling(slaves[0].sid, cancelled))
    books.state.record(records.AgentLeaving(agents[2].name, "evicted", Cause.EVICTED))
    for agent in agents:
        losses.agent_vanished(agent, 31.0)
    row = losses.totals.rows["max", "host"]
    assert row.lost == {Cause.NETWORK: 5, Cause.EVICTED: 3}
    losses.agent_resumed(agents[0].name)
    assert row.lost == {Cause.NETWORK: 3, Cause.EVICTED: 3, Cause.SUSPENDED: 2}
    for agent in agents[1:]:
        losses.agent_resumed(agent.name)
    assert row.lost == {Cause.EVICTED: 3, Cause.SUSPENDED: 5}
    books.state.check()


def test_a_limited_number_of_silent_agents_is_remembered(
    books: Books, losses: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mwpy._core.master.losses.SILENT_KEPT", 1)
    for _ in range(2):
        losses.agent_vanished(books.slave().agent, 31.0)
    books.taken()
    losses.agent_resumed("AGENT-0")
    assert books.taken() == []
    losses.agent_resumed("AGENT-1")
    assert [type(record) for record in books.taken()] == [records.LossesExplained]


@pytest.mark.parametrize("how", ["goodbye", "announced"])
def test_the_tasks_of_an_agent_that_leaves_with_notice_are_not_suspects(books: Books, losses: Losses, how: str) -> None:
    """The connection may break between the notice and the goodbye."""
    slave = books.slave()
    books.give(slave, 1)
    if how == "announced":
        books.state.record(records.AgentLeaving("AGENT-0", "evicted", Cause.EVICTED))
    books.state.record(records.AgentLeft("AGENT-0", "evicted"))
    losses.agent_gone(slave.agent, "evicted", Cause.AGENT_LOST if how == "announced" else Cause.EVICTED)
    [span] = books.state.jar.pending.queues[0]
    assert [death.cause for death in span.deaths] == [Cause.EVICTED]
    assert (span.charged, span.blameless, span.runs_alone) == (0, 1, False)


def test_after_three_lost_agents_a_task_is_isolated_and_after_the_fourth_it_is_handed_back(
    books: Books, losses: Losses
) -> None:
    """The user hears of both."""
    [task, _] = books.submit(2)
    for _ in range(LOST_AGENTS_ALLOWED):
        slave = books.slave()
        books.send(slave, 1)
        assert notices(books) == []
        vanishes(losses, slave)
    [text] = notices(books)
    assert text == (
        "3 agents vanished without notice while they had task 1 (max). Such a task may be the cause, so it runs alone "
        "on an agent from now on"
    )
    pending = books.state.jar.pending
    assert (ids_of(pending.queues[0]), ids_of(pending.suspects[0]), pending.count) == ([2], [task], 2)
    slave = books.slave()
    books.state.record(records.TasksAllocated(slave.sid, pending.heads(pending.suspects[0], 1, 1000)))
    books.state.record(records.SlaveChanged(slave.sid, SlaveState.BUSY, slave.kind))
    assert slave.agent.runs_suspect
    vanishes(losses, slave)
    [unrunnable] = books.state.actions.unrunnable
    assert len(unrunnable.deaths) == 4
    assert unrunnable.reason.startswith(
        "4 agents vanished while they had it, the last one while it ran nothing else: "
        "attempt 1 on SLAVE-0: agent lost: AGENT-0: the connection broke; attempt 2 on SLAVE-1: agent lost: AGENT-1"
    )
    assert (ids_of(pending.queues[0]), pending.suspects) == ([2], {})


def test_an_agent_that_has_finished_no_task_makes_a_suspect_unrunnable_only_after_many_losses(
    books: Books, losses: Losses
) -> None:
    """A member that joins and vanishes again and again is more likely the cause than the task."""
    books.submit(1)
    pending = books.state.jar.pending
    for lost in range(1, LOST_AGENTS_ALLOWED + LOST_ALONE_ALLOWED + 2):
        assert not books.state.actions.unrunnable
        slave = books.slave(is_fresh=True)
        [[span]] = (pending.suspects if lost > LOST_AGENTS_ALLOWED else pending.queues).values()
        books.state.record(records.TasksAllocated(slave.sid, pending.heads([span], 1, 1000)))
        books.state.record(records.SlaveChanged(slave.sid, SlaveState.BUSY, slave.kind))
        vanishes(losses, slave)
    [unrunnable] = books.state.actions.unrunnable
    assert unrunnable.reason.startswith("34 agents vanished while they had it, the last one while it ran nothing else")


def test_the_notice_about_suspects_names_one_of_them(books: Books, losses: Losses) -> None:
    books.submit(2)
    for _ in range(LOST_AGENTS_ALLOWED):
        agent = books.slave().agent
        for slave in (*agent.slaves.values(), books.slave(agent=agent.name)):
            books.send(slave, 1)
        vanishes(losses, slave)
    [text] = notices(books)
    assert "task 2 (max) and others. Such" in text or "task 1 (max) and others. Such" in text


def test_lost_agents_and_killed_slaves_are_counted_apart(books: Books, losses: Losses) -> None:
    """Two deaths of slaves and three lost agents do not make a task unrunnable. The third death does."""
    [task] = books.submit(1)
    for event in ("die", "vanish", "vanish", "die", "vanish"):
        slave = books.slave()
        books.send(slave, 1)
        if event == "die":
            dies(losses, slave, task)
        else:
            vanishes(losses, slave)
    assert books.state.actions.unrunnable == []
    pending, slave = books.state.jar.pending, books.slave()
    books.state.record(records.TasksAllocated(slave.sid, pending.heads(pending.suspects[0], 1, 1000)))
    books.state.record(records.SlaveChanged(slave.sid, SlaveState.BUSY, slave.kind))
    dies(losses, slave, task)
    [unrunnable] = books.state.actions.unrunnable
    assert unrunnable.reason.startswith("it lost 3 attempts by its own fault")
    assert len(unrunnable.deaths) == 6


@pytest.mark.parametrize(("cause", "found"), [(Cause.CRASH, Cause.EVICTED), (Cause.OUT_OF_MEMORY, Cause.OUT_OF_MEMORY)])
def test_a_slave_that_dies_while_its_agent_leaves_charges_no_task(
    books: Books, losses: Losses, cause: Cause, found: Cause
) -> None:
    """Unless the agent says that the task needed more memory than its job has: this may be why it leaves."""
    slave = books.slave()
    books.submit(2)
    books.send(slave, 2)
    books.state.record(records.AgentLeaving("AGENT-0", "evicted", Cause.EVICTED))
    dies(losses, slave, 1, cause=cause)
    spans = {int(span.first): span for span in books.state.jar.spans()}
    assert [death.cause for death in spans[1].deaths] == [found]
    assert (spans[1].charged, spans[2].deaths) == (found is Cause.OUT_OF_MEMORY, ())


def test_a_visitor_without_slaves_is_no_departure(books: Books, losses: Losses) -> None:
    """`mwpy doctor` connects, examines the connection and leaves."""
    agent = books.slave().agent
    agent.announced = 0
    losses.agent_gone(agent, "it was an examination", Cause.EVICTED)
    assert losses.departures == {}


def test_only_so_many_reasons_of_departures_are_remembered(books: Books, losses: Losses) -> None:
    """An agent can leave for any reason. The most frequent reason stays known."""
    agent = books.slave().agent
    losses.agent_gone(agent, "evicted", Cause.EVICTED)
    for number in range(300):
        agent.announced = 1
        losses.agent_gone(agent, "evicted", Cause.EVICTED)
        losses.agent_gone(agent, f"reason {number}", Cause.EVICTED)
    assert len(losses.departures) == REASONS_KEPT
    assert losses.departures["evicted"] == 301


def test_slaves_that_never_were_ready_are_reported_once_for_each_reason(books: Books, losses: Losses) -> None:
    agent = books.slave().agent
    for number, words in ((7, "ImportError: a"), (8, "ImportError: a"), (9, "ImportError: b")):
        losses.slave_died(agent, SlaveDied(number, 0, Cause.CRASH, "exit code 1", LastWords(stderr=words)))
    texts = notices(books)
    assert len(texts) == 2
    assert texts[0].startswith("a slave of AGENT-0 (here) ended before it could take a task: exit code 1.")


def test_a_task_that_killed_too_many_slaves_and_is_still_here_fails_the_check(books: Books, losses: Losses) -> None:
    slave = books.slave()
    books.give(slave, 1)
    losses.check()
    slave.held.spans[0].deaths = (Death(slave.sid, 1, Cause.CRASH, DIED),) * ATTEMPTS_MAX
    with pytest.raises(AssertionError, match="was charged 3 times and is not handed back"):
        losses.check()
    slave.held.spans[0].deaths = (Death(slave.sid, 1, Cause.AGENT_LOST, DIED),) * (
        LOST_AGENTS_ALLOWED + LOST_ALONE_ALLOWED + 1
    )
    with pytest.raises(AssertionError, match="was lost with 34 agents and is not handed back"):
        losses.check()
