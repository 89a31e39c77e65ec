"""Excluded hosts: which host gets no more work, what follows, and when it comes back."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from tests.master_state import Books
from tests.spans import MAX, MIN, held_by, span

from mwpy._core.master import hosts as module
from mwpy._core.master.algorithms import Defined
from mwpy._core.master.core import MasterCore
from mwpy._core.master.hosts import EXCLUDED_S, NEEDED, WITNESSED, Hosts
from mwpy._core.master.state import AllocateSlaves, MasterSettings, Received
from mwpy._transport.codec import Codec
from mwpy._values import groups, messages, records
from mwpy._values.bounds import SlaveId
from mwpy._values.causes import Cause
from mwpy._values.last_words import NO_WORDS
from mwpy._values.policy import DEFAULT_POLICY, TaskPolicy
from mwpy._values.records import AlgorithmDefined
from mwpy._values.task import SlaveKind, SlaveState

BAD, GOOD = 1, 0

FAILURE = Codec().dumps_failure(OSError("no disk"))


class Pool:
    """Hosts with one agent and one slave each, and the tasks that end there."""

    def __init__(self, *names: str) -> None:
        self.books = Books()
        self.hosts = self.books.hosts()
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
        self.hosts.check()

    def decide(self, now: float = 0.0) -> list[str]:
        """Return the hosts that are excluded now."""
        self.hosts.decide(now)
        self.hosts.check()
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


def test_a_host_that_was_good_for_long_is_judged_by_what_follows() -> None:
    pool = Pool("node1", "node2")
    pool.end("node1", GOOD, 100_000)
    alternate(pool, "node1", ["node2"])
    assert pool.decide() == ["node1"]


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


def test_a_host_that_gets_good_tasks_again_after_a_block_of_bad_ones_is_not_suspected() -> None:
    pool = Pool("node1", "node2")
    pool.end("node1", 1000, 1000)
    for _ in range(7):
        pool.end("node1", GOOD)
    alternate(pool, "node1", ["node2"], rounds=8)
    assert pool.decide() == []


def test_a_task_that_succeeds_elsewhere_after_it_failed_is_the_best_witness() -> None:
    pool = Pool("node1", "node2")
    for task in range(1, 1 + NEEDED):
        pool.end("node1", BAD, task=task)
        pool.end("node2", GOOD, task=task)
    assert pool.decide() == ["node1"]


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


def test_two_hosts_that_contradict_each_other_are_both_kept() -> None:
    """One algorithm fails on the first host, and another one on the second. At most half of the hosts are excluded."""
    pool = Pool("node1", "node2")
    for _ in range(NEEDED + 1):
        pool.end("node2", BAD, task=pool.tasks, algorithm=MIN)
        pool.end("node1", GOOD, task=pool.tasks, algorithm=MIN)
        alternate(pool, "node1", ["node2"], rounds=1)
    assert pool.decide() == ["node1"]
    notices = [record.text for record in pool.books.taken() if isinstance(record, records.Notice)]
    assert len(notices) == 2
    assert "host node2: 11 of 11 attempts of min failed there, and 0 of 11 on 1 other host. It still gets" in notices[1]
    assert "because too many would be excluded: something else seems to be wrong. For example" in notices[1]
    pool.end("node2", BAD, algorithm=MIN)
    assert pool.decide() == ["node1"]
    assert pool.books.taken() == []


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


def test_tasks_that_the_algorithm_addresses_to_a_slave_do_not_count() -> None:
    pool = Pool("node1", "node2")
    for _ in range(2 * NEEDED):
        pool.end("node1", BAD, policy=TaskPolicy(sid=SlaveId("SLAVE-0")))
        pool.end("node2", GOOD)
    assert pool.decide() == []


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


def test_the_jobs_of_excluded_hosts_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JOBS_KEPT", 2)
    pool = Pool("node1", "node2")
    pool.hosts.note_job("node1", "1.0")
    alternate(pool, "node1", ["node2"])
    pool.decide()
    assert pool.hosts.named == {"node1": ["7.0"]}
    for job in ("", "1.1", "1.2"):
        pool.hosts.note_job("node1", job)
    assert pool.hosts.named == {"node1": ["1.1", "1.2"]}


def test_an_agent_that_leaves_already_is_not_dismissed() -> None:
    pool = Pool("node1", "node2")
    agent = pool.slaves["node1"].agent
    pool.hosts.admission.retire(agent, "its time limit is near", agent.loss)
    alternate(pool, "node1", ["node2"])
    assert pool.decide() == ["node1"]
    assert pool.books.state.actions.sends == []


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


class Cluster:
    """A core with two hosts, each with an agent of one slave. Tasks end badly on the first host, and well elsewhere."""

    def __init__(self, bad: str, **policy: object) -> None:
        self.core = MasterCore(MasterSettings("m", "g", task_group=1))
        self.core.definitions.add(Defined(MAX))
        self.bad = bad
        self.numbers = {b"node1": 0, b"node2": 0}
        for peer in self.numbers:
            self.connect(peer, f"job on {peer.decode()}")
        tasks = TaskPolicy(**policy)  # type: ignore[arg-type]
        self.core.submit([span(1, MAX, 100, policy=tasks)])
        self.core.decide(0.0)

    def connect(self, peer: bytes, job: str) -> None:
        host = peer.decode().partition("/")[0]
        self.receive(peer, messages.Hello("m", "g", host, 1, "3.11", 1, job))
        if peer in self.core.state.members.peers:
            self.start(peer)

    def start(self, peer: bytes) -> None:
        self.numbers[peer] = self.numbers.get(peer, 0) + 1
        self.receive(peer, messages.SlaveReady(self.numbers[peer]))

    def receive(self, peer: bytes, message: messages.Message, frames: Sequence[bytes] = ()) -> None:
        self.core.handle(Received(peer, "here", message, frames), 0.0)
        self.core.check()

    def end(self, peer: bytes) -> None:
        """The task that a host runs ends."""
        slave = self.core.state.members.peers[peer].slaves[self.numbers[peer]]
        [task] = held_by(self.core, slave.sid)
        number, attempt = slave.number, slave.held.spans[0].attempt
        if peer == b"node2":
            self.receive(
                peer, messages.Results(number, [task], [1], [attempt], [0.1], []), [groups.payload(1, [b"\x01"])]
            )
        elif self.bad == "death":
            self.receive(peer, messages.SlaveDied(number, task, Cause.CRASH, "killed", NO_WORDS))
            self.start(peer)
        else:
            again = [0] if self.bad == "again" else []
            result = messages.Results(number, [task], [1], [attempt], [0.1], [0], [], again)
            self.receive(peer, result, [groups.payload(1, [FAILURE])])
        self.core.decide(0.0)
        self.core.check()

    def run(self) -> None:
        """Let tasks end until a host is excluded."""
        for _ in range(15):
            if not self.core.state.members.excluded:
                self.end(b"node2")
                self.end(b"node1")


@pytest.mark.parametrize(
    ("bad", "example"),
    [
        ("failure", "For example: OSError: no disk."),
        ("again", "For example: OSError: no disk."),
        ("death", "For example: crash: killed."),
    ],
)
def test_every_kind_of_bad_attempt_counts(bad: str, example: str) -> None:
    cluster = Cluster(bad, retries_errors=True) if bad == "again" else Cluster(bad)
    cluster.run()
    happened = cluster.core.take_actions().records
    assert example in " ".join(record.text for record in happened if isinstance(record, records.Notice))
    assert list(cluster.core.state.members.excluded) == ["node1"]


def test_an_excluded_host_is_left_out_of_the_needed_slaves() -> None:
    """Its agent is still there. A new agent from this host is refused, and a slave that starts late gets no task."""
    cluster = Cluster("failure")
    core = cluster.core
    cluster.run()
    unfinished = core.state.jar.runnable
    assert (core.counts().slaves_connected, core.counts().slaves_needed) == (2, unfinished - 1)
    assert core.counts().excluded == {"node1": ["job on node1"]}
    assert core.next_deadline() is not None
    core.take_actions()
    cluster.connect(b"node1/2", "17.4")
    [send] = core.take_actions().sends
    assert send.message == messages.Refused(core.state.members.excluded["node1"])
    assert core.counts().excluded == {"node1": ["job on node1", "17.4"]}
    core.obey(AllocateSlaves(1, SlaveKind.ORDERED))
    core.state.members.agents["AGENT-0"].announced = 2
    cluster.start(b"node1")
    core.decide(0.0)
    late = core.state.members.slaves[SlaveId("SLAVE-2")]
    assert (late.state, late.kind) == (SlaveState.SHUTTING_DOWN, SlaveKind.UNORDERED)
    core.decide(EXCLUDED_S)
    cluster.connect(b"node1/3", "17.5")
    assert core.counts().slaves_connected == 4
