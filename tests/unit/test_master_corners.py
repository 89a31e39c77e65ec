"""Rare orders of events that once caused faults in the master. Each is the shortest example of its fault."""

from __future__ import annotations

import pytest
from tests.spans import MAX, MIN, held_by, span

from mwpy._core.master import tasks
from mwpy._core.master.algorithms import Defined
from mwpy._core.master.core import UNLIMITED, MasterCore
from mwpy._core.master.state import AllocateSlaves, FreeSlave, MasterSettings, Received, Vanished
from mwpy._values import groups, messages, records
from mwpy._values.bounds import SlaveId
from mwpy._values.causes import Cause
from mwpy._values.last_words import NO_WORDS, LastWords
from mwpy._values.policy import TaskPolicy
from mwpy._values.task import SlaveKind

ALGORITHMS = [MAX, MIN]


def _master(task_group: int | None = None) -> MasterCore:
    core = MasterCore(MasterSettings("m", "g", task_group=task_group))
    for algorithm in ALGORITHMS:
        core.definitions.add(Defined(algorithm))
    return core


def _receive(core: MasterCore, message: messages.Message, frames: tuple[bytes, ...] = (), peer: bytes = b"a") -> None:
    core.handle(Received(peer, "here", message, frames), 0.0)
    core.decide(0.0)
    core.check()


def _connect(core: MasterCore, peer: bytes = b"a") -> None:
    _receive(core, messages.Hello("m", "g", "host", 1, "3.11", 1), peer=peer)
    _receive(core, messages.SlaveReady(1), peer=peer)


def _submit(core: MasterCore, *tasks: int, algorithm: int = 0, sid: str | None = None, retry: bool = True) -> None:
    policy = TaskPolicy(SlaveId(sid) if sid else None, retry)
    core.submit([span(task, ALGORITHMS[algorithm], policy=policy) for task in tasks])
    core.decide(0.0)


def _finish(core: MasterCore, task: int) -> None:
    _receive(core, messages.Results(1, [task], [1], [1], [0.1], []), (groups.payload(1, [b"\0"]),))


def _sent(core: MasterCore) -> list[int]:
    sent = [send.message for send in core.take_actions().sends if isinstance(send.message, messages.Tasks)]
    return [task for group in sent for task, _ in groups.each_task(group)]


def test_a_failure_that_contains_no_error_costs_its_agent_the_connection() -> None:
    """The master drops the agent, and another agent runs the task."""
    core = _master()
    _connect(core)
    _submit(core, 1)
    _receive(core, messages.Results(1, [1], [1], [1], [0.1], [0]), (groups.payload(1, [b"\0"]),))
    actions = core.take_actions()
    assert actions.results == []
    [dropped] = [record for record in actions.records if isinstance(record, records.PeerDropped)]
    assert dropped.reason == "Results: a failure without a description"
    _connect(core, b"b")
    assert _sent(core) == [1]


def test_unstarted_tasks_that_an_evicted_agent_returns_run_elsewhere() -> None:
    """This includes tasks with `retry=False`, because they were never started."""
    core = _master(task_group=2)
    _connect(core)
    _submit(core, 1, 2, retry=False)
    _receive(core, messages.Leaving("evicted", Cause.EVICTED))
    _receive(core, messages.Revoked(1, [2], [1], [1]))
    _receive(core, messages.Goodbye("evicted", Cause.EVICTED))
    _connect(core, b"b")
    actions = core.take_actions()
    assert [task.task_id for task in actions.unrunnable] == [1]
    assert held_by(core, "SLAVE-1") == [2]


def test_a_freed_slave_becomes_ordered_again_if_an_ordered_slave_is_missing() -> None:
    """A freed slave becomes unordered when it has finished its tasks. Any unordered slave can replace a missing one."""
    core = _master()
    core.obey(AllocateSlaves(1, SlaveKind.ORDERED))
    _connect(core)
    _submit(core, 1, sid="SLAVE-0")
    core.obey(FreeSlave(SlaveId("SLAVE-0")))
    core.obey(AllocateSlaves(1, SlaveKind.ORDERED))
    _finish(core, 1)
    assert core.state.members.slaves[SlaveId("SLAVE-0")].kind is SlaveKind.ORDERED


def test_a_freed_intermingle_slave_becomes_unordered_while_other_tasks_wait() -> None:
    """Otherwise the tasks that are addressed to a slave would wait as long as there are other tasks."""
    core = _master(task_group=2)
    core.obey(AllocateSlaves(1, SlaveKind.INTERMINGLE))
    _connect(core)
    _submit(core, 1, 2)
    core.obey(FreeSlave(SlaveId("SLAVE-0")))
    _submit(core, 3, sid="SLAVE-0")
    _submit(core, *range(4, 100))
    for task in range(1, 100):
        if task in held_by(core, "SLAVE-0"):
            _finish(core, task)
        if core.state.members.slaves[SlaveId("SLAVE-0")].kind is SlaveKind.UNORDERED:
            break
    assert core.state.jar.runnable > 50, "it became unordered only after it had run nearly all tasks"


