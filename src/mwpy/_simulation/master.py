"""The simulated master process: the real loop of the master, with a simulated link."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mwpy._core.master.core import MasterCore
from mwpy._core.master.state import MasterSettings, ShutDown
from mwpy._roles.master_io import MasterIo
from mwpy._simulation.algorithm import SimulatedAlgorithm
from mwpy._simulation.checkers import HistoryChecker
from mwpy._simulation.lives import Lives, Replay
from mwpy._simulation.machines import AgentHost, Pace, SimulatedProcess, due
from mwpy._simulation.network import Network
from mwpy._simulation.world import Alarm, World
from mwpy._values import records
from mwpy._values.policy import MaxFailures

GRACE_S = 5.0
"""Seconds that agents get for their end."""

CHECKED_EVERY = 4
"""The figures that a core keeps are computed again after each fourth iteration: this costs more than an iteration."""


class SimulatedMaster:
    """A master and its algorithm. It takes the records itself, and checks them.

    Args:
        world: time and chance.
        checker: checks what happens.
        replay: rebuilds the master's state from its records.
        tasks: how many tasks the algorithm submits.
        pace: how fast things happen.
        start: starts local agents.
        ended: called when the master has ended.
        lives: what lasts longer than one life of the master; None if there is no run database.
    """

    def __init__(
        self,
        world: World,
        checker: HistoryChecker,
        replay: Replay,
        tasks: int,
        pace: Pace,
        start: Callable[..., LocalAgentProcess],
        ended: Callable[[], None],
        lives: Lives | None = None,
    ) -> None:
        self._world = world
        self._ended = ended
        self._alarm = Alarm(world, self._iterate)
        self._checker, self._replay = checker, replay
        self._lives = lives
        store = None if lives is None else lives.open()
        generation = "g1" if lives is None else lives.generation
        self.network = Network(world, checker, self.wake, generation)
        group = world.random.choice([None, None, None, 1, 7])
        kept = world.random.choice([5000, 15_000, 1 << 20])  # about one function by value, three, and all
        limit = world.random.choice([None] * 5 + [MaxFailures(3), MaxFailures(2, finish=True), MaxFailures(5, True)])
        settings = MasterSettings(
            "simulated",
            generation,
            group,
            max_call_bytes=1000,
            max_definition_bytes=kept,
            max_failures=limit,
            max_waiting_bytes=world.random.choice([1 << 30, 1 << 30, 2000]),
        )
        checker.most_waiting = settings.max_waiting_bytes
        core = MasterCore(settings)
        if store is not None:
            store.read_into(core)
        edges: Any = (self.network.master, self, world, start, store)
        self.io = MasterIo(core, *edges)
        self.algorithm = SimulatedAlgorithm(world, self.io, checker, replay, tasks, pace, lives)
        if store is not None:
            store.writer.on_brought = self.io.committed.stored
            store.handed_over = self.algorithm.take_outcomes
        self._iterations = 0
        self.closing = False
        """Whether the algorithm has ended."""
        self.over = False
        """Whether the master has ended."""
        self.crashed = False
        """Whether it was killed, and the next one has not started."""

    def wake(self) -> None:
        """Make the master iterate as soon as it can."""
        self._alarm.set(self._world.now)

    def shut_down(self) -> None:
        """End the computation, because the algorithm has ended."""
        self.closing = True
        self.io.commands.append(ShutDown(True, GRACE_S))
        self.wake()

    def crash(self) -> None:
        """The process is killed."""
        assert self._lives is not None, "nothing is left of it"
        self._replay.check_end(self.io.core.state)
        self._lives.crash()
        self.over = self.crashed = self.algorithm.is_over = True

    def write(self, happened: Sequence[records.Record], now: float) -> None:
        """Check the records."""
        self._checker.retries.now = now
        for record in happened:
            self._checker.recorded(record)
            self._replay.recorded(record)

    def close(self) -> None:
        """Do nothing: there is no file of records."""

    def _iterate(self) -> None:
        if self.over:
            return
        self.over = self.io.turn(self.io.link.poll(0.0, self._world.now))
        self._iterations += 1
        if self._iterations % CHECKED_EVERY == 0 or self.over:
            self.io.core.check()
        timeout_s = self.io.prepare_to_wait(self._world.now)
        self.algorithm.take_outcomes()
        if self.over:
            self._ended()
        else:
            self._alarm.set(due(self._world.now, timeout_s))


class LocalAgentProcess(SimulatedProcess):
    """The process of a local agent, as the master sees it."""

    def __init__(self, host: AgentHost) -> None:
        self._host = host

    def end(self, code: int) -> None:
        """It is killed."""
        self._host.kill()
