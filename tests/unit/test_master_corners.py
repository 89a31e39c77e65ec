"""Rare orders of events that once caused faults in the master. Each is the shortest example of its fault."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.driven import Driven
from tests.spans import MAX, MIN, span

from mwpy._core.master import tasks
from mwpy._core.master.state import AllocateSlaves, FreeSlave
from mwpy._values import groups, messages, records
from mwpy._values.bounds import SlaveId
from mwpy._values.causes import Cause
from mwpy._values.last_words import NO_WORDS, LastWords
from mwpy._values.policy import TaskPolicy
from mwpy._values.task import SlaveKind


@pytest.fixture
def master() -> Driven:
    """A master with one agent and one slave."""
    master = Driven()
    master.join()
    return master


def group_of_two(master: Driven) -> None:
    master.core.state.settings = replace(master.core.state.settings, task_group=2)


def test_a_failure_that_contains_no_error_costs_its_agent_the_connection(master: Driven) -> None:
    """The master drops the agent, and another agent runs the task."""
    master.submit()
    actions = master.receive(messages.Results(1, [1], [1], [1], [0.1], [0]), groups.payload(1, [b"\0"]))
    assert actions.results == []
    [dropped] = master.of(records.PeerDropped)
    assert dropped.reason == "Results: a failure without a description"
    master.join(b"b")
    assert master.sent == [1]


def test_a_freed_slave_becomes_ordered_again_if_an_ordered_slave_is_missing(master: Driven) -> None:
    """A freed slave becomes unordered when it has finished its tasks. Any unordered slave can replace a missing one."""
    master.step(AllocateSlaves(1, SlaveKind.ORDERED))
    master.submit(policy=TaskPolicy(SlaveId("SLAVE-0")))
    master.step(FreeSlave(SlaveId("SLAVE-0")))
    master.step(AllocateSlaves(1, SlaveKind.ORDERED))
    master.finish(1)
    assert master.core.state.members.slaves[SlaveId("SLAVE-0")].kind is SlaveKind.ORDERED


def test_a_freed_intermingle_slave_becomes_unordered_while_other_tasks_wait(master: Driven) -> None:
    """Otherwise the tasks that are addressed to a slave would wait as long as there are other tasks."""
    group_of_two(master)
    master.step(AllocateSlaves(1, SlaveKind.INTERMINGLE))
    master.submit(2)
    master.step(FreeSlave(SlaveId("SLAVE-0")))
    master.submit(policy=TaskPolicy(SlaveId("SLAVE-0")))
    master.submit(96)
    slave = master.core.state.members.slaves[SlaveId("SLAVE-0")]
    while slave.kind is not SlaveKind.UNORDERED and master.held():
        master.finish(master.held()[0])
    assert master.core.state.jar.runnable > 50, "it became unordered only after it had run nearly all tasks"


def test_a_slave_that_cannot_run_an_algorithm_is_sent_no_more_of_it(master: Driven) -> None:
    """Two tasks are addressed to the slave. It gets only the task of the algorithm that it can run."""
    group_of_two(master)
    own = TaskPolicy(SlaveId("SLAVE-0"))
    master.submit(algorithm=MIN, policy=own)
    master.receive(messages.AlgorithmFailed(1, 1, "no module", [1], [1], [1]))
    master.core.submit([span(2, MAX, policy=own), span(3, MIN, policy=own)])
    master.step()
    assert master.sent == [2]


def test_a_slave_gets_more_tasks_as_soon_as_another_slave_has_shown_their_duration(master: Driven) -> None:
    """The slave got one task while the duration was unknown. It gets more tasks before it has finished that task."""
    master.join(b"b")
    master.submit(99)
    master.finish(1)
    assert [slave.held.count > 1 for slave in master.core.state.members.slaves.values()] == [True, True]


def test_ordered_slaves_get_no_share_of_tasks_that_they_may_not_run() -> None:
    """The slave that may run the tasks gets a full group, even if many other slaves are idle."""
    master = Driven()
    master.step(AllocateSlaves(9, SlaveKind.ORDERED))
    for number in range(10):
        master.join(b"%d" % number)
    master.core.state.members.pace[0] = 1e-4
    master.submit(99)
    assert not master.core.state.jar.pending.queues


def test_only_the_latest_of_many_deaths_keep_their_last_words(monkeypatch: pytest.MonkeyPatch, master: Driven) -> None:
    """Waiting tasks and unfetched results do not fill the memory. The records stay complete."""
    monkeypatch.setattr(tasks, "WHOLE_KEPT", 2)
    given_up = []
    for number in range(1, 21):
        master.submit(policy=TaskPolicy(retry=False))
        words = LastWords("out", "x" * 3000)
        given_up += master.receive(messages.SlaveDied(number, number, Cause.CRASH, "killed", words)).unrunnable
        [end] = master.of(records.SlaveEnded)
        assert end.words.size == 3003
        master.receive(messages.SlaveReady(number + 1))
    sizes = [task.deaths[0].words.size for task in given_up]
    assert sizes == [tasks.OLD_WORDS_CHARACTERS + 3] * 18 + [3003] * 2


def test_each_kind_of_failure_at_the_start_is_reported_once(master: Driven) -> None:
    """Process ids and times in the output of a thousand slaves do not cause a thousand notices."""
    notices: list[str] = []
    for number in range(5):
        words = LastWords(stderr=f"Traceback of process {number}\nImportError: no numpy\n")
        master.receive(messages.SlaveDied(10 + number, 0, Cause.CRASH, "exit code 1", words))
        notices += master.notices
    assert len(notices) == 1
    assert notices[0].endswith("It wrote last:\nstderr:\nTraceback of process 0\nImportError: no numpy")


def test_slaves_that_end_with_their_agent_cause_no_notice(master: Driven) -> None:
    """In this case it is not a fault that these slaves never took a task. Their last output is recorded anyway."""
    master.receive(messages.Leaving("", Cause.EVICTED))
    master.receive(messages.SlaveDied(2, 0, Cause.CRASH, "exit code 0", NO_WORDS))
    assert master.actions.records == [
        records.SlaveEnded(SlaveId("AGENT-0/2"), Cause.EVICTED, "exit code 0", "", NO_WORDS)
    ]
