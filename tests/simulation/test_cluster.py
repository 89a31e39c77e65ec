"""The loops and cores of master and agents together, in simulated worlds with every fault on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import mwpy
from mwpy._core.agent import output, watch
from mwpy._core.master.core import Actions, MasterCore
from mwpy.testing import Cluster, SimulationFailure


@pytest.mark.timeout(0)  # as long as the seeds take; `Cluster` has a limit of its own
def test_every_task_ends_exactly_once_whatever_fails(seeds: range) -> None:
    """Agents crash, freeze and leave, connections break and repeat, slaves die and hang: nothing is lost or doubled."""
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
    printed = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(mwpy.__file__).parent.parent)},
            stdout=subprocess.PIPE,
            check=True,
            timeout=60,
        ).stdout
        for hash_seed in ("1", "2", "3")
    ]
    assert printed[0] == printed[1] == printed[2]
    assert printed[0].count(b"ends: result") > 1000


def test_a_lost_result_is_noticed_and_reported_with_its_seed() -> None:
    """The checkers look from outside: a core that loses a result is caught."""
    cluster = Cluster(3)
    cluster.master.io.core = _Forgetful(cluster.core)  # type: ignore[assignment]
    with pytest.raises(SimulationFailure, match="seed 3") as caught:
        cluster.run()
    assert caught.value.seed == 3
    assert caught.value.transcript


class _Forgetful:
    """A core that drops the first result."""

    def __init__(self, core: MasterCore) -> None:
        self._core = core
        self._dropped = False

    def take_actions(self) -> Actions:
        actions = self._core.take_actions()
        if actions.results and not self._dropped:
            self._dropped = True
            actions.results.pop()
        return actions

    def __getattr__(self, name: str) -> object:
        return getattr(self._core, name)


@pytest.mark.parametrize(
    ("module", "name", "value", "found"),
    [
        (watch, "KILLED_TOO_S", 0.0, "is charged for a slave that was killed with its agent"),
        (watch, "SILENT_S", 0.2, "waits in slave"),
        (watch, "EXIT_S", 60.0, "hangs and was not killed"),
        (output, "HELD_BACK_BYTES", -1, "was printed 2 times"),
    ],
)
def test_a_wrong_decision_about_time_or_output_is_noticed(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, value: float, found: str
) -> None:
    """An agent is caught that reports a SIGKILL at once, leaves results or slaves waiting, or prints every failure."""
    monkeypatch.setattr(module, name, value)
    assert any(found in reason for reason in map(reason_of_failure, range(60)))


def reason_of_failure(seed: int) -> str:
    """What is found wrong with a history; empty if nothing is."""
    try:
        Cluster(seed).run()
    except SimulationFailure as failure:
        return str(failure)
    return ""
