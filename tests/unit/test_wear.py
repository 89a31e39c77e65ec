"""Slaves that are replaced between tasks, slaves that hang in their start, and agents that have no work."""

from __future__ import annotations

import pytest
from tests.driven_agent import HELLO, WELCOME, agent, heard, results, slave_heard, tasks, to_master, with_slaves

from mwpy._core.agent.child import (
    AgentSettings,
    Resumed,
    SlaveExited,
    StreamEnded,
)
from mwpy._core.agent.core import AgentCore
from mwpy._core.agent.limits import EXIT_S
from mwpy._core.agent.starts import ABORT_S, FAILED_STARTS_ALLOWED
from mwpy._values import messages
from mwpy._values.causes import Cause
from mwpy._values.errors import ExitCode
from mwpy._values.last_words import NO_WORDS

# ---- wear ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "reason"), [("exit code 0", ""), ("exit code 3", " (exit code 3)")], ids=["well", "with a failure"]
)
def test_the_end_of_a_worn_slave_is_no_failure_and_has_its_reason(end: str, reason: str) -> None:
    """The tasks that it has not started run elsewhere, and nobody is charged."""
    core = agent()
    core.handle(tasks(1, 2, 3), 0.0)
    core.handle(results(1, 2), 0.0)
    core.handle(slave_heard(messages.SlaveWorn(1, "replaced after 2 tasks")), 0.0)
    core.take_actions()
    core.handle(SlaveExited(1, end, NO_WORDS, 2), 0.0)
    actions = core.take_actions()
    assert to_master(actions) == [messages.SlaveDied(1, 0, Cause.CRASH, f"replaced after 2 tasks{reason}", NO_WORDS)]
    assert actions.start == [2]


# ---- the time of a start -------------------------------------------------------------------------------------------


def test_the_end_of_a_slave_that_hangs_in_its_start_is_not_put_off_if_it_closes_its_stream() -> None:
    core = AgentCore(AgentSettings(HELLO, start_timeout_s=60.0))
    core.handle(heard(WELCOME), 0.0)
    core.decide(60.0)
    core.handle(StreamEnded(1), 61.0)
    core.take_actions()
    core.decide(60.0 + ABORT_S)
    assert core.take_actions().kill == [1]


def test_a_slave_that_closes_its_stream_in_its_start_and_hangs_counts_as_a_failed_start() -> None:
    core = AgentCore(AgentSettings(HELLO))
    core.handle(heard(WELCOME), 0.0)
    for number in range(1, FAILED_STARTS_ALLOWED + 1):
        core.handle(StreamEnded(number), 10.0)
        core.take_actions()
        core.decide(10.0 + EXIT_S)
        assert core.take_actions().kill == [number]
        core.handle(SlaveExited(number, "killed by signal 9 (SIGKILL)", NO_WORDS, 0), 10.0 + EXIT_S)
    assert core.take_actions().exit is ExitCode.CANNOT_START


def test_a_slave_that_starts_gets_more_time_if_its_agent_was_stopped() -> None:
    """The slave was most likely stopped, too."""
    core = AgentCore(AgentSettings(with_slaves(2)))
    core.handle(heard(WELCOME), 0.0)
    core.handle(slave_heard(messages.SlaveReady(1)), 10.0)
    core.handle(Resumed(1000.0), 1020.0)
    assert core.next_deadline() == 1300.0
    core.decide(1299.0)
    assert core.take_actions().abort == []
    core.decide(1300.0)
    assert core.take_actions().abort == [2]


# ---- an idle agent -------------------------------------------------------------------------------------------------


def test_the_end_of_a_job_may_come_before_the_end_of_the_idle_time() -> None:
    core = agent(grace_s=5.0, ends_at=50.0, idle_exit_s=60.0)
    core.decide(0.0)
    assert core.next_deadline() == 43.0
