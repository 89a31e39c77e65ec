"""What simulated slaves have to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from mwpy._simulation.checkers import HistoryChecker
from mwpy._simulation.shares import SimulatedStore
from mwpy._simulation.world import World
from mwpy._values.messages import LoadFailure

__all__ = ["Workload"]


class Workload(Struct, eq=False):
    """What the slaves of an agent have to do, and the checker that watches them."""

    world: World
    checker: HistoryChecker
    durations: Sequence[float]
    """How long the tasks of each algorithm take on average, in seconds."""
    start_s: float
    """The longest start of a slave."""
    able: bool
    """Whether the slaves can run every algorithm."""
    bad: str
    """What each task does here: it kills its slave ("slave"), raises an exception ("error") or works well ("")."""
    max_tasks: int | None
    """How many tasks a slave may run; None if there is no limit."""
    max_memory: int | None
    """How much memory a slave may have between two tasks; None if there is no limit."""
    host: str
    """The name of their machine."""
    peer: bytes
    """The connection of their agent."""
    attentive: Callable[[], bool]
    """Whether their agent runs, and was not frozen a moment ago."""
    in_contact: Callable[[], bool]
    """Whether their agent runs and is connected to its master, and was so for a while."""
    frozen_until: Callable[[], float]
    """Until when their agent was frozen the last time, or still is; 0 if it never was."""
    is_short: Callable[[], bool]
    """Whether the slaves used nearly all memory of their job a moment ago."""
    running: Callable[[], list[int]]
    """The tasks that the slaves of this agent run."""
    kill_agent: Callable[[], None]
    store: SimulatedStore
    """The shared objects at their agent."""
    successor: Workload | None = None
    """What slaves have to do in the next life of the master; None if their agent has not followed it."""

    @property
    def newest(self) -> Workload:
        """What slaves have to do in the newest life."""
        return self if self.successor is None else self.successor.newest

    def load(self) -> LoadFailure | None:
        """Why a slave cannot load an algorithm, if it cannot. Only a machine that is not able fails for sure."""
        if not self.able and self.world.chance(0.05):
            return LoadFailure.OTHER_CODE if self.world.chance(0.3) else LoadFailure.SURE
        return LoadFailure.PASSING if self.world.chance(0.1) else None
