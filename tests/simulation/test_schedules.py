"""When the tasks of random graphs start and end, against what a list scheduler does that knows everything.

The master's core is driven without a network, so that only its decisions take part. Slaves run their tasks one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from random import Random
from statistics import mean

import pytest
from attrs import Factory, define, frozen
from tests.driven import Driven
from tests.spans import MAX

from mwpy._core.master.state import Actions, Command, Event, HoldResults
from mwpy._transport.codec import Codec
from mwpy._values import groups, messages
from mwpy._values.policy import DEFAULT_POLICY, TaskPolicy
from mwpy._values.requires import Offers
from mwpy._values.task import ResultReference

CODEC = Codec()


@frozen
class Node:
    """A task of a graph."""

    seconds: float
    cpus: int
    """0 if it requires nothing."""
    needs: Sequence[int]
    """The numbers of the tasks that it needs, which are before it."""


def graph(random: Random, count: int, widths: Sequence[int]) -> list[Node]:
    """A random graph, of which about a third needs nothing."""
    nodes = []
    for number in range(count):
        before = range(max(0, number - 30), number)
        needs = random.sample(before, min(len(before), random.choice([0, 1, 2])))
        nodes.append(Node(random.uniform(1.0, 10.0), random.choice(widths), sorted(needs)))
    return nodes


@define
class Slave:
    """What a slave has."""

    tasks: list[tuple[int, int]] = Factory(list)
    """Tasks and attempts. It runs the first one."""
    ends_at: float | None = None
    """When this ends."""


class Pool(Driven):
    """A master, agents with one slave for each processor, and the tasks of a graph."""

    def __init__(self, nodes: Sequence[Node], agents: int, cpus: int) -> None:
        super().__init__([MAX])
        self.nodes = nodes
        self.slaves: dict[tuple[bytes, int], Slave] = defaultdict(Slave)
        self.ended: set[int] = set()
        self.cpus = cpus
        for number in range(agents):
            self.join(b"%d" % number, cpus, f"host{number}", offers=Offers({"cpus": cpus}, {}, pins=True))

    def step(self, event: Event | Command | None = None) -> Actions:
        """Do what the core says, until it has nothing to say."""
        actions = super().step(event)
        for send in actions.sends:
            match send.message:
                case messages.Tasks() as group:
                    self.slaves[send.peer, group.slave].tasks += groups.each_task(group)
                    self._start()
                case messages.Revoke(number, count):
                    self._give_back(send.peer, number, count)
        return actions

    def _give_back(self, peer: bytes, number: int, count: int) -> None:
        slave = self.slaves[peer, number]
        keep = max(1 if slave.ends_at is not None else 0, len(slave.tasks) - count)
        slave.tasks, back = slave.tasks[:keep], slave.tasks[keep:]
        spans = groups.spans_of([task for task, _ in back], [attempt for _, attempt in back])
        self.receive(messages.Revoked(number, *spans), peer=peer)

    def run(self) -> float:
        """Run all tasks. Return when the last one ends."""
        for node in self.nodes:
            refers = [each + 1 for each in node.needs]
            if refers:
                self.step(HoldResults(refers))
            policy = TaskPolicy.of(cpus=node.cpus) if node.cpus else DEFAULT_POLICY
            payload, _ = CODEC.dumps_call([ResultReference(each) for each in refers], {}, "max")  # type: ignore[arg-type]
            self.submit(payload=payload, policy=policy, refers=refers)
        while len(self.ended) < len(self.nodes):
            running = {key: each.ends_at for key, each in self.slaves.items() if each.ends_at is not None}
            peer, number = min(running, key=running.__getitem__)
            self.now, slave = running[peer, number], self.slaves[peer, number]
            task, attempt = slave.tasks.pop(0)
            slave.ends_at = None
            self._start()
            self.ended.add(task)
            entry, _ = CODEC.dumps_value(task)
            results = messages.Results(number, [task], [1], [attempt], [self.nodes[task - 1].seconds], [])
            self.receive(results, groups.payload(1, [entry]), peer=peer)
        return self.now

    def _start(self) -> None:
        """Slaves start what they have. A task starts when all that it needs is there, and its processors are free."""
        taken: dict[bytes, int] = defaultdict(int)
        for (peer, _), slave in self.slaves.items():
            if slave.tasks:
                task, _ = slave.tasks[0]
                node = self.nodes[task - 1]
                assert {each + 1 for each in node.needs} <= self.ended, f"task {task} runs too early"
                taken[peer] += node.cpus
                if slave.ends_at is None:
                    slave.ends_at = self.now + node.seconds
        assert max(taken.values(), default=0) <= self.cpus, "more was taken than there is"


def listed(nodes: Sequence[Node], agents: int, cpus: int) -> float:
    """When the last task ends if a list scheduler starts, whenever it can, the widest task that fits."""
    free = [cpus] * agents
    missing = [len(node.needs) for node in nodes]
    users: dict[int, list[int]] = defaultdict(list)
    for number, node in enumerate(nodes):
        for each in node.needs:
            users[each].append(number)
    ready = [(-nodes[number].cpus, number) for number, count in enumerate(missing) if not count]
    heapify(ready)
    running: list[tuple[float, int, int]] = []
    now = 0.0
    while ready or running:
        waiting = []
        while ready:
            width, number = heappop(ready)
            needed = max(1, -width)
            at = max(range(agents), key=lambda agent: free[agent])
            if free[at] >= needed:
                free[at] -= needed
                heappush(running, (now + nodes[number].seconds, number, at))
            else:
                waiting.append((width, number))
        ready = waiting
        heapify(ready)
        now, number, at = heappop(running)
        free[at] += max(1, nodes[number].cpus)
        for user in users[number]:
            missing[user] -= 1
            if not missing[user]:
                heappush(ready, (-nodes[user].cpus, user))
    return now


def critical(nodes: Sequence[Node]) -> float:
    """How long the longest chain takes."""
    ends: list[float] = []
    for node in nodes:
        ends.append(node.seconds + max((ends[each] for each in node.needs), default=0.0))
    return max(ends)


@pytest.mark.parametrize("seed", range(20))
def test_a_graph_takes_no_longer_than_a_list_schedule_may(seed: int) -> None:
    """Graham's bound holds for each schedule in which no slave is idle while a task could run:
    R. L. Graham, Bounds on multiprocessing timing anomalies, SIAM J. Appl. Math. 17 (1969), 416-429."""
    random = Random(seed)
    agents, cpus = random.choice([(1, 2), (2, 2), (3, 4)])
    nodes = graph(random, 150, [0])
    slaves, work, chain = agents * cpus, sum(node.seconds for node in nodes), critical(nodes)
    took = Pool(nodes, agents, cpus).run()
    assert max(work / slaves, chain) <= took <= work / slaves + chain * (1 - 1 / slaves) + 1e-6


def test_wide_and_narrow_tasks_take_about_as_long_as_in_a_list_schedule() -> None:
    """What is kept for a wide task costs time. The list scheduler keeps nothing, and may starve it."""
    ratios = []
    for seed in range(8):
        random = Random(seed)
        nodes = graph(random, 150, [1, 1, 2, 4, 8])
        ratios.append(Pool(nodes, 2, 8).run() / listed(nodes, 2, 8))
    assert mean(ratios) < 1.1
    assert max(ratios) < 1.3
