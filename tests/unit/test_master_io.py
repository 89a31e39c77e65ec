"""Unit tests of the loop of the master's I/O thread, over a link and a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
from attrs import define, field

from mwpy._core.master.commands import AllocateSlaves
from mwpy._core.master.core import MasterCore, MasterSettings
from mwpy._core.master.state import Actions
from mwpy._roles.edges import Process
from mwpy._roles.master_io import MasterIo
from mwpy._transport import wire
from mwpy._transport.happened import Frames, Happened, Unreachable
from mwpy._values import messages, records
from mwpy._values.ids import Buffer
from mwpy._values.task import SlaveKind

PEER = b"agent"
TIMEOUT_S = 2.0


@define(eq=False)
class World:
    """The clock, the link and the audit file of a master. Nothing but the test lets time pass."""

    now: float = 100.0
    asleep: bool = False
    trail: list[records.Record] = field(factory=list)
    happens: Callable[[float], list[Happened]] = lambda _: []
    """What happens in the next wait, which lasts at most some seconds."""
    on_send: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now

    wall = monotonic

    def sleep(self, seconds: float) -> None:
        raise AssertionError("the loop waits only for its link")

    def poll(self, timeout_s: float, now: float) -> list[Happened]:
        return self.happens(timeout_s)

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> None:
        self.on_send()

    def write(self, happened: Sequence[records.Record], wall: float) -> None:
        self.trail += happened

    def idle(self, timeout_s: float) -> list[Happened]:
        """Nothing happens, and the wait is as long as it may be."""
        self.now += timeout_s
        return []

    def forget(self, peer: bytes) -> None: ...
    def disconnect(self, peer: bytes) -> None: ...
    def wake(self) -> None: ...
    def close(self, linger_s: float = 0.0) -> None: ...

    def fate(self) -> type[records.Record]:
        """Whether the agent is away or lost."""
        ends = [each for each in self.trail if isinstance(each, records.AgentAway | records.AgentLost)]
        assert len(ends) == 1, self.trail
        return type(ends[0])


def no_process(command: Sequence[str], *, environment: Mapping[str, str]) -> Process:
    raise AssertionError("no process is started")


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def master(world: World) -> MasterIo:
    """A master whose first turn accepts an agent that would look for it."""
    settings = MasterSettings("m", "g", client_timeout_s=TIMEOUT_S)
    master = MasterIo(MasterCore(settings), world, world, world, no_process)
    hello = messages.Hello("m", "g", "host", 1, "3.11", 1, session="secret", returns_s=100.0)
    world.happens = lambda _: [Frames(PEER, "address", list(wire.encode(hello)))]
    return master


def ends_after(world: World, seconds: float) -> None:
    """Let the next wait end after some seconds, because the connection of the agent has ended: the kernel had heard the
    agent until then."""

    def happens(timeout_s: float) -> list[Happened]:
        world.now += seconds
        return [Unreachable(PEER)]

    world.happens = happens


def test_an_agent_whose_process_ends_is_lost_at_once(world: World, master: MasterIo) -> None:
    master.iterate()
    world.happens = world.idle
    for _ in range(20):
        master.iterate()
    ends_after(world, 0.1)
    master.iterate()
    assert world.fate() is records.AgentLost


def test_an_agent_is_away_if_it_ended_the_connection_because_the_master_was_stopped_while_it_waited(
    world: World, master: MasterIo
) -> None:
    master.iterate()
    ends_after(world, TIMEOUT_S)
    master.iterate()
    assert world.fate() is records.AgentAway


def test_an_agent_is_away_if_it_ended_the_connection_because_the_master_was_stopped_while_it_worked(
    world: World, master: MasterIo
) -> None:
    world.on_send = lambda: setattr(world, "now", world.now + TIMEOUT_S)
    master.iterate()
    ends_after(world, 0.001)
    master.iterate()
    assert world.fate() is records.AgentAway


def test_what_waits_for_a_busy_algorithm_keeps_no_sent_message_in_memory(world: World, master: MasterIo) -> None:
    """The algorithm learns of an ordered slave, which got its name."""
    master.command(AllocateSlaves(1, SlaveKind.ORDERED))
    master.iterate()
    world.happens = lambda _: [Frames(PEER, "address", list(wire.encode(messages.SlaveReady(1))))]
    sent: list[bytes] = []
    world.on_send = lambda: sent.append(PEER)
    master.iterate()
    assert sent
    world.happens = world.idle
    master.iterate()
    waits = master.outcomes.get_nowait()
    assert isinstance(waits, Actions)
    assert (len(waits.connected), waits.sends) == (1, [])
