"""How a map ends: a real map, the real master and real agents, with simulated slaves, links and time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from random import Random

import pytest
from attrs import define, field
from msgspec.structs import replace
from tests.spans import MAX

from mwpy._core.master.algorithms import Defined
from mwpy._roles import maps
from mwpy._roles.definitions import Definitions
from mwpy._roles.inbox import Access, Inbox
from mwpy._roles.maps import MapRun, items_of
from mwpy._roles.submission import Calls
from mwpy._simulation.machines import AgentHost, Pace, SimulatedSlave
from mwpy._transport.codec import Codec
from mwpy._values.policy import DEFAULT_POLICY
from mwpy.testing import Cluster

IDLE_S = 0.16
"""The longest time that a slave may be idle while an item waits at another one: `SILENT_S`, and the time of four
messages, which bring the last result of the idle slave, take items back, and send them. A message takes 5 ms on average
here, and sometimes much longer."""

AGENTS = 2

_DICE = Random(1)

SECONDS = {
    "short": [0.0003] * 700,
    "over three decades": [10 ** _DICE.uniform(-3.0, 0.0) for _ in range(200)],
    "longer and longer": [0.0001 * 1.01**number for number in range(600)],
    "one long among short": [0.001] * 400 + [2.0] + [0.001] * 100,
    "long behind short": [0.001] * 400 + [0.3] * 20,
}
"""How long the items of maps take, in seconds."""


@define(eq=False)
class Watched:
    """A map over a cluster without faults, and what its slaves do.

    Args:
        slaves: how many slaves each agent has.
    """

    slaves: int
    cluster: Cluster = field(init=False)
    busy: dict[SimulatedSlave, int] = field(factory=dict)
    """The item that each slave runs; 0 if it is idle."""
    idle_since: dict[SimulatedSlave, float] = field(factory=dict)
    waits: dict[int, float] = field(factory=dict)
    """For each item: how long another slave had been idle when it was started for the first time, in seconds."""

    def __attrs_post_init__(self) -> None:
        pace = Pace(faulty_s=0.0)
        self.cluster = Cluster(1, agents=0, tasks=0, pace=pace, bad="", crashes=False)
        io = self.cluster.master.io
        io.commands.clear()  # which the algorithm of the simulator has given, and which has nothing else to do
        settings = io.core.state.settings
        io.core.state.settings = replace(settings, task_group=None, max_failures=None, max_waiting_bytes=1 << 30)
        for number in range(AGENTS):
            self.cluster.add_agent(AgentHost(f"host {number}", lambda code: None, num_slaves=self.slaves))
        while io.num_slaves < AGENTS * self.slaves:
            self.cluster.world.step()

    def run(self, seconds: Sequence[float], is_known: bool, is_packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """Run a map whose items take these times, to its end."""
        io, algorithm = self.cluster.master.io, self.cluster.master.algorithm
        algorithm.is_over = True
        monkeypatch.setattr(algorithm, "take_outcomes", lambda: None)
        monkeypatch.setattr(maps, "clock", self.cluster.world)
        defined = Defined(MAX)
        io.core.definitions.add(defined)
        terms = defined, DEFAULT_POLICY, None
        source = items_of(terms, max, (self._items(seconds, defined),), io.core.state.settings)
        source.terms = source.terms if is_packed else None
        for host in self.cluster.hosts:
            assert host.process is not None
            self.busy |= dict.fromkeys((each for each in host.process.slaves.values() if each.sets_up is None), 0)
        self.idle_since = dict.fromkeys(self.busy, self.cluster.world.now)
        access = Access(io, threading.current_thread(), self._drive)
        inbox = Inbox(access, io.core.state.settings)
        calls = Calls(Definitions(Codec()), {}, inbox.refer)
        total = len(seconds) if is_known else None
        given = MapRun(access, inbox, calls, source, ordered=False, total=total).start()
        assert sorted(result.tag for result in given) == [*range(1, len(seconds) + 1)]

    def _items(self, seconds: Sequence[float], defined: Defined) -> Iterator[int]:
        checker, world = self.cluster.checker, self.cluster.world
        for item, each in enumerate(seconds, 1):
            checker.submitted(item, DEFAULT_POLICY, "", 0, defined.record)
            world.seconds[item] = each
            yield item

    def _drive(self, timeout_s: float | None) -> None:
        """Simulate until there is an outcome."""
        while timeout_s != 0.0 and self.cluster.master.io.users.algorithm.outcomes.empty():
            self.cluster.world.step()
            self._look()

    def _look(self) -> None:
        now, ran = self.cluster.world.now, self.busy
        self.busy = {slave: slave.running for slave in ran}
        self.idle_since |= {slave: now for slave, item in self.busy.items() if ran[slave] and not item}
        idle_s = max((now - self.idle_since[slave] for slave, item in self.busy.items() if not item), default=0.0)
        for item in filter(None, self.busy.values()):
            self.waits.setdefault(item, idle_s)

    @property
    def tail_s(self) -> float:
        """Between the last item of the slave that had nothing more to do first, and the end of all items."""
        return max(self.idle_since.values()) - min(self.idle_since.values())


@pytest.mark.parametrize("slaves", [1, 4])
@pytest.mark.parametrize(
    ("is_known", "is_packed"),
    [(True, True), (False, True), (False, False)],
    ids=["a list", "an iterator", "items that are submitted alone"],
)
@pytest.mark.parametrize("seconds", SECONDS.values(), ids=SECONDS)
def test_no_item_waits_behind_others_while_a_slave_is_idle(
    seconds: Sequence[float], is_known: bool, is_packed: bool, slaves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the end of the map is not longer than its longest item, and the time until the master takes items back."""
    watched = Watched(slaves)
    watched.run(seconds, is_known, is_packed, monkeypatch)
    assert max(watched.waits.values()) <= IDLE_S
    assert watched.tail_s <= max(seconds) + IDLE_S
