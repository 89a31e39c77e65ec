"""Masters and agents with their loops and cores run together in a simulated world that has every fault."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mwpy
from mwpy._core.master import hosts
from mwpy.testing import Cluster


@pytest.mark.timeout(0)  # no limit: there may be many seeds, and `Cluster` limits each run
def test_every_task_ends_exactly_once_despite_faults(seeds: range) -> None:
    """Agents crash, freeze and leave. Connections break. Slaves die and hang."""
    for seed in seeds:
        Cluster(seed).run()


@pytest.fixture
def few(seeds: range) -> range:
    """Seeds for histories that are longer than others, or of a special kind: 10 of 500, and more of more."""
    return range(max(10, len(seeds) // 50))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts are judged after a few attempts, and come back soon, so that this happens often in a short history."""
    for name, value in {"NEEDED": 3, "MOST": 6, "WITNESSED": 3, "EXCLUDED_S": 10.0}.items():
        monkeypatch.setattr(hosts, name, value)


@pytest.mark.parametrize("bad", ["slave", "error"])
@pytest.mark.usefixtures("hasty")
@pytest.mark.timeout(0)
def test_a_host_where_each_task_fails_gets_no_more_work(bad: str, few: range) -> None:
    """Each task there kills its slave, or raises an exception. All other faults happen, too."""
    histories = [Cluster(seed, agents=4, tasks=200, bad=bad, crashes=False) for seed in range(2 * len(few))]
    for cluster in histories:
        cluster.run()
    assert sum(cluster.checker.members.times for cluster in histories) > 0.4 * len(histories)


@pytest.mark.timeout(0)
def test_a_good_host_is_not_excluded(few: range) -> None:
    """Tasks kill slaves and raise exceptions, but nowhere more often than elsewhere."""
    for seed in few:
        cluster = Cluster(seed, agents=4, tasks=200, bad="", crashes=False)
        cluster.run()
        assert not cluster.checker.members.times


@pytest.mark.timeout(0)
def test_tasks_that_kill_their_agent_end_even_if_there_is_only_one_agent(few: range) -> None:
    """In some of these histories, a fifth of the tasks does so."""
    killers = 0
    for seed in few:
        cluster = Cluster(seed, agents=1, crashes=False)
        cluster.hosts[0].num_slaves = 4  # up to three of them are ordered or intermingle
        cluster.run()
        killers += sum(task.kills == "agent" for task in cluster.checker.tasks.values())
    assert killers > len(few)


@pytest.mark.timeout(0)
def test_the_same_seed_gives_the_same_history_in_every_process(few: range) -> None:
    """No order depends on the addresses of objects in memory, or on how a process hashes strings."""
    count = 8 * len(few) // 10
    program = (
        "from mwpy._simulation.batch import OverseenPool\n"
        "from mwpy.testing import Cluster\n"
        f"for history in (OverseenPool(7), *map(Cluster, range({count}))):\n"
        "    history.run()\n"
        "    print(*history.transcript, sep='\\n')\n"
    )
    printed = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(mwpy.__file__).parent.parent)},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for hash_seed in ("1", "2", "3")
    ]
    assert printed[0] == printed[1] == printed[2]
    assert printed[0].count(b"ends: result") > 25 * count


def test_reports_of_live_attempts_reach_the_algorithm() -> None:
    histories = [Cluster(seed, crashes=False) for seed in range(10)]
    for cluster in histories:
        cluster.run()
    assert sum(cluster.master.algorithm.reports.given for cluster in histories) > 10
