"""The agents that the master accepted, and their slaves.

The table `TRANSITIONS` is the lifecycle of an agent. Records move agents along it (`Members.changes`). A transition
that the table does not have is an internal error. The state of a slave follows from that of its agent and from its
tasks (`ConnectedSlave.next_state`). What ended is removed at once. Its id is never used again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import chain
from math import inf
from typing import Any

from attrs import Factory, define
from msgspec import Struct, field
from msgspec.structs import replace

from mwpy._core.master.spans import Span
from mwpy._core.master.tasks import HeldTasks
from mwpy._values import records
from mwpy._values.bounds import MAX_WAITING_BYTES, SlaveId
from mwpy._values.causes import Cause, PlainEnum
from mwpy._values.errors import InternalError
from mwpy._values.messages import Report
from mwpy._values.options import OWN_ADDRESS
from mwpy._values.requires import Given, Offers, Requires
from mwpy._values.task import SlaveKind, SlaveState


class AgentState(PlainEnum):
    """The state of an agent in the master."""

    CONNECTED = "connected"
    AWAY = "away"
    LEAVING = "leaving"
    GONE = "gone"


class AgentEvent(PlainEnum):
    """What can happen to an agent."""

    GO_AWAY = "go away"
    COME_BACK = "come back"
    LEAVE = "leave"
    END = "end"


_A = AgentState
TRANSITIONS: dict[AgentEvent, dict[AgentState, AgentState]] = {
    AgentEvent.GO_AWAY: {_A.CONNECTED: _A.AWAY},
    AgentEvent.COME_BACK: {_A.AWAY: _A.CONNECTED},
    AgentEvent.LEAVE: {_A.CONNECTED: _A.LEAVING, _A.LEAVING: _A.LEAVING},
    AgentEvent.END: {_A.CONNECTED: _A.GONE, _A.AWAY: _A.GONE, _A.LEAVING: _A.GONE},
}

_IDLE, _BUSY, _ORDERED, _UNORDERED = SlaveState.IDLE, SlaveState.BUSY, SlaveKind.ORDERED, SlaveKind.UNORDERED
"""Before Python 3.12, looking up a member of an enumeration takes ten times as long as looking up a name."""

SERVING = SlaveState.IDLE, SlaveState.BUSY
"""The states of a slave that is ready for tasks."""


FEEDING_BYTES = MAX_WAITING_BYTES // 4
"""An agent for which more waits is sent no tasks. So a correct agent is not dropped, however slowly it reads."""


@define(eq=False, repr=False)
class Pool:
    """Amounts, by name, of which slaves take a part: those of an agent, or of the whole run."""

    total: Mapping[str, int]
    taken: Counter[str] = Factory(Counter)
    """What slaves have taken. No entry is zero."""
    kept: list[Requires] = Factory(list)
    """What is kept for tasks that wait for it; see `Fitting`."""

    def take(self, amounts: Mapping[str, int], sign: int = 1) -> None:
        """Take amounts, as far as they are of this pool; with the sign -1, give them back."""
        for name in amounts.keys() & self.total.keys():
            self.taken[name] += sign * amounts[name]
            if not self.taken[name]:
                del self.taken[name]

    def check(self, slaves: Iterable[ConnectedSlave], former: Iterable[Given], others: Container[str] = ()) -> None:
        """Recompute what is taken by slaves, and by those of former generations.

        Args:
            others: the names that another pool counts.
        """
        taken = Counter[str]()
        for slave in slaves:
            taken.update({} if slave.given is None else slave.given.amounts)
        own = [name for name in self.total if name not in others]
        assert all(taken[name] <= self.total[name] for name in own), f"more is given than there is: {taken}"
        for given in former:
            taken.update(given.amounts)
        assert self.taken == {name: taken[name] for name in self.total if taken[name]}, "what is taken was miscounted"


@define(eq=False, repr=False)
class ConnectedAgent:
    """An agent that the master accepted: one connection, and the slaves behind it."""

    name: str
    address: str
    announced: int = 0
    """How many slaves it keeps, including those that are not ready yet."""
    job: str = ""
    """The id of its job in a batch system; empty if unknown."""
    python: str = ""
    """`major.minor` of its interpreter."""
    host: str = ""
    """The name of its machine."""
    pid: int = 0
    """Its process id there."""
    seconds_left: float | None = None
    """How long a task could run at most when it connected; None if unknown."""
    returns_s: float = 0.0
    """For how long it looks for its master when its connection has ended."""

    offers: Offers = Factory(Offers)

    """What tasks can require of it."""
    pool: Pool = Factory(lambda self: Pool(self.offers.amounts), takes_self=True)
    """The amounts that it offers, and what its slaves have taken."""
    former: list[Given] = Factory(list)
    """What slaves of it have that still run tasks of a former generation."""
    asked: set[str] = Factory(set)
    """The names about which it was asked and has not answered."""
    unfit_since: float | None = None
    """Since when nothing that waits fits it; None if something does."""
    ends_at: float | None = None
    """Until when a task may run there at most, on the core's clock; None if unknown."""
    peer: bytes = b""
    """The name of its connection."""
    slaves: dict[int, ConnectedSlave] = Factory(dict)
    """Its slaves, by the numbers that the agent gave them."""
    known: dict[int, None] = Factory(dict)
    """The numbers of the algorithms that this agent has from the master."""
    forgotten: list[int] = Factory(list)
    """Those that it still has and must forget when it gets the next definitions."""
    refused: dict[int, str] = Factory(dict)
    """The numbers of the algorithms that its slaves cannot run, each with the reason."""
    leaving: str = ""
    """Why it is about to leave; empty if it is not."""
    loss: Cause = Cause.AGENT_LOST
    """The cause of the loss of the tasks that it holds, if it goes now."""
    reserved: bool = False
    """Whether its slaves get no tasks, because a suspect runs alone on it, or will; see `Dispatch`."""
    away_since: float = 0.0
    """If it is away: since when nothing was heard from it, on the core's clock."""
    away_until: float = 0.0
    """If it is away: until when the master waits for it."""
    gives_at: float | None = None
    """If it is away: when its tasks are given to other slaves; None if they were."""
    state: AgentState = AgentState.CONNECTED
    waiting_bytes: int = 0
    """The size of the payloads that it was sent and has not confirmed; always 0 on the master's own machine."""
    joined_at: float = 0.0
    """When it joined, on the core's clock."""
    is_set_up: bool = False
    """Whether its set-up has ended well, so that its slaves start."""
    has_finished: bool = False
    """Whether one of its slaves has finished a task."""
    largest_bytes: int = 0
    """The largest payload that it was sent."""

    @property
    def place(self) -> str:
        """Its name, its machine and its job, as messages name it."""
        return f"{self.name} on {self.host or self.address}{f' (job {self.job})' if self.job else ''}"

    @property
    def is_away(self) -> bool:
        """Whether nothing is heard from it, and it may come back; see `Losses`."""
        return self.state is AgentState.AWAY

    @property
    def counts(self) -> bool:
        """Whether it counts amounts: a slave of it was given some, or they are kept for a task."""
        is_given = any(slave.given is not None for slave in self.slaves.values())
        return bool(is_given or self.pool.kept or self.former)

    def change(self, event: AgentEvent) -> None:
        """Move it along its lifecycle.

        Raises:
            InternalError: the table has no such transition; the fault of mwpy itself.
        """
        state = TRANSITIONS[event].get(self.state)
        if state is None:
            raise InternalError(f"{self.name} is {self.state.value}, which cannot {event.value}")
        self.state = state

    def ends_in_s(self, now: float) -> float:
        """How long a task may run there at most from now on, in seconds; infinity if its end is not known."""
        return inf if self.ends_at is None else self.ends_at - now

    def has_time(self, span: Span, now: float) -> bool:
        """Whether a task can finish there, as far as this is known."""
        return self.ends_at is None or (span.needed_s or 0.0) <= self.ends_at - now

    @property
    def is_proven(self) -> bool:
        """Whether its end says something about the task that it ran: tasks have ended there, or the master started it.
        A member that joins and vanishes again and again proves nothing."""
        return self.has_finished or self.address == OWN_ADDRESS

    @property
    def is_full(self) -> bool:
        """Whether so much waits for it that it is sent no tasks.

        It is not full if it holds no tasks: then it has answered what it was sent, but does not confirm it. So more and
        more waits for it, and it is dropped.
        """
        return self.waiting_bytes >= FEEDING_BYTES and self.num_busy > 0

    @property
    def num_busy(self) -> int:
        """How many of its slaves hold tasks."""
        return sum(slave.is_busy for slave in self.slaves.values())

    @property
    def runs_suspect(self) -> bool:
        """Whether it was sent a task that must run alone."""
        return any(span.runs_alone for slave in self.slaves.values() for span in slave.held.spans)

    @property
    def coming(self) -> int:
        """How many of its slaves are not ready yet; 0 while it is away, and once it leaves."""
        return self.announced - len(self.slaves) if self.state is AgentState.CONNECTED else 0


