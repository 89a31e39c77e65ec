"""When the tasks of random graphs end, against Graham's bound for list schedulers.

The master's core is driven without a network, so that only its decisions take part. Slaves run their tasks one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from random import Random

import pytest
from attrs import Factory, define, frozen
from tests.driven import Driven
from tests.spans import MAX

from mwpy._core.master.state import Actions, Command, Event, HoldResults
from mwpy._transport.codec import Codec
from mwpy._values import groups, messages
from mwpy._values.task import ResultReference

CODEC = Codec()


@frozen
class Node:
    """A task of a graph."""

    seconds: float
    needs: Sequence[int]
    """The numbers of the tasks that it needs, which are before it."""


def graph(random: Random, count: int) -> list[Node]:
    """A random graph, of which about a third needs nothing."""
    nodes = []
    for number in range(count):
        before = range(max(0, number - 30), number)
        needs = random.sample(before, min(len(before), random.choice([0, 1, 2])))
        nodes.append(Node(random.uniform(1.0, 10.0), sorted(needs)))
    return nodes


@define
class Slave:
    """What a slave has."""

    tasks: list[tuple[int, int]] = Factory(list)
    """Tasks and attempts. It runs the first one."""
    ends_at: float | None = None
    """When this ends."""


class Pool(Driven):
    """A master, agents with some slaves each, and the tasks of a graph."""

    def __init__(self, nodes: Sequence[Node], agents: int, slaves: int) -> None:
        super().__init__([MAX])
        self.nodes = nodes
        self.slaves: dict[tuple[bytes, int], Slave] = defaultdict(Slave)
        self.ended: set[int] = set()
        for number in range(agents):
            self.join(b"%d" % number, slaves, f"host{number}")

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
            payload, _ = CODEC.dumps_call([ResultReference(each) for each in refers], {}, "max")  # type: ignore[arg-type]
            self.submit(payload=payload, refers=refers)
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
        """Slaves start what they have. A task starts when all that it needs is there."""
        for slave in self.slaves.values():
            if slave.tasks and slave.ends_at is None:
                task, _ = slave.tasks[0]
                node = self.nodes[task - 1]
                assert {each + 1 for each in node.needs} <= self.ended, f"task {task} runs too early"
                slave.ends_at = self.now + node.seconds


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
    agents, each = random.choice([(1, 2), (2, 2), (3, 4)])
    nodes = graph(random, 150)
    slaves, work, chain = agents * each, sum(node.seconds for node in nodes), critical(nodes)
    took = Pool(nodes, agents, each).run()
    assert max(work / slaves, chain) <= took <= work / slaves + chain * (1 - 1 / slaves) + 1e-6
