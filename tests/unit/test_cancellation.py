"""Cancelling in the master: pending tasks, tasks that slaves hold, and what agents still send for them."""

from __future__ import annotations

import pytest
from tests.spans import MAX, MIN, held_by, span, spans_in

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.core import MasterCore
from mwpy._core.master.spans import Span
from mwpy._core.master.state import (
    Actions,
    AllocateSlaves,
    CancelTasks,
    FreeSlave,
    MasterSettings,
    Received,
    Running,
    Vanished,
)
from mwpy._values import groups, messages, records
from mwpy._values.bounds import SlaveId
from mwpy._values.causes import Cause
from mwpy._values.errors import TaskCancelled
from mwpy._values.last_words import NO_WORDS
from mwpy._values.policy import DEFAULT_POLICY, TaskPolicy
from mwpy._values.task import SlaveKind, SlaveState
from mwpy.testing import Cluster

KILL, FINISH, DISCARD = Running


class Master:
    """A master with one agent and its slaves. By default, each slave is sent four tasks at a time."""

    def __init__(self, slaves: int = 1, task_group: int = 4) -> None:
        self.core = MasterCore(MasterSettings("m", "g", task_group=task_group))
        for algorithm in (MAX, MIN):
            self.core.definitions.add(Defined(algorithm))
        self.receive(messages.Hello("m", "g", "host", 1, "3.11", slaves))
        for number in range(1, slaves + 1):
            self.receive(messages.SlaveReady(number))
        self.core.take_actions()

    def receive(self, message: messages.Message, *frames: bytes) -> None:
        self.core.handle(Received(b"a", "here", message, frames), 0.0)
        self.core.check()

    def submit(self, first: int, count: int, algorithm: records.AlgorithmDefined = MAX, sid: str = "") -> None:
        policy = TaskPolicy(SlaveId(sid) if sid else None)
        new = span(first, algorithm, count, policy=policy)
        new.tags = tuple(f"tag {number}" for number in new.ids)
        self.core.submit([new])
        self.core.decide(0.0)
        self.core.take_actions()

    def cancel(self, *ranges: tuple[int, int], running: Running = KILL) -> Actions:
        self.core.obey(CancelTasks(ranges, running))
        self.core.check()
        return self.core.take_actions()

    def revoked(self, first: int, count: int, *, cancelled: bool = True) -> list[int]:
        """Slave 1 gives tasks back. Return the tasks that are cancelled then."""
        self.receive(messages.Revoked(1, [first], [count], [1], cancelled))
        return ended(self.core.take_actions())

    def finish(self, first: int, count: int) -> list[int]:
        """Slave 1 sends results. Return the tasks whose results count."""
        group = messages.Results(1, [first], [count], [1], [0.1] * count, [])
        self.receive(group, groups.payload(count, [b"\x07"] * count))
        results = self.core.take_actions().results
        assert all(result.value == 7 for result in results)
        return [result.task_id for result in results]

    def held(self, number: int = 0) -> list[int]:
        return held_by(self.core, f"SLAVE-{number}")


def ended(actions: Actions) -> list[int]:
    """The tasks that come back as cancelled. No other task comes back."""
    assert not actions.unrunnable
    for result in actions.results:
        assert isinstance(result.error, TaskCancelled)
        assert result.tag == f"tag {result.task_id}"
    return [result.task_id for result in actions.results]


def sent(actions: Actions) -> list[messages.Message]:
    return [send.message for send in actions.sends]


def test_waiting_tasks_are_cancelled_at_once() -> None:
    """Their queues, the counts and the order of the others are right. No agent gets a message."""
    master = Master()
    master.core.obey(AllocateSlaves(1, SlaveKind.ORDERED))
    master.submit(1, 6)
    master.submit(7, 2, MIN)
    master.submit(9, 6, sid="SLAVE-0")
    assert master.held() == [9, 10, 11, 12]
    actions = master.cancel((13, 1), (2, 2), (7, 2))
    assert (ended(actions), sent(actions)) == ([2, 3, 7, 8, 13], [])
    [(_, unended)] = actions.cancelled
    assert unended == [2, 3, 7, 8, 13]
    text = str(actions.results[0].error)
    assert text == "task 2 (max) failed, item 'tag 2': TaskCancelled: it was cancelled before it was sent to a slave"
    assert (master.core.state.jar.pending.counts, master.core.state.jar.runnable) == ({0: 5}, 9)
    assert sorted(number for each in spans_in(master.core) for number in each.ids) == [1, 4, 5, 6, 9, 10, 11, 12, 14]
    assert ended(master.cancel((14, 1))) == [14]
    assert not master.core.state.jar.pending.addressed


