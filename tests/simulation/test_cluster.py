"""The cores of master and agents together, in simulated worlds with every fault on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mwpy
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


def test_one_seed_is_one_history_in_every_process() -> None:
    """No order depends on where objects lie in memory, or on how this process hashes strings."""
    program = (
        "from mwpy.testing import Cluster\n"
        "for seed in range(20):\n"
        "    cluster = Cluster(seed)\n"
        "    cluster.run()\n"
        "    print(seed, *cluster.transcript, sep='\\n')\n"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(mwpy.__file__).parent.parent)},
            stdout=subprocess.PIPE,
            check=True,
            timeout=60,
        ).stdout
        for hash_seed in ("1", "2", "3")
    ]
    assert told[0] == told[1] == told[2]
    assert told[0].count(b"ends: result") > 1000


def test_a_lost_result_is_noticed_and_tells_its_seed() -> None:
    """The checkers look from outside: a core that loses a result is caught."""
    cluster = Cluster(3)
    take = cluster.core.take_actions
    dropped: list[object] = []

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