class ConnectedSlave(Struct, eq=False):
    """A slave process, as the master sees it."""

    sid: SlaveId
    agent: ConnectedAgent
    number: int
    kind: SlaveKind
    held: HeldTasks
    """The tasks that are allocated to it. The taskjar owns this object."""
    given_back: deque[Span] = field(default_factory=deque)
    """What else it may run: tasks that were given to other slaves, and have not ended. Its results of them count."""
    last_heard: float = 0.0
    """When its last result arrived, or when it was sent tasks while it had none."""
    connected_at: float = 0.0
    """When it got ready."""
    finished: int = 0
    """How many results of it counted."""
    peak_bytes: int = 0
    """The most memory that it used when this was measured last; 0 if it was not measured."""
    busy_s: float = 0.0
    """How long the tasks with these results ran, together."""
    last_left: float = 0.0
    """When the last state arrived that a task left there for its next attempt."""
    state: SlaveState = SlaveState.CONNECTING
    pace: dict[int, float] = field(default_factory=dict)
    """The learned duration of a task of each algorithm on this slave, in seconds."""
    asked_back: bool = False
    """Whether it was asked to give tasks back and has not answered."""
    gave_nothing_back: bool = False
    """Whether it had no unstarted task when it was last asked. Becomes False when it is sent tasks or sends a
    result."""
    refused: dict[int, str] = field(default_factory=dict)
    """The numbers of the algorithms that it cannot run, and why: those of its agent, and its own."""
    is_replaced: bool = False
    """Whether its agent must replace it."""
    freed: bool = False
    """Whether it becomes unordered when it has finished the tasks that it holds."""
    given: Given | None = None
    """What it was given for the tasks that it holds; None if they require nothing."""
    required: Requires | None = None
    """What these tasks require."""
    runs_ended: bool = False
    """Whether it may run a task that has ended for the master, and was given this for it."""
    gpus: Sequence[int] | None = None
    """The GPUs that it was ever given, because a process cannot change to others; None if it was given none."""
    report: tuple[int, Any, Report] | None = None
    """The newest report of its tasks that the algorithm did not get, and which one of all reports it is."""

    @property
    def next_state(self) -> SlaveState:
        """The state that follows from its tasks and its agent. A slave that shuts down does so until its end."""
        if self.state is SlaveState.SHUTTING_DOWN:
            return self.state
        if self.agent.is_away:
            return SlaveState.AWAY
        return _BUSY if self.is_busy else _IDLE

    @property
    def is_busy(self) -> bool:
        """Whether it has a task to run."""
        return bool(self.held.spans or self.given_back)

    @property
    def kind_to_be(self) -> SlaveKind:
        """Its kind; if it was freed, the kind that it will get when it has finished its tasks."""
        return _UNORDERED if self.freed else self.kind

    @property
    def runs_unaddressed(self) -> bool:
        """Whether it may be sent tasks that are addressed to no slave."""
        return self.kind is not _ORDERED and not self.freed and not self.agent.reserved

    @property
    def has_room(self) -> bool:
        """Whether it may be sent such tasks now."""
        return self.runs_unaddressed and not self.agent.is_full