def test_tasks_at_slaves_are_cancelled_with_one_message_to_their_agent() -> None:
    """The master does not wait for the agent. The slaves that hold nothing more are idle."""
    master = Master(slaves=2)
    master.submit(1, 8)
    assert (master.held(0), master.held(1)) == ([1, 2, 3, 4], [5, 6, 7, 8])
    actions = master.cancel((1, 4), (6, 2))
    assert ended(actions) == [1, 2, 3, 4, 6, 7]
    assert sent(actions) == [messages.Cancel([1, 6], [4, 2], kill=True)]
    assert {result.sid for result in actions.results} == {"SLAVE-0", "SLAVE-1"}
    assert (master.held(0), master.held(1)) == ([], [5, 8])
    states = [slave.state for slave in master.core.state.members.slaves.values()]
    assert states == [SlaveState.IDLE, SlaveState.BUSY]


def test_thousands_of_tasks_are_cancelled_with_few_records_and_one_message() -> None:
    """There is a record for the waiting tasks, and one for each slave, although each second task stays."""
    master = Master(slaves=2, task_group=1000)
    master.submit(1, 4000)
    actions = master.cancel(*((number, 1) for number in range(1, 4001, 2)))
    kinds = [type(record) for record in actions.records]
    assert kinds == [records.TasksCancelled] * 3
    [message] = sent(actions)
    assert isinstance(message, messages.Cancel)
    assert (message.tasks, set(message.counts)) == ([*range(1, 2001, 2)], {1})
    assert sorted(ended(actions)) == [*range(1, 4001, 2)]
    assert (master.held(0), master.held(1)) == ([*range(2, 1001, 2)], [*range(1002, 2001, 2)])


def test_what_an_agent_still_sends_for_killed_tasks_changes_nothing() -> None:
    """Late results, tasks that are given back, a refusal, and the death of the slave that ran one of them."""
    master = Master()
    master.submit(1, 4)
    assert ended(master.cancel((1, 3))) == [1, 2, 3]
    assert master.finish(1, 1) == []
    assert master.revoked(2, 1) == []
    master.receive(messages.AlgorithmFailed(1, 0, "cannot", [3], [1], [1]))
    master.receive(messages.SlaveDied(1, 1, Cause.CRASH, "killed by signal 9", NO_WORDS))
    assert ended(master.core.take_actions()) == []
    [waiting] = spans_in(master.core)
    assert ([*waiting.ids], waiting.deaths, waiting.sid) == ([4], (), None)


def test_tasks_that_may_finish_end_as_they_can() -> None:
    """Results count. Tasks that have not started are cancelled when the agent says so."""
    master = Master()
    master.submit(1, 6)
    actions = master.cancel((1, 5), running=FINISH)
    assert (ended(actions), sent(actions)) == ([5], [messages.Cancel([1], [4], kill=False)])
    [(_, unended)] = actions.cancelled
    assert unended == [1, 2, 3, 4, 5]
    assert master.held() == [1, 2, 3, 4]
    assert master.finish(1, 1) == [1]
    assert master.revoked(3, 2) == [3, 4]
    assert master.finish(2, 1) == [2]
    master.core.decide(0.0)
    assert master.held() == [6]


