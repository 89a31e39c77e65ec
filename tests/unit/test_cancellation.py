"""Cancelling in the master: pending tasks, tasks that slaves hold, and what agents still send for them."""

from __future__ import annotations

import pytest
from tests.driven import Driven
from tests.spans import MAX, spans_in

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.spans import Span
from mwpy._core.master.state import Actions, CancelTasks, Running, Vanished
from mwpy._values import messages
from mwpy._values.causes import Cause
from mwpy._values.errors import TaskCancelled
from mwpy._values.last_words import NO_WORDS
from mwpy._values.policy import DEFAULT_POLICY
from mwpy.testing import Cluster

KILL, FINISH = Running.KILL, Running.FINISH


class Master(Driven):
    """A master with one agent and one slave, which is sent four tasks at a time."""

    def __init__(self) -> None:
        super().__init__(task_group=4)
        self.join()


def ended(actions: Actions) -> list[int]:
    """The tasks that come back as cancelled. No other task comes back."""
    assert not actions.unrunnable
    for result in actions.results:
        assert isinstance(result.error, TaskCancelled)
        assert result.tag == f"tag {result.task_id}"
    return [result.task_id for result in actions.results]


@pytest.mark.parametrize("how", ["given back", "refused", "died", "died elsewhere", "leaving", "lost"])
def test_a_task_that_may_finish_is_never_sent_again(how: str) -> None:
    """It is cancelled when it comes back unfinished for any reason. The other task of the slave runs again."""
    master = Master()
    master.submit(2, tag="tag 1")
    actions = master.step(CancelTasks([(1, 1)], FINISH))
    match how:
        case "given back":
            actions = master.receive(messages.Revoked(1, [1], [2], [1]))
        case "refused":
            actions = master.receive(messages.AlgorithmFailed(1, 0, "cannot", [1], [2], [1]))
        case "died":
            actions = master.receive(messages.SlaveDied(1, 1, Cause.CRASH, "killed by signal 11", NO_WORDS))
        case "died elsewhere":
            actions = master.receive(messages.SlaveDied(1, 0, Cause.CRASH, "killed by signal 11", NO_WORDS))
        case "leaving":
            master.receive(messages.Leaving("evicted", Cause.EVICTED))
            actions = master.receive(messages.SlaveDied(1, 1, Cause.CRASH, "killed by signal 15", NO_WORDS))
        case "lost":
            actions = master.step(Vanished(b"a", 0.0))
    assert ended(actions) == [1]
    [waiting] = spans_in(master.core)
    assert ([*waiting.ids], len(waiting.deaths)) == ([2], 1 if how == "lost" else 0)


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
    outcome = io.users.algorithm.outcomes.get_nowait()
    assert isinstance(outcome, Actions)
    assert (ended(outcome), outcome.cancelled) == ([1], [(command, [1])])
