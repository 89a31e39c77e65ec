"""States that tasks leave for their next attempts, with real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.integration.apps.stage import Stage, until

import mwpy

STEPS = 60
"""Steps of the long task. They take longer together than several agents live."""

LIFETIME_S = 5
"""How long an agent may live, in seconds. It begins to leave in the middle of this time."""


def test_a_task_that_is_longer_than_each_agent_lives_finishes(stage: Stage) -> None:
    """Each attempt goes on where an earlier one was, also after the kill of an agent. Nobody is charged."""
    log = stage.folder / "log"
    master = stage.master("longer.py", STEPS, log)
    agents = 0
    while master.process.poll() is None:
        before = len(stage.audited("-> state of task 1"))
        agent = stage.agent("longer.py", "--mw-lifetime", LIFETIME_S, "--mw-grace-period", 0.5)
        agents += 1
        if agents == 2:
            until(
                lambda: (
                    len(stage.audited("-> state of task 1")) > before or agent.process.poll() is not None  # noqa: B023
                ),
                "a state of the killed agent",
            )
            agent.send(signal.SIGKILL)
        agent.end()
    assert master.end() == 0, master.err
    begins = [*map(int, log.read_text().split())]
    assert begins == sorted(begins), "an attempt went back behind an earlier one"
    assert begins[0] == 0 < begins[-1]
    assert len(begins) >= 3, "no agent ended before the task"
    assert master.report["value"] == STEPS
    assert "UNRUNNABLE" not in stage.audit.read_text()
    stage.no_process_left()


@pytest.fixture(scope="module", params=[0, 1], ids=["here", "slave"])
def mw(request: pytest.FixtureRequest) -> Iterator[mwpy.Master]:
    with mwpy.local_master(slaves=request.param) as mw:
        yield mw


class State:
    """A state of a class of one's own, with a large array."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.array = np.full(100_000, number)


def grow(least: int, error: bool) -> tuple[int, int]:
    """Add 1 to the state, and fail until it is large enough."""
    state = mwpy.restored(State(0))
    after = State(state.number + 1)
    mwpy.checkpoint(after)
    after.array[:] = -1  # what is changed after the call does not count
    if after.number < least:
        if error:
            raise OSError(f"only {after.number}")
        os._exit(1)
    return state.number, int(state.array.max())


def test_a_task_that_raised_an_exception_goes_on_from_its_state(mw: mwpy.Master) -> None:
    """Each task has its own state."""
    policy: dict[str, Any] = {"retry_errors": OSError, "attempts_max": 9}
    assert [*mw.map(grow, [4, 1, 3], [True] * 3, **policy)] == [(3, 3), (0, 0), (2, 2)]


def test_a_task_that_ended_its_slave_goes_on_from_its_state() -> None:
    """The newest state leaves the slave before the slave ends, however often the task leaves one."""
    with mwpy.local_master(slaves=2) as mw:
        assert [*mw.map(grow, [4, 1, 3], [False] * 3, attempts_max=9)] == [(3, 3), (0, 0), (2, 2)]


def fail_from(step: int) -> None:
    for number in range(mwpy.restored(0), step):
        mwpy.checkpoint(number + 1)
    raise ValueError(f"began at {mwpy.restored('the beginning')}")


def test_a_replay_begins_with_the_last_state(mw: mwpy.Master) -> None:
    """The states that it leaves itself change nothing."""
    [result] = mw.map_results(fail_from, [1000])
    assert result.error is not None
    assert result.error.text == "began at the beginning"
    for _ in range(2):
        with pytest.raises(ValueError, match="began at 1000"):
            mwpy.replay(result.task_id)


def leave_many(times: int) -> int:
    for number in range(times):
        mwpy.checkpoint(bytes(100_000) + bytes([number % 256]))
    return times


def test_a_task_may_leave_states_in_a_tight_loop(mw: mwpy.Master) -> None:
    """Neither the agent nor the master keeps more than the newest ones."""
    assert [*mw.map(leave_many, [2000, 10])] == [2000, 10]
    with pytest.raises(mwpy.UsageError, match=r"mwpy\.checkpoint\(\) works only in a task"):
        mwpy.checkpoint(1)
