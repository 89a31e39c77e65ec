"""The cores of master and agents together, in simulated worlds with every fault on."""

from __future__ import annotations

import pytest

from mwpy.testing import Cluster, SimulationFailure


@pytest.mark.timeout(0)  # as long as the seeds take; `Cluster` has a limit of its own
def test_every_task_ends_exactly_once_whatever_fails(seeds: range) -> None:
    """Agents crash, freeze, are evicted, connections break and repeat, slaves die: nothing is lost or doubled."""
    for seed in seeds:
        Cluster(seed).run()


def test_one_seed_is_one_history() -> None:
    """The same seed gives the same events in the same order."""
    histories = []
    for _ in range(2):
        cluster = Cluster(7)
        cluster.run()
        histories.append(cluster.transcript)
    assert histories[0] == histories[1]


def test_a_lost_result_is_noticed_and_tells_its_seed() -> None:
    """The checkers look from outside: a core that loses a result is caught."""
    cluster = Cluster(3)
    take = cluster.core.take_actions
    dropped = []

    def forgetful() -> object:
        actions = take()
        if actions.results and not dropped:
            dropped.append(actions.results.pop())
        return actions

    object.__setattr__(cluster, "core", _Forgetful(cluster.core, forgetful))
    with pytest.raises(SimulationFailure, match="seed 3") as caught:
        cluster.run()
    assert caught.value.seed == 3
    assert caught.value.transcript


class _Forgetful:
    """A core of which one method is another's."""

    def __init__(self, core: object, take_actions: object) -> None:
        self._core = core
        self.take_actions = take_actions

    def __getattr__(self, name: str) -> object:
        return getattr(self._core, name)
