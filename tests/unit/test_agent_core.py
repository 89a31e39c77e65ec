"""The agent's decisions that the simulator does not reach, and rare orders of events that it once did not stand."""

from __future__ import annotations

import pytest

from mwpy import _messages as messages
from mwpy._core.agent_core import (
    AgentCore,
    AgentSettings,
    ChildEvent,
    Heard,
    SlaveExited,
    SlaveHeard,
    Terminated,
)
from mwpy.errors import ExitCode, InternalError


@pytest.fixture
def core() -> AgentCore:
    core = AgentCore(AgentSettings("m", "g", "host", 1, "3.11"))
    core.handle(Heard(messages.Welcome("AGENT-0", 30.0, 0, 1000)), 0.0)
    core.handle(SlaveHeard(1, messages.SlaveReady(1)), 0.0)
    core.check()
    core.take_actions()
    return core


def test_a_refusal_is_its_own_exit_code(core: AgentCore) -> None:
    """The slave is told to end, and killed when it does not."""
    core.handle(Heard(messages.Refused("protocol error")), 0.0)
    core.allocate(3.0)
    actions = core.take_actions()
    assert actions.kill == [1]
    core.handle(SlaveExited(1, "killed", "", 0), 3.0)
    assert core.take_actions().exit is ExitCode.REFUSED


def test_a_shutdown_of_an_unfinished_computation_is_no_success(core: AgentCore) -> None:
    """So a batch system keeps the job queued."""
    core.handle(Heard(messages.Shutdown(False, 1.0)), 0.0)
    core.handle(SlaveExited(1, "exit code 255", "", 0), 0.5)
    assert core.take_actions().exit is ExitCode.FAILED


def test_a_slave_that_cannot_be_reaped_does_not_hold_the_agent(core: AgentCore) -> None:
    """One stuck in the kernel is left to it."""
    core.handle(Terminated("evicted"), 0.0)
    core.allocate(6.0)
    core.allocate(9.0)
    assert core.take_actions().exit is ExitCode.EVICTED


def test_what_is_not_for_an_agent_is_passed_over(core: AgentCore) -> None:
    """A probe does nothing; a name or tasks for a slave that is gone neither."""
    core.take_actions()
    for message in (messages.Probe(), messages.SlaveNamed(9, "SLAVE-9"), messages.Revoke(9, 1)):  # type: ignore[arg-type]
        core.handle(Heard(message), 0.0)
    core.handle(Heard(messages.Tasks(9, [], [], [], []), (b"",)), 0.0)
    core.handle("something else", 0.0)  # type: ignore[arg-type]
    actions = core.take_actions()
    assert not actions.to_slaves
    assert not actions.to_master


def test_results_that_were_all_rescued_before_are_dropped(core: AgentCore) -> None:
    """Nothing goes to the master twice."""
    core.handle(Heard(messages.Tasks(1, [5], [1], [0], [0]), (b"",)), 0.0)
    group = messages.Results(1, [5], [1], [0.1], [], [0])
    core.take_actions()
    core.handle(SlaveHeard(1, group, (b"",)), 0.0)
    core.handle(SlaveHeard(1, group, (b"",)), 0.0)
    assert len(core.take_actions().to_master) == 1


def test_a_revoke_of_an_empty_slave_is_answered(core: AgentCore) -> None:
    """So that the master may ask again."""
    core.take_actions()
    core.handle(Heard(messages.Revoke(1, 3)), 0.0)
    assert core.take_actions().to_master == [(messages.Revoked(1, [], []), ())]


def test_nonsense_of_a_slave_and_impossible_ways_are_internal_errors(core: AgentCore) -> None:
    """They tell which slave it was."""
    with pytest.raises(InternalError, match="slave 1 sent a Probe"):
        core.handle(SlaveHeard(1, messages.Probe()), 0.0)
    with pytest.raises(InternalError, match="slave 1 is ready, which cannot get ready"):
        core.children[1].change(ChildEvent.GET_READY)


def _sent_tasks(*tasks: int) -> Heard:
    count = len(tasks)
    return Heard(messages.Tasks(1, list(tasks), [1] * count, [0] * count, [0] * count), (b"",))


def test_an_eviction_that_kills_the_slave_too_ends_with_its_exit_code(core: AgentCore) -> None:
    """SIGTERM to the process group: the agent hears of it and of its slave's end in one iteration.

    The shell finds no slave to recall tasks from.
    """
    core.handle(_sent_tasks(1, 2), 0.0)
    core.take_actions()
    core.handle(Terminated("evicted (SIGTERM)"), 0.0)
    core.handle(SlaveExited(1, "killed by signal 15", "", 1), 0.0)
    actions = core.take_actions()
    assert actions.exit is ExitCode.EVICTED


def test_a_slave_may_die_in_the_iteration_in_which_its_tasks_are_asked_back(core: AgentCore) -> None:
    """The master hears of its death, and of nothing else."""
    core.handle(_sent_tasks(1, 2), 0.0)
    core.take_actions()
    core.handle(Heard(messages.Revoke(1, 1)), 0.0)
    core.handle(SlaveExited(1, "killed by signal 9", "", 1), 0.0)
    actions = core.take_actions()
    assert [message for message, _ in actions.to_master] == [messages.SlaveDied(1, 1, "killed by signal 9", "")]


def test_tasks_that_were_never_passed_on_are_charged_with_no_death(core: AgentCore) -> None:
    """They arrive in the iteration in which their slave, which ran nothing, is found dead."""
    core.handle(_sent_tasks(7), 0.0)
    core.handle(SlaveExited(1, "killed by signal 9", "", 0), 0.0)
    died = [message for message, _ in core.take_actions().to_master]
    assert died == [messages.SlaveDied(1, 0, "killed by signal 9", "")]
