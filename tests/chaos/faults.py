"""The kinds of faults, and the plan of a run: which fault happens when and for how long.

A kind is a generator. It begins its fault and yields; then it is resumed many times in a second with False, and with
True when the fault has to end. A kind that ends without a yield found nothing that it could harm.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Generator
from pathlib import Path

from attrs import define, field, frozen
from tests.chaos.machines import ROOM, Machine, resize, shrink
from tests.chaos.supervision import Watched, family_of
from tests.integration.apps.stage import kill, slaves_of

Course = Generator[None, bool, None]
"""What a fault does, from its begin to its end."""

BETWEEN_S = 1.5
"""The mean time between the begins of two faults."""

STEPS_S = (3600, -3600, 7, -7, 400 * 86400)
"""By how many seconds a clock is stepped: a wrong time zone, a time server, a dead battery."""

SHRINK_S = 0.5

CYCLE_S, RUNS = 0.1, 0.2
"""A slowed processor runs in this share of each cycle."""


@define(eq=False)
class Ground:
    """What faults can harm."""

    master: Watched
    agents: list[Watched]
    machines: list[Machine]
    disk: Path | None
    """The disk of the run database; None if it cannot be filled."""

    is_full: bool = False
    why: dict[str, str] = field(factory=dict)
    """Why a kind of fault is left out."""

    def agent(self, dice: random.Random) -> Watched | None:
        """Choose an agent that runs."""
        running = [agent for agent in self.agents if agent.pid]
        return dice.choice(running) if running else None

    def slave(self, dice: random.Random) -> int:
        """Choose a slave that runs; 0 if there is none."""
        slaves = [slave for agent in self.agents if agent.pid for slave in slaves_of(agent.pid)]
        return dice.choice(slaves) if slaves else 0


def lasting() -> Course:
    """Wait for the end of the fault."""
    while not (yield):
        pass


def slave_killed(ground: Ground, dice: random.Random) -> Course:
    if slave := ground.slave(dice):
        kill(slave, signal.SIGKILL)
        yield


def slave_stopped(ground: Ground, dice: random.Random) -> Course:
    if slave := ground.slave(dice):
        kill(slave, signal.SIGSTOP)
        yield from lasting()
        kill(slave, signal.SIGCONT)


def agent_killed(ground: Ground, dice: random.Random) -> Course:
    if agent := ground.agent(dice):
        agent.ask("agent killed")
        agent.send(signal.SIGKILL)
        yield


def agent_evicted(ground: Ground, dice: random.Random) -> Course:
    if agent := ground.agent(dice):
        agent.ask("agent evicted")
        agent.send(signal.SIGTERM)
        yield


def stopped(watched: Watched) -> Course:
    """Stop a process, and let it continue. It may have ended in the meantime."""
    pid = watched.pid
    kill(pid, signal.SIGSTOP)
    yield from lasting()
    kill(pid, signal.SIGCONT)


def agent_stopped(ground: Ground, dice: random.Random) -> Course:
    if agent := ground.agent(dice):
        yield from stopped(agent)


def host_cut_off(ground: Ground, dice: random.Random) -> Course:
    machine = dice.choice([machine for machine in ground.machines if machine.has_cable])
    machine.cut()
    yield from lasting()
    machine.cut(False)


def network_slowed(ground: Ground, dice: random.Random) -> Course:
    machine = dice.choice([machine for machine in ground.machines if machine.has_cable])
    if machine.slow():
        return
    yield from lasting()
    machine.slow(False)


def processor_slowed(ground: Ground, dice: random.Random) -> Course:
    """An agent and its slaves get a fifth of their time."""
    agent = ground.agent(dice)
    if agent is None:
        return
    pid, begun = agent.pid, time.monotonic()
    while not (yield):
        runs = (time.monotonic() - begun) % CYCLE_S < RUNS * CYCLE_S
        for each in (pid, *family_of(pid)):
            kill(each, signal.SIGCONT if runs else signal.SIGSTOP)
    for each in (pid, *family_of(pid)):
        kill(each, signal.SIGCONT)


def master_killed(ground: Ground, dice: random.Random) -> Course:
    if ground.master.pid:
        ground.master.ask("master killed")
        ground.master.send(signal.SIGKILL)
        yield


def master_stopped(ground: Ground, dice: random.Random) -> Course:
    if ground.master.pid:
        yield from stopped(ground.master)


def disk_full(ground: Ground, dice: random.Random) -> Course:
    """Leave no room on the disk until the master has ended, or has not noticed it for the whole time."""
    if ground.disk is None or ground.is_full or not ground.master.pid:
        return
    ground.is_full, ends = True, len(ground.master.ends)
    ground.master.ask("disk full")
    shrunk = 0.0
    while True:
        if time.monotonic() > shrunk + SHRINK_S:  # also what was freed in the meantime
            shrink(ground.disk)
            shrunk = time.monotonic()
        if (yield) or len(ground.master.ends) > ends:
            break
    if len(ground.master.ends) == ends:
        ground.master.ask("")
    resize(ground.disk, ROOM)
    ground.is_full = False


def clock_stepped(ground: Ground, dice: random.Random) -> Course:
    machine = dice.choice(ground.machines)
    machine.step_clock(dice.choice(STEPS_S))
    yield from lasting()
    machine.step_clock(0)


@frozen
class Kind:
    """A kind of fault."""

    weight: int
    """How often it happens, in comparison with others."""

    shortest_s: float
    longest_s: float
    course: Callable[[Ground, random.Random], Course]


KINDS = {
    "slave killed": Kind(4, 0, 0, slave_killed),
    "slave stopped": Kind(2, 0.5, 5, slave_stopped),
    "agent killed": Kind(2, 0, 0, agent_killed),
    "agent evicted": Kind(1, 0, 0, agent_evicted),
    "agent stopped": Kind(2, 0.5, 8, agent_stopped),
    "host cut off": Kind(2, 0.5, 10, host_cut_off),
    "network slowed": Kind(2, 1, 10, network_slowed),
    "processor slowed": Kind(1, 2, 8, processor_slowed),
    "master killed": Kind(3, 0, 0, master_killed),
    "master stopped": Kind(1, 0.5, 6, master_stopped),
    "disk full": Kind(1, 15, 15, disk_full),
    "clock stepped": Kind(2, 1, 10, clock_stepped),
}


@define(eq=False)
class Fault:
    """A fault of the plan."""

    kind: str
    at_s: float
    for_s: float
    dice: random.Random
    begun: float | None = None
    ended: float | None = None


def plan(seed: int, seconds: float, kinds: list[str]) -> list[Fault]:
    """Draw the faults of a run: first each kind once, then kinds by their weights."""
    dice, faults, at = random.Random(seed), list[Fault](), 0.0
    first = dice.sample(kinds, len(kinds))
    weights = [KINDS[kind].weight for kind in kinds]
    while (at := at + dice.expovariate(1 / BETWEEN_S)) < seconds:
        kind = first.pop() if first else dice.choices(kinds, weights)[0]
        for_s = dice.uniform(KINDS[kind].shortest_s, KINDS[kind].longest_s)
        faults.append(Fault(kind, at, for_s, random.Random(dice.random())))
    return faults
