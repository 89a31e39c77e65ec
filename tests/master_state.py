"""A master's state for the tests of its parts. Agents, slaves and tasks are recorded directly, without messages."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field
from tests.spans import MAX, MIN, span

from mwpy._core.master.core import MasterCore
from mwpy._core.master.members import ConnectedSlave
from mwpy._core.master.state import MasterSettings, MasterState
from mwpy._core.master.tasks import Needs
from mwpy._values import records
from mwpy._values.bounds import SlaveId
from mwpy._values.policy import DEFAULT_POLICY, TaskPolicy
from mwpy._values.records import AlgorithmDefined
from mwpy._values.task import SlaveKind, SlaveState


@define(eq=False)
class Books:
    """A state, and methods that record the facts with which a test begins."""

    core: MasterCore = field(factory=lambda: MasterCore(MasterSettings("m", "g")))
    tasks: int = 0

    def __attrs_post_init__(self) -> None:
        for algorithm in (MAX, MIN):
            self.state.record(algorithm)

    @property
    def state(self) -> MasterState:
        return self.core.state

    def slave(
        self, kind: SlaveKind = SlaveKind.UNORDERED, agent: str = "", host: str = "host", *, is_fresh: bool = False
    ) -> ConnectedSlave:
        """Add an idle slave to a new agent on a host, or to an agent that is already connected. A new agent has
        finished tasks before, unless it is fresh."""
        members = self.state.members
        if not agent:
            agent = members.next_agent
            self.state.record(records.AgentConnected(agent, "here", host, 1, "7.0", 9, "3.11"))
            members.connect(agent, agent.encode()).has_finished = not is_fresh
        sid, number = members.next_sid, len(members.agents[agent].slaves) + 1
        self.state.record(records.SlaveConnected(sid, agent, "here", kind, number))
        self.state.record(records.SlaveChanged(sid, SlaveState.IDLE, kind))
        return members.slaves[sid]

    def submit(
        self,
        count: int,
        algorithm: AlgorithmDefined = MAX,
        payload: bytes = b"x",
        policy: TaskPolicy = DEFAULT_POLICY,
        refers: Sequence[int] = (),
    ) -> list[int]:
        """Add pending tasks, or a blocked task. Return their ids, which are also their tags."""
        new = span(self.tasks + 1, algorithm, count, payload, policy, refers=refers)
        self.tasks += count
        self.state.record(records.TasksSubmitted([new.facts()]), [((*new.ids,), None)])
        return [*new.ids]

    def send(self, slave: ConnectedSlave, count: int, algorithm: AlgorithmDefined = MAX) -> None:
        """Allocate the first pending tasks of an algorithm, or those addressed to the slave."""
        jar = self.state.jar
        queue = jar.pending.special.get(Needs(sid=slave.sid)) or jar.pending.queues[Needs(algorithm.definition.number)]
        self.state.record(records.TasksAllocated(slave.sid, jar.pending.heads(queue, count, 1 << 30)))
        if slave.state is SlaveState.IDLE:
            self.state.record(records.SlaveChanged(slave.sid, SlaveState.BUSY, slave.kind))

    def give(self, slave: ConnectedSlave, count: int, algorithm: AlgorithmDefined = MAX) -> None:
        """Submit tasks and allocate them to a slave."""
        self.submit(count, algorithm)
        self.send(slave, count, algorithm)

    def taken(self) -> list[records.Record]:
        """Return the records since the last call."""
        self.state.check()
        return self.state.take_actions().records


def sid(number: int) -> SlaveId:
    """The id of a slave by its number."""
    return SlaveId(f"SLAVE-{number}")
