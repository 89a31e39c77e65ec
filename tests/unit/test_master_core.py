"""Decisions of the master that the scenarios and the simulator do not reach."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.spans import MAX, span

from mwpy._core.master import dispatch, members
from mwpy._core.master.algorithms import Defined
from mwpy._core.master.core import MasterCore
from mwpy._core.master.spans import Span
from mwpy._core.master.state import AllocateSlaves, Confirmed, MasterSettings, Received, ShutDown
from mwpy._values import messages
from mwpy._values.bounds import SlaveId
from mwpy._values.causes import Cause
from mwpy._values.connections import Vanished
from mwpy._values.errors import InternalError
from mwpy._values.last_words import NO_WORDS
from mwpy._values.policy import TaskPolicy
from mwpy._values.records import AgentBack, Notice
from mwpy._values.task import SlaveKind


@pytest.fixture
def core() -> MasterCore:
    core = MasterCore(MasterSettings("m", "g"))
    core.definitions.add(Defined(MAX))
    return core


def _tasks(count: int, payload: bytes = b"x", buffers: tuple[bytes, ...] = ()) -> list[Span]:
    return [span(1, MAX, count, payload, buffers=buffers)]


def _receive(core: MasterCore, message: messages.Message, peer: bytes = b"a") -> None:
    core.handle(Received(peer, "here", message, ()), 0.0)
    core.check()


def _connect(core: MasterCore, slaves: int, peer: bytes = b"a") -> None:
    _receive(core, messages.Hello("m", "g", "host", 1, "3.11", slaves), peer)
    for number in range(1, slaves + 1):
        _receive(core, messages.SlaveReady(number), peer)


def _notices(core: MasterCore, at: float) -> str:
    """Let the core decide, and return the texts of its notices."""
    core.decide(at)
    return " ".join(record.text for record in core.take_actions().records if isinstance(record, Notice))


def _busy(core: MasterCore) -> list[bool]:
    """Let the core decide, and return which slaves have tasks."""
    core.decide(0.0)
    core.check()
    return [bool(slave.held.spans) for slave in core.state.members.slaves.values()]


def test_an_agent_that_is_slow_to_read_large_tasks_gets_the_next_one_when_it_has_confirmed_the_last(
    core: MasterCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So nothing piles up for a slow agent, it is not dropped, and others get the tasks meanwhile."""
    monkeypatch.setattr(members, "FEEDING_BYTES", 100)
    _connect(core, 3)
    core.submit([span(number, MAX, 1, b"x", buffers=(bytes(200),)) for number in range(1, 6)])
    assert _busy(core) == [True, False, False]
    [size] = {
        sum(map(len, each.frames)) for each in core.take_actions().sends if isinstance(each.message, messages.Tasks)
    }
    core.handle(Confirmed(b"a", size - 101), 0.0)
    assert _busy(core) == [True, False, False]
    core.handle(Confirmed(b"a", 1), 0.0)
    assert _busy(core) == [True, False, False]
    core.handle(Confirmed(b"a", 1), 0.0)
    assert _busy(core) == [True, True, False]
    _connect(core, 1, b"b")
    assert _busy(core) == [True, True, False, True]
    core.handle(Confirmed(b"nobody", 1), 0.0)