def test_a_slave_that_cannot_run_an_algorithm_is_sent_no_more_of_it() -> None:
    """Two tasks are addressed to the slave. It gets only the task of the algorithm that it can run."""
    core = _master(task_group=2)
    _connect(core)
    _submit(core, 1, algorithm=1, sid="SLAVE-0")
    _receive(core, messages.AlgorithmFailed(1, 1, "no module", [1], [1], [1]))
    core.take_actions()
    core.submit(
        [
            span(task, ALGORITHMS[algorithm], policy=TaskPolicy(SlaveId("SLAVE-0")))
            for task, algorithm in ((2, 0), (3, 1))
        ]
    )
    core.decide(0.0)
    assert _sent(core) == [2]


def test_a_slave_gets_more_tasks_as_soon_as_another_slave_has_shown_their_duration() -> None:
    """The slave got one task while the duration was unknown. It gets more tasks before it has finished that task."""
    core = _master()
    for peer in (b"a", b"b"):
        _connect(core, peer=peer)
    _submit(core, *range(1, 100))
    _finish(core, 1)
    core.decide(0.0)
    assert [slave.held.count > 1 for slave in core.state.members.slaves.values()] == [True, True]


def test_ordered_slaves_get_no_share_of_tasks_that_they_may_not_run() -> None:
    """The slave that may run the tasks gets a full group, even if many other slaves are idle."""
    core = _master()
    core.obey(AllocateSlaves(9, SlaveKind.ORDERED))
    for number in range(10):
        _connect(core, peer=b"%d" % number)
    core.state.members.pace[0] = 1e-4
    _submit(core, *range(1, 100))
    core.decide(0.0)
    assert not core.state.jar.pending.queues


def _ends(core: MasterCore) -> list[records.SlaveEnded]:
    return [record for record in core.take_actions().records if isinstance(record, records.SlaveEnded)]


def test_only_the_latest_of_many_deaths_keep_their_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting tasks and unfetched results do not fill the memory. The records stay complete."""
    monkeypatch.setattr(tasks, "WORDS_KEPT", 10_000)
    core = _master()
    _connect(core)
    given_up = []
    for number in range(1, 21):
        _submit(core, number, retry=False)
        _receive(core, messages.SlaveDied(number, number, Cause.CRASH, "killed", LastWords("out", "x" * 3000)))
        _receive(core, messages.SlaveReady(number + 1))
        actions = core.take_actions()
        given_up += actions.unrunnable
        [end] = [record for record in actions.records if isinstance(record, records.SlaveEnded)]
        assert end.words.size == 3003
    sizes = [task.deaths[0].words.size for task in given_up]
    assert sizes == [tasks.OLD_WORDS_CHARACTERS + 3] * 18 + [3003] * 2


def test_each_kind_of_failure_at_the_start_is_reported_once() -> None:
    """Process ids and times in the output of a thousand slaves do not cause a thousand notices."""
    core = _master()
    _connect(core)
    for number in range(5):
        words = LastWords(stderr=f"Traceback of process {number}\nImportError: no numpy\n")
        _receive(core, messages.SlaveDied(10 + number, 0, Cause.CRASH, "exit code 1", words))
    notices = [record.text for record in core.take_actions().records if isinstance(record, records.Notice)]
    assert len(notices) == 1
    assert notices[0].endswith("It wrote last:\nstderr:\nTraceback of process 0\nImportError: no numpy")


def test_slaves_that_end_with_their_agent_cause_no_notice() -> None:
    """In this case it is not a fault that these slaves never took a task. Their last output is recorded anyway."""
    core = _master()
    _connect(core)
    _receive(core, messages.Leaving("", Cause.EVICTED))
    core.take_actions()
    _receive(core, messages.SlaveDied(2, 0, Cause.CRASH, "exit code 0", NO_WORDS))
    assert core.take_actions().records == [
        records.SlaveEnded(SlaveId("AGENT-0/2"), Cause.EVICTED, "exit code 0", "", NO_WORDS)
    ]


def test_an_agent_that_was_stopped_says_so_when_it_comes_back() -> None:
    """The master corrects the cause of what it lost."""
    core = _master()
    _connect(core)
    _submit(core, 1)
    core.handle(Vanished(b"a", 31.0), 0.0)
    core.take_actions()
    _receive(core, messages.Hello("m", "g", "host", 1, "3.11", 1, resumed="AGENT-0"), peer=b"b")
    [explained] = [record for record in core.take_actions().records if isinstance(record, records.LossesExplained)]
    assert (explained.agent, explained.sids, explained.cause) == ("AGENT-0", ["SLAVE-0"], Cause.SUSPENDED)


def test_a_master_that_runs_tasks_itself_says_once_that_it_enforces_no_limit() -> None:
    core = MasterCore(MasterSettings("m", "g", in_this_process=True))
    core.definitions.add(Defined(MAX))
    for task, policy in enumerate((TaskPolicy(), TaskPolicy.of(seconds_max=1), TaskPolicy.of(seconds_max=1)), 1):
        core.submit([span(task, MAX, policy=policy)])
    [notice] = [record.text for record in core.take_actions().records if isinstance(record, records.Notice)]
    assert notice == UNLIMITED