def absent(members: Members) -> list[ConnectedSlave]:
    """The slaves of agents that are away."""
    return [slave for agent in members.away.values() for slave in agent.slaves.values()]


def num_present(members: Members) -> int:
    """How many slaves are connected, without those that are away."""
    return len(members.slaves) - (len(absent(members)) if members.away else 0)


class Members:
    """All agents and their slaves.

    Args:
        held: the taskjar's allocated tasks.
    """

    def __init__(self, held: dict[SlaveId, HeldTasks]) -> None:
        self.held = held
        self.agents: dict[str, ConnectedAgent] = {}
        """The agents, by name."""
        self.peers: dict[bytes, ConnectedAgent] = {}
        """The agents, by the name of their connection."""
        self.slow: dict[str, ConnectedAgent] = {}
        """Those for which too much waits, until they are dropped."""
        self.away: dict[str, ConnectedAgent] = {}
        """The agents that are away, by name."""
        self.slaves: dict[SlaveId, ConnectedSlave] = {}
        """The slaves, in the order in which they connected."""
        self.idle: dict[SlaveId, ConnectedSlave] = {}
        """Slaves in state IDLE; the longest idle is first."""
        self.hungry: dict[SlaveId, ConnectedSlave] = {}
        """Busy slaves that may have room for more tasks; the dispatch removes those that have none."""
        self.given_back: dict[SlaveId, ConnectedSlave] = {}
        """Slaves that may run tasks which were given to other slaves."""
        self.pool = Pool({})
        """The amounts that the whole run has."""
        self.pace: dict[int, float] = {}
        """How long a task of each algorithm takes, in seconds, over all slaves."""
        self.excluded: dict[str, str] = {}
        """The hosts that get no more work, and why."""
        self.some_refused = False
        """Whether some slave has ever refused an algorithm."""
        self.agents_seen = 0
        self.slaves_seen = 0
        self.changes: dict[type, Callable[[Any], None]] = {
            records.SlaveChanged: self._slave_changed,
            records.SlaveConnected: self._slave_connected,
            records.SlaveEnded: self._slave_ended,
            records.AgentConnected: self._agent_connected,
            records.AgentOffered: self._agent_offered,
            records.AgentSetUp: self._agent_set_up,
            records.AgentLeaving: self._agent_leaving,
            records.AgentAway: self._agent_away_or_back,
            records.AgentBack: self._agent_away_or_back,
            records.AgentLost: self._agent_gone,
            records.AgentLeft: self._agent_gone,
            records.PeerDropped: self._agent_gone,
            records.AlgorithmRefused: self._algorithm_refused,
            records.AlgorithmsForgotten: self._algorithms_forgotten,
            records.HostExcluded: self._host_excluded,
            records.HostReadmitted: self._host_readmitted,
        }
        """What each kind of record does to agents and slaves. A slave's state changes in no other way."""

    @property
    def next_agent(self) -> str:
        """The name of the next agent that is accepted."""
        return f"AGENT-{self.agents_seen}"

    @property
    def next_sid(self) -> SlaveId:
        """The id of the next slave that is ready."""
        return SlaveId(f"SLAVE-{self.slaves_seen}")

    def connect(self, name: str, peer: bytes, now: float = 0.0) -> ConnectedAgent:
        """Set the connection of an agent that was just recorded, and when its time is over."""
        agent = self.peers[peer] = self.agents[name]
        agent.peer, agent.joined_at = peer, now
        agent.ends_at = None if agent.seconds_left is None else now + agent.seconds_left
        return agent

    def has_process(self, pid: int) -> bool:
        """Whether an agent with this process id, on any machine, is connected."""
        return any(agent.pid == pid for agent in self.agents.values())

    def _slave_changed(self, record: records.SlaveChanged) -> None:
        slave, state = self.slaves[record.sid], record.state
        slave.kind, slave.state = record.kind, state
        if state is _IDLE:
            self.idle[slave.sid] = slave
        else:
            self.idle.pop(slave.sid, None)
        if state is not _BUSY:
            self.hungry.pop(slave.sid, None)

    def _slave_connected(self, record: records.SlaveConnected) -> None:
        self.slaves_seen += 1
        sid, agent = record.sid, self.agents[record.agent]
        slave = ConnectedSlave(sid, agent, record.number, record.kind, self.held[sid], refused=dict(agent.refused))
        self.slaves[sid] = agent.slaves[record.number] = slave

    def _slave_ended(self, record: records.SlaveEnded) -> None:
        slave = self.slaves.pop(record.sid, None)
        if slave is not None:  # else it ended before it was ready for tasks
            self.idle.pop(slave.sid, None)
            self.hungry.pop(slave.sid, None)
            self.given_back.pop(slave.sid, None)
            self.take_from(slave)
            del slave.agent.slaves[slave.number]

    def give(self, slave: ConnectedSlave, requires: Requires, given: Given) -> None:
        """Give a slave what the tasks require that it holds."""
        slave.required, slave.given = requires, given
        slave.gpus = given.gpus or slave.gpus
        for pool in (slave.agent.pool, self.pool):
            pool.take(given.amounts)

    def take_former(self, agent: ConnectedAgent, taken: list[Given]) -> None:
        """Slaves of an agent have this, and still run tasks of a former generation."""
        for sign, each in ((-1, agent.former), (1, taken)):
            for given in each:
                agent.pool.take(given.amounts, sign)
                self.pool.take(given.amounts, sign)
        agent.former = taken

    def take_from(self, slave: ConnectedSlave) -> None:
        """A slave has no tasks any more, or is gone: others may have what it was given."""
        if slave.given is not None:
            for pool in (slave.agent.pool, self.pool):
                pool.take(slave.given.amounts, -1)
            slave.required = slave.given = None

    def _agent_connected(self, record: records.AgentConnected) -> None:
        self.agents_seen += 1
        known = record.agent, record.address, record.slaves, record.job, record.python, record.host, record.pid
        more = record.seconds_left, record.returns_s, record.offers
        self.agents[record.agent] = ConnectedAgent(*known, *more)

    def _agent_offered(self, record: records.AgentOffered) -> None:
        agent = self.agents[record.agent]
        agent.offers = replace(agent.offers, texts=agent.offers.texts | record.texts)
        agent.asked -= record.texts.keys()

    def _agent_set_up(self, record: records.AgentSetUp) -> None:
        self.agents[record.agent].is_set_up = True

    def _agent_leaving(self, record: records.AgentLeaving) -> None:
        agent = self.agents[record.agent]
        agent.change(AgentEvent.LEAVE)
        agent.leaving, agent.loss = record.reason, record.cause

    def _agent_away_or_back(self, record: records.AgentAway | records.AgentBack) -> None:
        agent = self.agents[record.agent]
        if isinstance(record, records.AgentBack):
            agent.change(AgentEvent.COME_BACK)
            agent.address = record.address
            del self.away[agent.name]
        else:
            agent.change(AgentEvent.GO_AWAY)
            self.away[agent.name] = agent

    def _agent_gone(self, record: records.AgentLost | records.AgentLeft | records.PeerDropped) -> None:
        name = record.peer if isinstance(record, records.PeerDropped) else record.agent
        agent = self.agents.pop(name)
        agent.change(AgentEvent.END)
        for given in agent.former:
            self.pool.take(given.amounts, -1)
        self.peers.pop(agent.peer, None)
        self.away.pop(name, None)
        self.slow.pop(name, None)

    def _algorithm_refused(self, record: records.AlgorithmRefused) -> None:
        agent = self.agents[record.agent]
        self.some_refused = True
        if record.sid is None:
            agent.refused[record.number] = record.reason
        for slave in agent.slaves.values() if record.sid is None else (self.slaves[record.sid],):
            slave.refused[record.number] = record.reason

    def _algorithms_forgotten(self, record: records.AlgorithmsForgotten) -> None:
        tables: list[dict[int, Any]] = [self.pace]
        tables += [slave.pace for slave in self.slaves.values()]
        tables += [agent.refused for agent in self.agents.values()]
        tables += [slave.refused for slave in self.slaves.values()]
        for number in record.numbers:
            for table in tables:
                table.pop(number, None)
        for agent in self.agents.values():
            gone = [number for number in record.numbers if number in agent.known]
            agent.forgotten += gone
            for number in gone:
                del agent.known[number]

    def _host_excluded(self, record: records.HostExcluded) -> None:
        self.excluded[record.host] = record.reason

    def _host_readmitted(self, record: records.HostReadmitted) -> None:
        del self.excluded[record.host]

    def coming(self) -> int:
        """How many of the slaves that the agents have announced are not ready yet.

        This is the sum of `ConnectedAgent.coming`, without a call for each of thousands of agents.
        """
        there = (agent for agent in self.agents.values() if agent.state is AgentState.CONNECTED)
        return sum(agent.announced - len(agent.slaves) for agent in there)

    def jobs(self) -> dict[str, int]:
        """Each connected job of a batch system, and how many of its slaves are in use.

        A slave is in use while it holds tasks, is not unordered, or is not ready yet.
        """
        found: dict[str, int] = {}
        for agent in self.agents.values():
            if agent.job:
                kept = sum(slave.is_busy or slave.kind_to_be is not _UNORDERED for slave in agent.slaves.values())
                found[agent.job] = found.get(agent.job, 0) + kept + agent.coming
        return found

    def check(self) -> None:
        """Recompute all derived values, and compare slaves, agents and states."""
        for slave in self.slaves.values():
            state = slave.state
            assert state is slave.next_state, f"{slave.sid} is {state.value}"
            assert (state is _IDLE) == (slave.sid in self.idle), f"{slave.sid} is {state.value}"
            assert slave.sid not in self.hungry or state is _BUSY, f"{slave.sid} is hungry"
            assert self.agents[slave.agent.name].slaves[slave.number] is slave, f"{slave.sid} is not at its agent"
            assert bool(slave.given_back) == (slave.sid in self.given_back), f"{slave.sid} gave tasks back"
            assert self.held[slave.sid] is slave.held, f"{slave.sid} has other tasks than the taskjar says"
        assert self.held.keys() == self.slaves.keys(), "a slave that is gone holds tasks"
        self.pool.check(self.slaves.values(), chain.from_iterable(agent.former for agent in self.agents.values()))
        for agent in self.agents.values():
            assert len(agent.slaves) <= agent.announced, f"{agent.name} has more slaves than it announced"
            for slave in agent.slaves.values():
                holds = slave.is_busy or slave.state is SlaveState.SHUTTING_DOWN
                assert slave.given is None or holds, f"{slave.sid} was given something for nothing"
                assert self.slaves[slave.sid] is slave, f"{agent.name} has {slave.sid}, which is gone"
            agent.pool.check(agent.slaves.values(), agent.former, self.pool.total)