def test_tasks_for_agents_of_this_machine_do_not_wait_for_a_confirmation(
    core: MasterCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These have a stream, and confirm nothing."""
    monkeypatch.setattr(members, "FEEDING_BYTES", 100)
    core.handle(Received(b"a", "localhost", messages.Hello("m", "g", "host", 1, "3.11", 2), ()), 0.0)
    for number in (1, 2):
        _receive(core, messages.SlaveReady(number))
    core.submit([span(number, MAX, 1, b"x", buffers=(bytes(200),)) for number in (1, 2)])
    assert _busy(core) == [True, True]


def test_a_group_is_no_larger_than_the_largest_message(core: MasterCore) -> None:
    """A slave without a task does not wait for several megabytes, even if the tasks are quick."""
    core.state.members.pace[0] = 1e-5
    _connect(core, 1)
    core.submit(_tasks(6, b"x" * (dispatch.AHEAD_GROUP_BYTES // 4 + 1)))
    core.decide(0.0)
    groups = [send.message for send in core.take_actions().sends if isinstance(send.message, messages.Tasks)]
    assert [sum(group.counts) for group in groups] == [1, 3]


def test_by_default_as_many_slaves_are_needed_as_there_are_tasks(core: MasterCore) -> None:
    """Otherwise an overseer would start no slaves for a script that never calls `allocate_slaves`."""
    _connect(core, 2)
    core.submit(_tasks(5))
    assert (core.counts().slaves_wanted, core.counts().slaves_needed) == (5, 3)
    core.obey(AllocateSlaves(0, SlaveKind.UNORDERED))
    assert (core.counts().slaves_wanted, core.counts().slaves_needed) == (0, 0)
    core.obey(AllocateSlaves(4, SlaveKind.UNORDERED))
    assert (core.counts().slaves_wanted, core.counts().slaves_needed) == (4, 2)
    core.obey(AllocateSlaves(100, SlaveKind.UNORDERED))
    assert (core.counts().slaves_wanted, core.counts().slaves_needed) == (104, 3)


def test_no_slaves_are_needed_for_tasks_that_only_others_can_run(core: MasterCore) -> None:
    """Such slaves would be idle, would be removed as idle, and would be needed again at once."""
    core.obey(AllocateSlaves(1, SlaveKind.ORDERED))
    _connect(core, 2)
    ordered, _ = core.state.members.slaves
    core.submit([span(1, MAX, 5, policy=TaskPolicy(ordered))])
    assert core.counts().slaves_needed == 0
    core.decide(0.0)
    assert core.counts().slaves_needed == 0
    core.submit(_tasks(3))
    core.decide(0.0)
    assert core.counts().slaves_needed == 2


def test_delayed_tasks_need_no_slaves_until_they_are_due(core: MasterCore) -> None:
    """The master sleeps until then."""
    _connect(core, 1)
    core.submit([span(1, MAX, 1, policy=TaskPolicy(after=100.0))])
    core.decide(0.0)
    _receive(core, messages.SlaveDied(1, 1, Cause.CRASH, "killed", NO_WORDS))
    core.decide(0.0)
    core.take_actions()
    assert (core.counts().slaves_wanted, core.counts().slaves_needed) == (0, 0)
    while (due := core.next_deadline()) is not None and due < 100.0:
        core.decide(due)
        assert core.take_actions().sends == []
    assert due == 100.0
    core.decide(due)
    _receive(core, messages.Leaving("evicted", Cause.EVICTED))
    assert (core.counts().slaves_wanted, core.counts().slaves_needed) == (1, 1)


def test_slaves_are_needed_for_tasks_that_can_be_taken_back(core: MasterCore) -> None:
    """Four of the five tasks of a slave can be taken back. With groups of a fixed size, no task is taken back."""
    _connect(core, 1)
    core.state.members.pace[0] = 1e-3
    core.submit(_tasks(5))
    core.decide(0.0)
    assert core.state.members.slaves[SlaveId("SLAVE-0")].held.count == 5
    assert core.counts().slaves_needed == 4
    core.state.settings = replace(core.state.settings, task_group=5)
    assert core.counts().slaves_needed == 0
    core.submit(_tasks(11))
    assert core.counts().slaves_needed == 3


def test_slaves_that_an_agent_is_starting_are_not_missing(core: MasterCore) -> None:
    """Otherwise an overseer would start them twice. An agent that is leaving starts none."""
    core.submit(_tasks(5))
    _receive(core, messages.Hello("m", "g", "host", 1, "3.11", 3))
    assert core.counts().slaves_needed == 2
    _receive(core, messages.SlaveReady(1))
    assert core.counts().slaves_needed == 2
    _receive(core, messages.Leaving("evicted", Cause.EVICTED))
    assert core.counts().slaves_needed == 4


def test_a_job_is_idle_if_its_slaves_have_nothing_to_do(core: MasterCore) -> None:
    """A job is not idle while one of its slaves holds tasks, is starting or is ordered."""
    core.obey(AllocateSlaves(1, SlaveKind.ORDERED))
    for number, job in enumerate(["17.0", "17.1", "17.2", ""]):
        peer = b"%d" % number
        _receive(core, messages.Hello("m", "g", "host", 1, "3.11", 1, job), peer)
        _receive(core, messages.SlaveReady(1), peer)
    assert core.counts().connected_jobs == {"17.0": 1, "17.1": 0, "17.2": 0}
    core.submit(_tasks(1))
    core.decide(0.0)
    assert core.counts().connected_jobs == {"17.0": 1, "17.1": 1, "17.2": 0}
    _receive(core, messages.Hello("m", "g", "host", 1, "3.11", 1, "17.2"), b"a second agent of job 17.2")
    # a job whose slave is still starting is not idle
    assert core.counts().connected_jobs == {"17.0": 1, "17.1": 1, "17.2": 1}
    _receive(core, messages.SlaveReady(1), b"a second agent of job 17.2")
    assert core.counts().connected_jobs == {"17.0": 1, "17.1": 1, "17.2": 0}


def test_nothing_is_due_after_the_end(core: MasterCore) -> None:
    """Otherwise the master would be busy until the last agent left: a deadline that passed would end each wait."""
    core.state.members.pace[0] = 0.001
    _connect(core, 1)
    core.submit(_tasks(2))
    core.decide(0.0)
    _connect(core, 1, b"b")
    core.decide(0.0)
    assert core.next_deadline() == dispatch.SILENT_S
    core.obey(ShutDown(True, 10.0))
    core.decide(0.0)
    assert core.next_deadline() is None


@pytest.mark.parametrize(
    "message",
    [
        messages.AlgorithmFailed(1, 7, "", [], [], []),
        messages.Hello("m", "g", "host", 1, "3.11", 1),
        messages.Shutdown(True, 1.0),
    ],
    ids=["it was never defined", "a second one", "only a master sends this"],
)
def test_a_message_that_no_correct_agent_sends_costs_the_connection(
    core: MasterCore, message: messages.Message
) -> None:
    _connect(core, 1)
    _receive(core, message)
    assert not core.state.members.agents


def test_a_task_that_ends_one_fresh_agent_after_the_other_is_given_up(core: MasterCore) -> None:
    """It may be the last task, so no agent ever finishes another one first."""
    core.submit(_tasks(1))
    for number in range(1, 15):
        peer = b"agent %d" % number
        _connect(core, 1, peer)
        assert _busy(core) == [True]
        assert not core.take_actions().unrunnable
        core.handle(Vanished(peer, 0.0), 0.0)
    [unrunnable] = core.take_actions().unrunnable
    assert unrunnable.reason.startswith("14 agents vanished while they had it, the last one while it ran nothing else")


def test_a_transition_that_the_table_does_not_have_is_an_internal_error(core: MasterCore) -> None:
    """The message names the agent, and its state."""
    _connect(core, 1)
    with pytest.raises(InternalError, match="AGENT-0 is connected, which cannot come back"):
        core.state.record(AgentBack("AGENT-0", "here"))


@pytest.mark.parametrize(
    ("command", "begins"),
    [
        (ShutDown(True, 1.0), "3 tasks had no result when the computation ended"),
        (ShutDown(True, 1.0, of_maps=3), ""),
        (ShutDown(True, 1.0, of_maps=3, unread_maps=2), "nobody read the values of 2 maps"),
        (ShutDown(False, 1.0, unread_maps=2, returned=False), ""),
    ],
)
def test_the_end_names_the_work_that_is_not_done(core: MasterCore, command: ShutDown, begins: str) -> None:
    """Tasks of open maps do not count: somebody has stopped reading them. An interrupt explains itself."""
    core.submit(_tasks(3))
    core.obey(command)
    text = _notices(core, 0.0)
    assert text.startswith(begins)
    assert bool(text) == bool(begins)