@pytest.mark.parametrize("how", ["given back", "refused", "died", "died elsewhere", "leaving", "lost"])
def test_a_task_that_may_finish_is_never_sent_again(how: str) -> None:
    """It is cancelled when it comes back unfinished for any reason. The other task of the slave runs again."""
    master = Master()
    master.submit(1, 2)
    master.cancel((1, 1), running=FINISH)
    match how:
        case "given back":
            master.receive(messages.Revoked(1, [1], [2], [1]))
        case "refused":
            master.receive(messages.AlgorithmFailed(1, 0, "cannot", [1], [2], [1]))
        case "died":
            master.receive(messages.SlaveDied(1, 1, Cause.CRASH, "killed by signal 11", NO_WORDS))
        case "died elsewhere":
            master.receive(messages.SlaveDied(1, 0, Cause.CRASH, "killed by signal 11", NO_WORDS))
        case "leaving":
            master.receive(messages.Leaving("evicted", Cause.EVICTED))
            master.receive(messages.SlaveDied(1, 1, Cause.CRASH, "killed by signal 15", NO_WORDS))
        case "lost":
            master.core.handle(Vanished(b"a", 0.0), 0.0)
    actions = master.core.take_actions()
    assert ended(actions) == [1]
    [waiting] = spans_in(master.core)
    assert ([*waiting.ids], len(waiting.deaths)) == ([2], 1 if how == "lost" else 0)


def test_a_task_that_may_finish_can_still_be_killed() -> None:
    """A second request to let it finish changes nothing."""
    master = Master()
    master.submit(1, 2)
    master.cancel((1, 1), running=FINISH)
    again = master.cancel((1, 1), running=FINISH)
    assert not again.records
    [(_, unended)] = again.cancelled
    assert unended == [1]
    assert ended(master.cancel((1, 1))) == [1]


def test_discarded_tasks_do_not_come_back() -> None:
    """Nobody hears of them, and they are no longer counted."""
    master = Master()
    master.submit(1, 6)
    actions = master.cancel((1, 6), running=DISCARD)
    assert ended(actions) == []
    assert sent(actions) == [messages.Cancel([1], [4], kill=True)]
    assert [unended for _, unended in actions.cancelled] == [[1, 2, 3, 4, 5, 6]]
    assert master.core.state.jar.runnable == 0


def test_tasks_that_have_ended_stay_as_they_are() -> None:
    """Finished, cancelled, and unknown tasks are not in the answer."""
    master = Master()
    master.submit(1, 2)
    assert master.finish(1, 1) == [1]
    assert ended(master.cancel((2, 1))) == [2]
    actions = master.cancel((1, 2), (77, 5))
    assert (ended(actions), sent(actions), actions.records) == ([], [], [])
    assert [unended for _, unended in actions.cancelled] == [[]]


def test_an_answer_to_a_cancellation_is_not_an_answer_to_a_revocation() -> None:
    """The master waits on for the tasks that it asked back, and may ask again."""
    master = Master()
    master.submit(1, 4)
    slave = master.core.state.members.slaves[SlaveId("SLAVE-0")]
    slave.asked_back = True
    master.cancel((4, 1), running=FINISH)
    assert master.revoked(4, 1) == [4]
    assert slave.asked_back
    assert master.revoked(3, 1, cancelled=False) == []
    assert not slave.asked_back


def test_a_freed_slave_is_unordered_when_its_last_task_is_cancelled() -> None:
    master = Master()
    master.core.obey(AllocateSlaves(1, SlaveKind.ORDERED))
    master.submit(1, 1, sid="SLAVE-0")
    master.core.obey(FreeSlave(SlaveId("SLAVE-0")))
    master.cancel((1, 1))
    assert master.core.state.members.slaves[SlaveId("SLAVE-0")].kind is SlaveKind.UNORDERED


def test_a_cancellation_waits_for_a_task_that_was_submitted_a_moment_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """The I/O thread has just taken all tasks, when the other thread submits another one and cancels it."""
    cluster = Cluster(1, agents=0, tasks=0)
    cluster.checker.cancelled([1])
    io = cluster.master.io
    take, algorithm = io.submissions.take, Defined(MAX)
    command = CancelTasks([(1, 1)], KILL)

    def take_too_early() -> list[Span]:
        taken = take()
        io.submissions.add(algorithm, DEFAULT_POLICY, b"", (), "tag 1")
        io.commands.append(command)
        return taken

    monkeypatch.setattr(io.submissions, "take", take_too_early)
    io.turn([])
    assert [*io.commands] == [command]
    monkeypatch.setattr(io.submissions, "take", take)
    io.turn([])
    io.prepare_to_wait(0.0)
    outcome = io.outcomes.get_nowait()
    assert isinstance(outcome, Actions)
    assert (ended(outcome), outcome.cancelled) == ([1], [(command, [1])])
