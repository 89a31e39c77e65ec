"""When a local agent that ended is replaced, and when the master gives up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest

from mwpy._roles.local_agents import EARLY_S, END_S, LONGEST_PAUSE_S, LocalAgent
from mwpy._values.errors import ExitCode

KILLED, FAILED = -9, 1


class Machine:
    """The machine of a master: its time, its processes, and what the master says. A process is the machine itself."""

    pid = 7

    def __init__(self) -> None:
        self.now, self.joined, self.connected = 100.0, 4, False
        self.code: int | None = None
        self.is_full = self.was_killed = False
        self.starts: list[float] = []
        self.said: list[str] = []
        edges: Any = (self.start, self, self.said.append, lambda: self.joined, lambda _: self.connected)
        self.agent = LocalAgent(*edges)
        own: Any = self
        self.agent.keep(["python", "app.py"], {}, own)

    def start(self, command: Sequence[str], *, environment: Mapping[str, str]) -> Machine:
        assert (command, environment) == (["python", "app.py"], {})
        self.starts.append(self.now)
        if self.is_full:
            raise BlockingIOError(11, "try again")
        self.code = None
        return self

    def monotonic(self) -> float:
        return self.now

    def poll(self) -> int | None:
        return self.code

    def describe_exit(self) -> str:
        return f"exit code {self.code}"

    def kill(self) -> None:
        self.was_killed = True

    def pause(self, code: int, after_s: float = 1.0) -> float | None:
        """End the agent some seconds after its start. Return how long nothing runs then; None if nothing ever does."""
        self.now, self.code = self.now + after_s, code
        ended, count = self.now, len(self.starts)
        self.agent.look()
        while len(self.starts) == count:
            if self.agent.why_none is not None:
                return None
            self.now += 0.5
            self.agent.look()
        return self.now - ended


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_an_agent_that_ends_is_replaced(machine: Machine) -> None:
    assert machine.pause(FAILED, after_s=400.0) == 0.0
    assert machine.said == ["the local agent ended (exit code 1); starting another"]


def test_an_agent_with_a_wrong_option_is_not_replaced(machine: Machine) -> None:
    assert machine.pause(ExitCode.USAGE) is None
    [text] = machine.said
    assert text.startswith("the local agent ended (exit code 2), as it says above. An agent is started as `python app")


def test_an_agent_that_cannot_start_any_slave_is_not_replaced(machine: Machine) -> None:
    """The agent has printed the reason itself."""
    assert machine.pause(ExitCode.CANNOT_START) is None
    assert (machine.agent.why_none, machine.said) == ("", [])


def test_the_third_agent_in_a_row_that_ends_early_by_itself_is_not_replaced(machine: Machine) -> None:
    """The message shows the command that starts the agent."""
    assert [machine.pause(FAILED, EARLY_S - 0.1) for _ in range(3)] == [1.0, 2.0, None]
    assert machine.said[-1].startswith("3 local agents in a row ended within seconds of their start (exit code 1)")
    assert "`python app.py`" in machine.said[-1]
    assert machine.agent.why_none == machine.said[-1]


@pytest.mark.parametrize("code", [-9, -15, -2, ExitCode.EVICTED, ExitCode.INTERRUPTED])
def test_agents_that_are_ended_from_outside_are_always_replaced_after_longer_and_longer_pauses(
    machine: Machine, code: int
) -> None:
    assert [machine.pause(code) for _ in range(10)] == [1.0, 2.0, 4.0, 8.0, *[LONGEST_PAUSE_S] * 6]


def test_agents_that_end_again_and_again_are_reported_less_and_less_often(machine: Machine) -> None:
    """At least every ten minutes. After an agent that was useful, the next end is reported at once."""
    said = []
    for _ in range(500):
        machine.pause(KILLED)
        said += [machine.now for _ in machine.said]
        machine.said.clear()
    gaps = [later - earlier for earlier, later in pairwise(said)]
    pauses = [10.0, 30.0, 90.0, 270.0, *[600.0] * (len(gaps) - 4)]
    assert all(0.0 <= gap - pause <= LONGEST_PAUSE_S + 1.0 for gap, pause in zip(gaps, pauses, strict=True))
    machine.pause(KILLED, EARLY_S)
    assert len(machine.said) == 1


def test_a_start_that_the_system_refuses_for_now_is_tried_again(machine: Machine) -> None:
    machine.is_full = True
    machine.pause(KILLED)
    for _ in range(100):
        machine.now += 1.0
        machine.agent.look()
    assert machine.agent.why_none is None
    machine.is_full = False
    machine.now += LONGEST_PAUSE_S
    machine.agent.look()
    assert machine.agent.running


def test_an_agent_that_was_of_use_forgives_the_early_ends_before_it(machine: Machine) -> None:
    assert [machine.pause(FAILED), machine.pause(FAILED)] == [1.0, 2.0]
    assert machine.pause(FAILED, EARLY_S) == 0.0
    assert [machine.pause(FAILED) for _ in range(3)] == [1.0, 2.0, None]


def test_an_agent_whose_slave_was_ready_has_not_ended_early(machine: Machine) -> None:
    """A task may kill its agent again and again, until the master gives the task up."""
    for _ in range(10):
        machine.joined += 1
        assert machine.pause(KILLED) == 0.0


def test_an_agent_that_runs_long_after_its_connection_has_ended_is_killed(machine: Machine) -> None:
    for after_s, connected, is_killed in [
        (END_S, False, False),  # it was not connected yet
        (100.0, True, False),
        (END_S - 0.1, False, False),
        (0.1, False, True),
    ]:
        machine.now, machine.connected = machine.now + after_s, connected
        machine.agent.look()
        assert machine.was_killed == is_killed
