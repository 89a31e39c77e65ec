"""Unit tests of the agent's loop, over a link and a clock that the test moves."""

from __future__ import annotations

import signal
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import pytest
from attrs import define, field

from mwpy._core.agent.child import AgentSettings
from mwpy._core.agent.core import AgentCore
from mwpy._roles.agent import LATE_S, Agent
from mwpy._roles.edges import AgentEdges, SlaveHandle
from mwpy._transport.shared_objects import Store
from mwpy._values import messages, records
from mwpy._values.bounds import Buffer
from mwpy._values.connections import Broken, Connected

TIMEOUT_S = 30.0

Poll = tuple[list[Connected | Broken], list[list[Buffer]], list[int]]


def nothing() -> Poll:
    return [], [], []


@define(eq=False)
class World:
    """The clock, the link, the signals and the audit file of an agent. Nothing but the test lets time pass."""

    now: float = 100.0
    happens: Callable[[], Poll] = nothing
    """What ends the next wait."""
    works_s: float = 0.0
    """How long each turn takes after its wait, in seconds."""
    trail: list[records.Record] = field(factory=list)

    def monotonic(self) -> float:
        return self.now

    wall = monotonic

    def sleep(self, seconds: float, /) -> None:
        self.now += seconds

    def poll(self, timeout_s: float | None, files: Mapping[int, int]) -> Poll:
        return self.happens()

    def fileno(self) -> int:
        return 99

    def take(self) -> Sequence[signal.Signals]:
        self.now += self.works_s
        return ()

    def write(self, happened: Sequence[records.Record], wall: float) -> None:
        self.trail += happened

    def start(self, number: int, welcome: messages.Welcome) -> SlaveHandle:
        raise AssertionError("no slave is started")

    def clear(self) -> None: ...
    def send(self, frames: Sequence[Buffer]) -> None: ...
    def reap(self, known: Container[int]) -> None: ...
    def close(self, linger_s: float = 0.0) -> None: ...

    def loss(self) -> str:
        """Why the agent has lost its master."""
        said = [record.text for record in self.trail if isinstance(record, records.Notice)]
        (why,) = (text for text in said if text.startswith("the master is lost: "))
        return why


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def agent(world: World) -> Agent:
    """An agent that the master has not accepted yet."""
    hello = messages.Hello("m", "g", "host", 1, "3.11", 1)
    core = AgentCore(AgentSettings(hello, client_timeout_s=TIMEOUT_S))
    edges: Any = (world, world, {}, world, world, world, Store(), None)
    agent = Agent(core, AgentEdges(*edges))
    agent.begin()
    return agent


def breaks_after(world: World, seconds: float) -> None:
    """Let the next wait end after some seconds, because the connection breaks."""

    def happens() -> Poll:
        world.sleep(seconds)
        return [Broken("lost", "it broke")], [], []

    world.happens = happens


@pytest.mark.parametrize(
    ("works_s", "waits_s", "stopped"),
    [(0.0, 0.0, False), (LATE_S, TIMEOUT_S / 2, False), (TIMEOUT_S, 0.0, True), (0.0, 1.5 * TIMEOUT_S, True)],
)
def test_an_agent_notices_that_it_was_stopped_while_it_worked_or_waited(
    world: World, agent: Agent, works_s: float, waits_s: float, stopped: bool
) -> None:
    """It may wait for half of the client timeout. Its work takes no time that counts."""
    world.works_s = works_s
    agent.iterate()
    breaks_after(world, waits_s)
    agent.iterate()
    assert world.loss() == (
        "the master is lost: this agent was stopped for 30 s, and starts again"
        if stopped
        else "the master is lost: it broke"
    )
