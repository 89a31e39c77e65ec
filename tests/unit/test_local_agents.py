"""When a local agent that ended is replaced, and when the master gives up."""

from __future__ import annotations

import pytest

from mwpy._core.local_agents import EARLY_S, END_S, LONGEST_PAUSE_S, LocalAgentCore, Verdict
from mwpy._values.errors import ExitCode

KILLED = -9, "killed by signal 9"
FAILED = 1, "exit code 1"


@pytest.fixture
def core() -> LocalAgentCore:
    """An agent that was started at 100 s."""
    core = LocalAgentCore("python app.py")
    core.started(100.0, 4)
    return core


def test_an_agent_that_ends_is_replaced(core: LocalAgentCore) -> None:
    expected = Verdict("the local agent ended (exit code 1); starting another", 500.0)
    assert core.ended(*FAILED, 500.0, 4) == expected


def test_an_agent_that_cannot_start_any_slave_is_not_replaced(core: LocalAgentCore) -> None:
    """The agent has printed the reason itself."""
    assert core.ended(ExitCode.CANNOT_START, "exit code 6", 101.0, 4) == Verdict("")


def test_the_third_agent_in_a_row_that_ends_early_by_itself_is_not_replaced(core: LocalAgentCore) -> None:
    """The message shows the command that starts the agent."""
    assert core.ended(*FAILED, 100.0 + EARLY_S - 0.1, 4).start_at == 100.0 + EARLY_S - 0.1
    assert core.ended(*FAILED, 105.0, 4).start_at == 106.0
    verdict = core.ended(*FAILED, 106.0, 4)
    assert verdict.start_at is None
    assert verdict.notice.startswith("3 local agents in a row ended within seconds of their start (exit code 1)")
    assert "`python app.py`" in verdict.notice
    core.check()


@pytest.mark.parametrize("code", [-9, -15, -2, ExitCode.EVICTED, ExitCode.INTERRUPTED, None])
def test_agents_that_are_ended_from_outside_are_always_replaced_after_longer_and_longer_pauses(
    core: LocalAgentCore, code: int | None
) -> None:
    """They were killed, or the system allowed no other process for now."""
    pauses = []
    for _ in range(10):
        verdict = core.ended(code, "it ended", 101.0, 4)
        assert verdict.start_at is not None
        pauses.append(verdict.start_at - 101.0)
        core.started(100.0, 4)
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, *[LONGEST_PAUSE_S] * 5]
    core.check()


def test_an_agent_that_was_of_use_forgives_the_early_ends_before_it(core: LocalAgentCore) -> None:
    for _ in range(2):
        assert core.ended(*FAILED, 101.0, 4).start_at is not None
    assert core.ended(*FAILED, 100.0 + EARLY_S, 4).start_at == 100.0 + EARLY_S
    core.started(200.0, 4)
    for _ in range(2):
        assert core.ended(*FAILED, 201.0, 4).start_at is not None
    assert core.ended(*FAILED, 201.0, 4).start_at is None
    core.check()


def test_an_agent_whose_slave_was_ready_has_not_ended_early(core: LocalAgentCore) -> None:
    """A task may kill its agent again and again, until the master gives the task up."""
    for joined in range(5, 15):
        assert core.ended(*KILLED, 101.0, joined).start_at == 101.0
        core.started(100.0, joined)


def test_an_agent_that_runs_long_after_its_connection_has_ended_is_killed(core: LocalAgentCore) -> None:
    assert not core.must_be_killed(connected=False, now=100.0 + END_S)  # it was not connected yet
    assert not core.must_be_killed(connected=True, now=200.0)
    assert not core.must_be_killed(connected=False, now=200.0 + END_S - 0.1)
    assert core.must_be_killed(connected=False, now=200.0 + END_S)
    core.started(300.0, 5)
    assert not core.must_be_killed(connected=False, now=300.0 + END_S)
