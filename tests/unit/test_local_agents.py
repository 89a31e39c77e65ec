"""When a local agent that ended is replaced, and when the master gives up."""

from __future__ import annotations

import pytest

from mwpy._core.local_agents import EARLY_S, END_S, LocalAgentCore, Verdict
from mwpy._values.errors import ExitCode


@pytest.fixture
def core() -> LocalAgentCore:
    """An agent that was started at 100 s."""
    core = LocalAgentCore("python app.py")
    core.started(100.0, 4)
    return core


def test_an_agent_that_ends_is_replaced(core: LocalAgentCore) -> None:
    expected = Verdict(True, "the local agent ended (exit code 1); starting another")
    assert core.ended(1, "exit code 1", 500.0, 4) == expected


def test_an_agent_that_cannot_start_any_slave_is_not_replaced(core: LocalAgentCore) -> None:
    """The agent has printed the reason itself."""
    assert core.ended(ExitCode.CANNOT_START, "exit code 78", 101.0, 4) == Verdict(False)


def test_the_third_agent_in_a_row_that_ends_early_is_not_replaced(core: LocalAgentCore) -> None:
    """The message shows the command that starts the agent."""
    assert core.ended(1, "exit code 1", 100.0 + EARLY_S - 0.1, 4).start_another
    assert core.ended(None, "cannot be started: no memory", 105.0, 4).start_another
    verdict = core.ended(-9, "killed by signal 9", 106.0, 4)
    assert not verdict.start_another
    assert verdict.notice.startswith("3 local agents in a row ended within seconds of their start (killed by signal 9)")
    assert "`python app.py`" in verdict.notice
    core.check()


def test_an_agent_that_was_of_use_forgives_the_early_ends_before_it(core: LocalAgentCore) -> None:
    for _ in range(2):
        assert core.ended(1, "exit code 1", 101.0, 4).start_another
    assert core.ended(1, "exit code 1", 100.0 + EARLY_S, 4).start_another
    core.started(200.0, 4)
    for _ in range(2):
        assert core.ended(1, "exit code 1", 201.0, 4).start_another
    assert not core.ended(1, "exit code 1", 201.0, 4).start_another
    core.check()


def test_an_agent_whose_slave_was_ready_has_not_ended_early(core: LocalAgentCore) -> None:
    """A task may kill its agent again and again, until the master gives the task up."""
    for joined in range(5, 15):
        assert core.ended(-9, "killed by signal 9", 101.0, joined).start_another
        core.started(100.0, joined)


def test_an_agent_that_runs_long_after_its_connection_has_ended_is_killed(core: LocalAgentCore) -> None:
    assert not core.must_be_killed(connected=False, now=100.0 + END_S)  # it was not connected yet
    assert not core.must_be_killed(connected=True, now=200.0)
    assert not core.must_be_killed(connected=False, now=200.0 + END_S - 0.1)
    assert core.must_be_killed(connected=False, now=200.0 + END_S)
    core.started(300.0, 5)
    assert not core.must_be_killed(connected=False, now=300.0 + END_S)
