"""The stable of slaves, and of the agents through which the master reaches them.

A slave's way is the table `TRANSITIONS`. `Stable.change` walks it; a pair that the table does not have is an
internal error. A slave that ended leaves the stable at once, and its id is never used again.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator

from attrs import define, field

from mwpy._values.algorithm import Algorithm
from mwpy._values.errors import InternalError
from mwpy._values.ids import SlaveId
from mwpy._values.task import PlainEnum, SlaveKind, SlaveState, Span, TaskState

__all__ = ["TRANSITIONS", "Agent", "Slave", "SlaveEvent", "Stable"]


class SlaveEvent(PlainEnum):
    """What can happen to a slave."""

    ADMIT = "admit"
    FEED = "feed"
    DRAIN = "drain"
    SHUT_DOWN = "shut down"
    LEAVE = "leave"
    LOSE = "lose"


_S = SlaveState
_IDLE, _BUSY, _ORDERED, _UNORDERED = _S.IDLE, _S.BUSY, SlaveKind.ORDERED, SlaveKind.UNORDERED
"""To look a member up in its enumeration takes ten times as long as a name does, before Python 3.12."""
_ENDED = (_S.GONE, _S.LOST)

TRANSITIONS: dict[SlaveEvent, dict[SlaveState, SlaveState]] = {
    SlaveEvent.ADMIT: {_S.CONNECTING: _S.IDLE},
    SlaveEvent.FEED: {_S.IDLE: _S.BUSY, _S.BUSY: _S.BUSY},
    SlaveEvent.DRAIN: {_S.BUSY: _S.IDLE},
    SlaveEvent.SHUT_DOWN: {_S.IDLE: _S.SHUTTING_DOWN, _S.BUSY: _S.SHUTTING_DOWN},
    SlaveEvent.LEAVE: {_S.SHUTTING_DOWN: _S.GONE},
    SlaveEvent.LOSE: {
        _S.CONNECTING: _S.LOST,
        _S.IDLE: _S.LOST,
        _S.BUSY: _S.LOST,
        _S.SHUTTING_DOWN: _S.LOST,
    },
}


@define(eq=False)
class Agent:
    """An agent that was let in: one connection, and the slaves behind it."""

    name: str
    peer: bytes
    address: str
    announced: int = 0
    """How many slaves it keeps, those included that are not up; none once it leaves."""
    job: str = ""
    """Which job of a batch system it is; empty if that is not known."""
    python: str = ""
    """`major.minor` of its interpreter."""
    slaves: dict[int, Slave] = field(factory=dict)
    """Its slaves by the agent's own number of them."""
    known: dict[Algorithm, None] = field(factory=dict)
    """The algorithms whose definition was sent to it."""
    refused: dict[Algorithm, str] = field(factory=dict)
    """The algorithms that its slaves cannot run, and why."""
    leaving: str = ""
    """Why it is about to go; empty while it serves."""

    @property
    def coming(self) -> int:
        """How many of its slaves are not up yet."""
        return max(0, self.announced - len(self.slaves))


@define(eq=False)
class Slave:
    """A slave process, as the master sees it."""

    sid: SlaveId
    agent: Agent
    number: int
    kind: SlaveKind
    last_heard: float
    """When its last result arrived, or its last tasks were sent while it had none."""
    state: SlaveState = SlaveState.CONNECTING
    outstanding: deque[Span] = field(factory=deque)
    """The tasks allocated to it, in the order in which they were sent."""
    load: dict[Algorithm, int] = field(factory=lambda: defaultdict(int))
    """How many of them are of each algorithm; no zero."""
    pace: dict[Algorithm, float] = field(factory=dict)
    """How long a task of each algorithm takes here, in seconds, as learned."""
    revoking: bool = False
    """A request to take tasks back is under way."""
    barren: bool = False
    """It had nothing to take back when last asked, and was not fed since."""
    freed: bool = False
    """It becomes unordered when it has finished what it holds."""

    @property
    def num_outstanding(self) -> int:
        """How many tasks are allocated to it."""
        return sum(self.load.values())

    @property
    def kind_to_be(self) -> SlaveKind:
        """Its kind, or the one that it gets when it has finished what it holds."""
        return _UNORDERED if self.freed else self.kind

    @property
    def runs_unaddressed(self) -> bool:
        """Whether it may be sent tasks that are addressed to no slave."""
        return self.kind is not _ORDERED and not self.freed


