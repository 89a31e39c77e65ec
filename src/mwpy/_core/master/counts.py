"""The figures that a master publishes."""

from __future__ import annotations

from msgspec import Struct, field

from mwpy._core.master import allocation
from mwpy._core.master.feeding import Feeding
from mwpy._core.master.hosts import Hosts
from mwpy._core.master.kinds import SlaveKinds
from mwpy._core.master.members import absent, num_present
from mwpy._core.master.state import MasterState
from mwpy._values.task import SlaveKind

__all__ = ["Counting", "Counts"]


class Counts(Struct, frozen=True):
    """Figures for the algorithm, the resource file and inquirers."""

    slaves_wanted: int
    slaves_connected: int
    slaves_needed: int
    shortest_task_s: float = 0.0
    """How many seconds each pending task needs at least; 0 if this is not known of all of them."""
    agents: int = 0
    """How many agents are connected."""
    jobs: dict[str, int] = field(default_factory=dict)
    """The jobs of a batch system that are connected, and how many slaves of each are in use."""
    excluded: dict[str, list[str]] = field(default_factory=dict)
    """The hosts that get no more work, and their last jobs."""


class Counting:
    """Counts slaves and agents, and computes how many slaves are needed."""

    def __init__(self, state: MasterState, kinds: SlaveKinds, hosts: Hosts, feeding: Feeding) -> None:
        self._state = state
        self._kinds = kinds
        self._hosts = hosts
        self._feeding = feeding

    def counts(self) -> Counts:
        """Return the figures of this moment."""
        state, kinds, hosts = self._state, self._kinds, self._hosts
        jar, members, wanted, expected = state.jar, state.members, kinds.wanted, kinds.expected
        if kinds.unordered_unasked:
            soon = jar.runnable - len(jar.delayed.tasks) - len(jar.blocked.tasks) + expected
            wanted = wanted | {SlaveKind.UNORDERED: soon}
        waiting = jar.pending.num_unaddressed + expected
        useful = min(wanted[SlaveKind.UNORDERED], allocation.useful(members, waiting, state.settings.task_group))
        special = sum(1 for _ in kinds.vacancies())
        spent = allocation.spent(members, jar.pending, state.now)
        away = sum(slave.kind_to_be is SlaveKind.UNORDERED for slave in absent(members))
        unordered = kinds.count(SlaveKind.UNORDERED) - away - hosts.num_useless - spent
        missing = max(0, useful - unordered) + special - members.coming()
        return Counts(
            slaves_wanted=sum(wanted.values()),
            slaves_connected=num_present(members),
            slaves_needed=0 if state.closing or self._feeding.out_of_time else max(0, missing),
            shortest_task_s=jar.pending.shortest_s,
            agents=len(members.agents),
            jobs=members.jobs(),
            excluded=hosts.named,
        )
