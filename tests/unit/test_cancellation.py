"""Cancelling in the master: pending tasks, tasks that slaves hold, and what agents still send for them."""

from __future__ import annotations

import pytest
from tests.spans import MAX

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.spans import Span
from mwpy._core.master.state import Actions, CancelTasks, Running
from mwpy._values.errors import TaskCancelled
from mwpy._values.policy import DEFAULT_POLICY
from mwpy.testing import Cluster

KILL, FINISH = Running.KILL, Running.FINISH


def ended(actions: Actions) -> list[int]:
    """The tasks that come back as cancelled. No other task comes back."""
    assert not actions.unrunnable
    for result in actions.results:
        assert isinstance(result.error, TaskCancelled)
        assert result.tag == f"tag {result.task_id}"
    return [result.task_id for result in actions.results]


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