@define(eq=False)
class Stable:
    """All agents and their slaves."""

    agents: dict[bytes, Agent] = field(factory=dict)
    """By the peer that names the connection."""
    slaves: dict[SlaveId, Slave] = field(factory=dict)
    """In the order in which they connected."""
    idle: dict[SlaveId, Slave] = field(factory=dict)
    """Those in state IDLE, the longest idle first."""
    hungry: dict[SlaveId, Slave] = field(factory=dict)
    """Busy ones that may have room for more tasks; a hint, settled by whoever allocates."""
    wanted: dict[SlaveKind, int] = field(factory=lambda: dict.fromkeys(SlaveKind, 0))
    """How many slaves of each kind the master algorithm asked for."""
    unordered_unasked: bool = True
    """Nobody said yet how many unordered slaves are wanted: as many as there are tasks."""
    pace: dict[Algorithm, float] = field(factory=dict)
    """How long a task of each algorithm takes, in seconds, over all slaves."""
    agents_seen: int = 0
    slaves_seen: int = 0

    def add_agent(self, peer: bytes, address: str, announced: int = 0, job: str = "", python: str = "") -> Agent:
        """Let an agent in and name it."""
        agent = Agent(f"AGENT-{self.agents_seen}", peer, address, announced, job, python)
        self.agents_seen += 1
        self.agents[peer] = agent
        return agent

    def add_slave(self, agent: Agent, number: int, now: float) -> Slave:
        """Let a slave in and name it, of the kind that is wanted most: ordered, intermingle, unordered."""
        slave = Slave(SlaveId(f"SLAVE-{self.slaves_seen}"), agent, number, self._kind_for_next(), now)
        self.slaves_seen += 1
        agent.slaves[number] = slave
        self.slaves[slave.sid] = slave
        return slave

    def change(self, slave: Slave, event: SlaveEvent) -> None:
        """Move a slave along its way.

        Raises:
            InternalError: the table has no such way; mwpy's own fault.
        """
        target = TRANSITIONS[event].get(slave.state)
        if target is None:
            raise InternalError(f"{slave.sid} is {slave.state.value}, which cannot {event.value}")
        slave.state = target
        self.idle.pop(slave.sid, None)
        if target is _IDLE:
            self.idle[slave.sid] = slave
        if target is not _BUSY:
            self.hungry.pop(slave.sid, None)
        if target in _ENDED:
            del self.slaves[slave.sid]
            del slave.agent.slaves[slave.number]

    def count(self, kind: SlaveKind) -> int:
        """How many slaves of a kind are there. A freed one counts as what it will be."""
        return sum(slave.kind_to_be is kind for slave in self.slaves.values())

    def vacancies(self) -> Iterator[SlaveKind]:
        """The kinds other than unordered that lack slaves, once a missing slave, ordered first."""
        for kind in (_ORDERED, SlaveKind.INTERMINGLE):
            if self.wanted[kind]:
                for _ in range(self.wanted[kind] - self.count(kind)):
                    yield kind

    def _kind_for_next(self) -> SlaveKind:
        return next(self.vacancies(), _UNORDERED)

    def coming(self) -> int:
        """How many slaves the agents have announced that are not up yet."""
        return sum(agent.coming for agent in self.agents.values())

    def jobs(self) -> dict[str, int]:
        """The jobs that the agents are: how many slaves of each hold tasks, are kept for some, or are not up yet."""
        found: dict[str, int] = {}
        for agent in self.agents.values():
            if agent.job:
                kept = sum(
                    bool(slave.outstanding) or slave.kind_to_be is not _UNORDERED for slave in agent.slaves.values()
                )
                found[agent.job] = found.get(agent.job, 0) + kept + agent.coming
        return found

    def check(self) -> None:
        """Recompute what is derived and hold slaves, agents and states against each other."""
        for slave in self.slaves.values():
            state = slave.state
            assert state not in _ENDED, f"{slave.sid} is {state.value} but here"
            assert (state is _IDLE) == (slave.sid in self.idle), f"{slave.sid} is {state.value}"
            if state is not SlaveState.SHUTTING_DOWN:
                assert (state is _BUSY) == bool(slave.outstanding), f"{slave.sid} is {state.value}"
            assert slave.sid not in self.hungry or state is _BUSY, f"{slave.sid} is hungry"
            assert self.agents[slave.agent.peer].slaves[slave.number] is slave, f"{slave.sid}: whose is it?"
            counted: Counter[Algorithm] = Counter()
            for span in slave.outstanding:
                assert span.sid == slave.sid, f"{span}: held by {slave.sid} but allocated to {span.sid}"
                assert span.state is TaskState.ALLOCATED, f"{span}: held by {slave.sid} but {span.state.name}"
                counted[span.algorithm] += span.count
            assert counted == slave.load, f"the load of {slave.sid} was miscounted"
        for agent in self.agents.values():
            for slave in agent.slaves.values():
                assert self.slaves[slave.sid] is slave, f"{agent.name} has {slave.sid}, which is gone"
