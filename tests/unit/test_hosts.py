"""Excluded hosts: which host gets no more work, what follows, and when it comes back."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from tests.master_state import Books
from tests.spans import MAX, MIN, span

from mwpy._core.master import hosts as module
from mwpy._core.master.hosts import EXCLUDED_S, NEEDED, WITNESSED, Hosts
from mwpy._values import messages, records
from mwpy._values.policy import DEFAULT_POLICY, TaskPolicy
from mwpy._values.records import AlgorithmDefined
from mwpy._values.task import SlaveState

BAD, GOOD = 1, 0


class Pool:
    """Hosts with one agent and one slave each, and the tasks that end there."""

    def __init__(self, *names: str) -> None:
        self.books = Books()
        self.hosts = self.books.core.hosts
        self.slaves = {name: self.books.slave(host=name) for name in names}
        self.tasks = 0

    def end(
        self,
        host: str,
        bad: int,
        count: int = 1,
        task: int | None = None,
        algorithm: AlgorithmDefined = MAX,
        policy: TaskPolicy = DEFAULT_POLICY,
    ) -> None:
        """The next tasks, or those from an id on, end on a host, `bad` of them badly."""
        if task is None:
            task = self.tasks + 1
            self.tasks += count
        own = span(task, algorithm, count, policy=policy)
        self.hosts.ended(own, host, count, bad, f"no disk on {host}" if bad else "")

    def decide(self, now: float = 0.0) -> list[str]:
        """Return the hosts that are excluded now."""
        self.hosts.decide(now)
        return [*self.books.state.members.excluded]

    def mix(self, rates: dict[str, float], rounds: int, seed: int) -> list[str]:
        """Let each host end a task in each round. The numbers are the parts of bad tasks. Return the excluded hosts."""
        random = Random(seed)
        for _ in range(rounds):
            for host, rate in rates.items():
                if host not in self.books.state.members.excluded:
                    self.end(host, int(random.random() < rate))
            self.decide()
        return [*self.books.state.members.excluded]


def alternate(pool: Pool, bad: str, good: Sequence[str], rounds: int = max(NEEDED, WITNESSED)) -> None:
    """Tasks end by turns: badly on one host, and well on others."""
    for _ in range(rounds):
        pool.end(bad, BAD)
        for host in good:
            pool.end(host, GOOD)
    pool.end(bad, BAD)


def test_a_host_where_tasks_fail_that_succeed_elsewhere_gets_no_more_work() -> None:
    pool = Pool("node1", "node2")
    alternate(pool, "node1", ["node2"], rounds=9)
    assert pool.decide() == []
    pool.end("node2", GOOD)
    pool.end("node1", BAD)
    assert pool.decide() == ["node1"]
    actions = pool.books.state.take_actions()
    [excluded] = [record for record in actions.records if isinstance(record, records.HostExcluded)]
    reason = "host node1 gets no more work for 1 h: 11 of 11 attempts of max failed there, and 0 of 10 on 1 other host"
    assert excluded == records.HostExcluded("node1", reason)
    [notice] = [record.text for record in actions.records if isinstance(record, records.Notice)]
    assert notice.startswith(f"{reason}. For example: no disk on node1. Its tasks run elsewhere. Compare this machine")
    slave = pool.slaves["node1"]
    assert [(send.peer, send.message) for send in actions.sends] == [
        (slave.agent.peer, messages.Refused(reason, finish=True))
    ]
    assert slave.state is SlaveState.SHUTTING_DOWN
    assert pool.slaves["node2"].state is SlaveState.IDLE


def test_an_algorithm_that_fails_everywhere_excludes_no_host() -> None:
    """One host is first, and has failed often when the next one connects."""
    pool = Pool("node1", "node2", "node3")
    pool.end("node1", 50, 50)
    assert pool.decide() == []
    assert pool.mix({"node1": 1.0, "node2": 1.0, "node3": 1.0}, 100, seed=1) == []


def test_a_block_of_bad_tasks_excludes_no_host() -> None:
    """They fail at once, so a host gets one after the other. The tasks before and after them succeed elsewhere."""
    pool = Pool("node1", "node2", "node3")
    for _ in range(100):
        pool.end("node2", GOOD)
    for _ in range(1000):
        pool.end("node1", BAD)
    for _ in range(100):
        pool.end("node2", GOOD)
        pool.end("node3", GOOD)
    assert pool.decide() == []


@pytest.mark.parametrize("seed", range(20))
def test_tasks_that_fail_by_chance_exclude_no_host(seed: int) -> None:
    for rate in (0.02, 0.1, 0.3, 0.5, 0.8, 0.95):
        pool = Pool("node1", "node2", "node3", "node4")
        assert pool.mix(dict.fromkeys(pool.slaves, rate), 300, seed) == []


@pytest.mark.parametrize("seed", range(20))
def test_two_bad_hosts_of_six_are_found_although_some_tasks_fail_everywhere(seed: int) -> None:
    pool = Pool("a", "b", "c", "d", "e", "f")
    rates = {"a": 1.0, "b": 0.05, "c": 0.95, "d": 0.05, "e": 0.05, "f": 0.05}
    assert sorted(pool.mix(rates, 200, seed)) == ["a", "c"]


def test_the_only_host_that_can_run_a_waiting_algorithm_is_not_excluded() -> None:
    pool = Pool("node1", "node2")
    pool.books.submit(1, MIN)
    agent = pool.slaves["node2"].agent.name
    pool.books.state.record(records.AlgorithmRefused(agent, "min", "no module", MIN.definition.number))
    alternate(pool, "node1", ["node2"])
    assert pool.decide() == []
    [notice] = [record.text for record in pool.books.taken() if isinstance(record, records.Notice)]
    assert "It still gets work, because no other host can run min." in notice
    pool.books.slave(host="node3")
    pool.end("node1", BAD)
    assert pool.decide() == ["node1"]


def test_slaves_that_die_in_their_start_count() -> None:
    pool = Pool("node1", "node2")
    for _ in range(NEEDED):
        pool.hosts.started("node2")
        pool.hosts.started("node1", failure="no module named numpy")
    pool.hosts.started("node2")
    pool.hosts.started("node1", failure="no module named numpy")
    assert pool.decide() == ["node1"]
    assert "11 of 11 starts of slaves failed there" in pool.books.state.members.excluded["node1"]


def test_an_excluded_host_comes_back_after_a_time_that_doubles() -> None:
    pool = Pool("node1", "node2")
    now = 5.0
    for pause_s in (EXCLUDED_S, 2 * EXCLUDED_S, 4 * EXCLUDED_S):
        alternate(pool, "node1", ["node2"])
        assert pool.decide(now) == ["node1"]
        assert [pool.hosts.deadline] == [now + pause_s]
        pool.end("node1", BAD)
        assert pool.decide(now + pause_s - 0.1) == ["node1"]
        now += pause_s
        pool.books.taken()
        assert pool.decide(now) == []
        assert pool.books.taken() == [records.HostReadmitted("node1")]
        assert [pool.hosts.deadline] == [None]
        pool.books.slave(host="node1")


def test_what_members_name_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOSTS_KEPT", 2)
    monkeypatch.setattr(module, "ALGORITHMS_KEPT", 1)
    pool = Pool(*(f"node{number}" for number in range(9)))
    for number in range(4):
        pool.end(f"node{number}", BAD)
    assert _suspects(pool.hosts) == {"max": ["node2", "node3"]}
    pool.end("node1", BAD, algorithm=MIN)
    assert _suspects(pool.hosts) == {"min": ["node1"]}
    for number in range(4):
        alternate(pool, f"node{number}", ["node5", "node6", "node7"], rounds=2 * NEEDED)
        pool.decide(float(number))
    assert list(pool.books.state.members.excluded) == ["node0", "node1"]
    pool.decide(1.0 + EXCLUDED_S)
    pool.books.slave(host="node0")
    alternate(pool, "node2", ["node5"], rounds=2 * NEEDED)
    assert pool.decide(2.0 + EXCLUDED_S) == ["node2"]


def _suspects(hosts: Hosts) -> dict[str, list[str]]:
    return {name: [*suspicions] for name, suspicions in hosts.suspicions.items()}


# ---- in a core -----------------------------------------------------------------------------------------------------
