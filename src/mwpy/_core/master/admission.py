"""Which agents are accepted and which are refused, which slaves join, and of which kind they are.

The agents that are accepted and those that are refused, and the slaves that join.

The first message of an agent says which computation it was sent to. The master accepts or refuses it, and both sides
see the reason. The master ignores all later messages of a refused peer.

An accepted agent may have another Python or other packages than the master. A function that travels by value does not
work across Python's minor versions, so no task of such a function is sent to an agent with another minor version. All
other tasks are sent. Each difference is reported once, with both versions. Equal versions are only in the audit file.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from fnmatch import fnmatchcase
from math import inf

from attrs import Factory, define

from mwpy._core.master.handback import HandBack
from mwpy._core.master.members import SERVING, AgentState, ConnectedAgent, ConnectedSlave
from mwpy._core.master.state import MasterState, RenewSlaves, Send, Waiting
from mwpy._values import messages, records
from mwpy._values.bounds import MAX_SECONDS, SlaveId, shortened
from mwpy._values.causes import Cause
from mwpy._values.errors import ProtocolError
from mwpy._values.messages import LoadFailure
from mwpy._values.options import OWN_ADDRESS
from mwpy._values.phrases import amount, first_of
from mwpy._values.task import SlaveKind, SlaveState

# The kinds of slaves: how many of each kind the algorithm wants, and which slaves have which kind.


_UNORDERED = SlaveKind.UNORDERED


@define(eq=False, repr=False)
class SlaveKinds:
    """Assigns kinds to slaves."""

    state: MasterState
    handback: HandBack
    wanted: dict[SlaveKind, int] = Factory(lambda: dict.fromkeys(SlaveKind, 0))
    """How many slaves of each kind the algorithm asked for."""
    unordered_unasked: bool = True
    """Whether the algorithm never said how many unordered slaves it wants. Then it wants as many as there are tasks."""
    _freed: list[SlaveId] = Factory(list)
    """The slaves that were freed and hold tasks."""

    def allocate(self, amount: int, kind: SlaveKind) -> None:
        """Want `amount` more slaves of a kind: unordered slaves may become ordered or intermingle. If the amount is
        negative, want fewer: no slave is stopped."""
        self.wanted[kind] = max(0, self.wanted[kind] + amount)
        if kind is _UNORDERED:
            self.unordered_unasked = False
        self._fill_vacancies()

    def free(self, sid: SlaveId) -> None:
        """Make an ordered or intermingle slave unordered when it has finished the tasks that it holds."""
        slave = self.state.members.slaves.get(sid)
        if slave is None or slave.kind is _UNORDERED or slave.freed:
            return
        self.allocate(-1, slave.kind)
        slave.freed = True
        self._freed.append(sid)

    def decide(self) -> None:
        """Make those freed slaves unordered that have finished their tasks."""
        before, self._freed = self._freed, []
        for sid in before:
            slave = self.state.members.slaves.get(sid)
            if slave is not None and slave.held.spans:
                self._freed.append(sid)
            elif slave is not None:
                slave.freed = False
                self._set_kind(slave, _UNORDERED)
                self.handback.release_addressed(sid, "is gone: it was freed")
                self._fill_vacancies()

    def lost(self, slave: ConnectedSlave, why: str) -> None:
        """Handle the end of a slave: the tasks that are addressed to it, and its place in its kind."""
        self.handback.release_addressed(slave.sid, f"is gone: {why}" if why else "is gone")
        if slave.kind is not _UNORDERED:
            self.state.actions.disconnected.append(slave.sid)
            self._fill_vacancies()

    def count(self, kind: SlaveKind) -> int:
        """How many slaves of a kind there are. A freed slave counts as unordered."""
        return sum(slave.kind_to_be is kind for slave in self.state.members.slaves.values())

    def vacancies(self) -> Iterator[SlaveKind]:
        """The kinds that lack slaves: one entry for each missing slave, ordered before intermingle."""
        for kind in (SlaveKind.ORDERED, SlaveKind.INTERMINGLE):
            if self.wanted[kind]:
                for _ in range(self.wanted[kind] - self.count(kind)):
                    yield kind

    def _fill_vacancies(self) -> None:
        """Give unordered slaves the kinds that lack slaves. Idle slaves come first."""
        members = self.state.members
        for kind in list(self.vacancies()):
            free = (
                slave
                for slave in (*members.idle.values(), *members.slaves.values())
                if slave.kind is _UNORDERED and slave.state in SERVING
            )
            slave = next(free, None)
            if slave is None:
                return
            self._set_kind(slave, kind)
            self.state.actions.connected.append(slave.sid)

    def _set_kind(self, slave: ConnectedSlave, kind: SlaveKind) -> None:
        self.state.record(records.SlaveChanged(slave.sid, slave.state, kind))


# Whether slaves are sent tasks at all.
#
# Results wait in memory until the algorithm fetches them. If too many wait, no more tasks are sent. This must not block
# an algorithm that waits: it waits only when it has fetched what it can fetch, and what it waits for may be a task that
# was not sent yet. An example is a map in order, which keeps the results of later items. So tasks are sent if the
# algorithm waits and no slave has a task.


class Feeding:
    """Stops the feeding of slaves while too many results wait, and some time before the master must end."""

    def __init__(self, state: MasterState) -> None:
        self.state = state
        self.unfetched = 0
        """About how many bytes of results the algorithm has not fetched."""
        self.holds_back = False
        """Whether tasks are held back until the algorithm fetches results."""
        self.out_of_time = False
        """Whether the time for tasks is over, so that the algorithm can save what it has."""
        self.deadline = state.settings.feeds_until
        """When to decide even if nothing happens, on the core's clock; None if there is no need."""

    def end_soon(self) -> None:
        """Send no more tasks from now on, if the end of the master is known."""
        if self.deadline is not None:
            self.deadline = -inf

    def decide(self, waiting: Waiting, now: float) -> bool:
        """Decide whether tasks may be sent at this time.

        Args:
            waiting: whether the master algorithm waits.
        """
        jar = self.state.jar
        is_much = self.unfetched > self.state.settings.max_waiting_bytes
        may_fetch = waiting is Waiting.NOT and self.unfetched > 0  # answers that wait for a repetition need tasks
        self.holds_back = is_much and (may_fetch or jar.num_allocated > 0)
        if self.deadline is not None and now >= self.deadline:
            self.out_of_time, self.deadline = True, None
            self.state.actions.ends_at = self.state.settings.ends_at
            self.state.notice(self.why_not)
        return not (self.holds_back or self.out_of_time)

    @property
    def why_not(self) -> str:
        """Why no tasks are sent, and what to do; empty if they are sent."""
        if self.out_of_time:
            return "the time of the master is nearly over, so no more tasks are sent"
        if not self.holds_back:
            return ""
        return (
            f"results of about {amount(self.unfetched)} wait for the master algorithm, so no more tasks are sent. "
            f"Fetch them with mw.results() or from the maps that are open, or raise --mw-max-waiting-results"
        )


MESSAGES_IGNORED = 1000
"""How many messages of a refused peer are ignored before its connection is ended. An agent leaves when it reads that it
is refused, but its slaves may have sent many results before."""


LIKE_OTHERS = "could not load {name}, like the slaves before it"
OTHER_CODE = "has other code for {name}"

STALE = (
    "the agent on {host} read a resource file of generation {theirs}, this master is generation {mine}: the file is "
    "stale, give it a fresh copy"
)
NEXT = "the master was started again"
UNKNOWN = f"{NEXT} without the run database of this agent's generation, so it wants none of its tasks"
EXPIRED = "it came back too late: the master has given its tasks to others"


def _has_name(agent: ConnectedAgent, name: str) -> bool:
    """Whether a user means an agent by a name."""
    return name in (agent.name, agent.job) or fnmatchcase(agent.host, name)


@define(eq=False, repr=False)
class Admission:
    """Decides who joins."""

    state: MasterState
    kinds: SlaveKinds
    refusals: int = 0
    """How many peers were refused since the last agent was accepted."""
    last_refusal: str = ""
    """The address of the last refused peer, and the reason."""
    _ignored: dict[bytes, int] = Factory(dict)
    """The connections of peers that were refused, and how many of their messages were ignored."""

    # ---- agents --------------------------------------------------------------------------------------------

    def ignores(self, peer: bytes) -> bool:
        """Whether a peer was refused. Its message is ignored. After many such messages, the connection is ended."""
        if peer not in self._ignored:
            return False
        self._ignored[peer] += 1
        if self._ignored[peer] % MESSAGES_IGNORED == 0:
            self.state.actions.disconnect.append(peer)
        return True

    def forget(self, peer: bytes) -> None:
        """The connection of a peer is gone."""
        self._ignored.pop(peer, None)

    def hello(self, hello: messages.Hello, peer: bytes, address: str, now: float, former: Container[str]) -> None:
        """Accept or refuse an agent.

        Args:
            former: the generations that the run database knows.
        """
        mine, refused = self.state.settings, messages.Refused(self._why_not(hello))
        returns, other = hello.handled is not None, hello.generation not in ("", mine.generation)
        if other and not (refused.reason or returns):
            stale = STALE.format(host=hello.host, theirs=hello.generation, mine=mine.generation)
            refused = messages.Refused(stale, generation=mine.generation)
        if refused.reason:
            self.note_refusal(address, refused.reason)
            self.send_away(peer, refused)
            return
        if self.state.closing is not None:
            self.send_away(peer, self.state.closing)
            return
        if other:
            is_known = hello.generation in former
            reason = NEXT if is_known else UNKNOWN
            self.send_away(peer, messages.Refused(reason, again=not is_known, generation=mine.generation))
            return
        if returns:
            self.note_refusal(address, EXPIRED)
            self.send_away(peer, messages.Refused(EXPIRED, again=True))
            return
        self.refusals = 0
        name = self.state.members.next_agent
        returns_s = hello.returns_s if hello.session else 0.0
        what = hello.host, hello.pid, hello.job, hello.slaves, hello.python, hello.seconds_left, returns_s, hello.offers
        self.state.record(records.AgentConnected(name, address, *what))
        agent = self.state.members.connect(name, peer, now)
        limits = mine.result_group, mine.max_result_bytes, mine.client_timeout_s
        welcome = messages.Welcome(name, *limits, generation=mine.generation, set_up=mine.set_up)
        self.state.send(agent, welcome)
        for number in list(self.state.jar.algorithms.defined):
            self._compare_python(agent, number)

    def drop(self, peer: bytes, address: str, reason: str) -> ConnectedAgent | None:
        """Ignore a peer that sent what no correct peer sends. Return the agent, if the peer was one."""
        agent = self.state.members.peers.get(peer)
        if agent is None:
            self.note_refusal(address, reason)
        else:
            self.state.record(records.PeerDropped(agent.name, reason))
        self.send_away(peer, messages.Refused(f"protocol error: {reason}"))
        return agent

    def turned_away(self, address: str, reason: str) -> None:
        """Record that a connection could not be accepted."""
        text = f"{reason}: {self._how_to_make_room()}"
        self.note_refusal(address, text)
        why = f"connections are turned away, because they cannot be accepted: {text}"
        self.state.notice(why, key="turned away", lasts=True)

    def _how_to_make_room(self) -> str:
        return (
            f"this process may have {self.state.settings.max_open_files} open files, and each agent needs one; raise "
            f"this limit (ulimit -n), or start fewer agents with more slaves each (--mw-slave-processes)"
        )

    def note_refusal(self, address: str, reason: str) -> None:
        """Record that a peer was refused."""
        self.refusals += 1
        self.last_refusal = f"{address}: {reason}"
        self.state.record(records.AgentRefused(address, reason))

    def retire(self, agent: ConnectedAgent, why: str, cause: Cause) -> None:
        """Send no more tasks to an agent's slaves. Running tasks may finish; `cause` is why the others are lost."""
        self.state.record(records.AgentLeaving(agent.name, why, cause))
        self._stop_feeding(agent)

    def dismiss(self, agent: ConnectedAgent, why: str) -> None:
        """Let an agent leave, because it can run nothing of this run."""
        self.retire(agent, why, Cause.CANCELLED)
        self.state.send(agent, messages.Shutdown(finished=True, grace_s=0.0, unfit=shortened(why)))

    def drain(self, names: Sequence[str]) -> messages.Drained:
        """Let agents leave when their slaves have finished the tasks that run.

        Args:
            names: those of agents, or of their jobs; or patterns of the names of their hosts.
        """
        members, chosen, unknown = self.state.members, dict[str, ConnectedAgent](), list[str]()
        for name in dict.fromkeys(names):
            named = [agent for agent in members.agents.values() if _has_name(agent, name)]
            able = [agent for agent in named if agent.state is AgentState.CONNECTED and agent.address != OWN_ADDRESS]
            chosen |= {agent.name: agent for agent in able}
            if not able:
                known = first_of((agent.place for agent in members.agents.values()), len(members.agents)) or "none"
                why = f"it has the state {named[0].state.value}, or is the master's own" if named else "no agent has it"
                unknown.append(f"{name} ({why}; the agents are: {known})")
        running = sum(slave.held.count for agent in chosen.values() for slave in agent.slaves.values())
        for agent in chosen.values():
            self.retire(agent, "it is drained", Cause.SCALED_DOWN)
            self.state.send(agent, messages.Shutdown(finished=True, grace_s=MAX_SECONDS))
        return messages.Drained([agent.place for agent in chosen.values()][: messages.MAX_DRAINED], running, unknown)

    def renew_slaves(self, command: RenewSlaves) -> None:
        """Let agents replace their slaves. Each slave ends after the tasks that it holds."""
        refused = command.refused
        for agent in self.state.members.agents.values():
            able = refused is not None and not any(refused in slave.refused for slave in agent.slaves.values())
            if not (agent.leaving or able):
                self.state.send(agent, messages.Renew(command.module_path))
                self._stop_feeding(agent)

    def _stop_feeding(self, agent: ConnectedAgent) -> None:
        for slave in agent.slaves.values():
            self.retire_slave(slave)

    def retire_slave(self, slave: ConnectedSlave) -> None:
        """Send no more tasks to a slave. It ends after the tasks that it holds."""
        if slave.state is not SlaveState.SHUTTING_DOWN:
            self.state.record(records.SlaveChanged(slave.sid, SlaveState.SHUTTING_DOWN, slave.kind))

    def send_away(self, peer: bytes, message: messages.Message) -> None:
        """Send a peer its last message, and ignore its later messages."""
        self.state.actions.sends.append(Send(peer, message))
        self._ignored[peer] = 0

    def _why_not(self, hello: messages.Hello) -> str:
        mine = self.state.settings
        if hello.member_id != mine.member_id:
            return (
                f"member id {hello.member_id!r} is not this master's {mine.member_id!r}: the agent on {hello.host} "
                f"was sent to another computation; check --mw-member-id or its resource file"
            )
        if hello.host in self.state.members.excluded:
            return self.state.members.excluded[hello.host]
        if len(self.state.members.agents) >= mine.max_agents:
            reason = f"there is room for {mine.max_agents} agents only: {self._how_to_make_room()}"
            self.state.notice(f"agents are refused: {reason}", key="room", lasts=True)
            return reason
        return ""

    # ---- slaves --------------------------------------------------------------------------------------------

    def slave_ready(self, agent: ConnectedAgent, number: int) -> None:
        """Let a slave join, with the kind that is needed most.

        Raises:
            ProtocolError: the slave has already joined, or the agent has too many slaves; the agent's fault.
        """
        if number in agent.slaves:
            raise ProtocolError(f"slave {number} is ready twice")
        if len(agent.slaves) >= agent.announced:
            raise ProtocolError(f"slave {number} is ready, but the agent announced {agent.announced} slaves")
        vacancies = iter(()) if agent.leaving else self.kinds.vacancies()
        sid, kind = self.state.members.next_sid, next(vacancies, SlaveKind.UNORDERED)
        self.state.record(records.SlaveConnected(sid, agent.name, agent.address, kind, number))
        slave = self.state.members.slaves[sid]
        slave.connected_at = self.state.now
        self.state.settle(slave)
        self.state.send(agent, messages.SlaveNamed(number, sid, self.state.settings.log_levels))
        if kind is not SlaveKind.UNORDERED:
            self.state.actions.connected.append(sid)
        if self.state.closing is not None or agent.leaving:
            self.retire_slave(slave)

    # ---- what agents can run -------------------------------------------------------------------------------

    def algorithm_defined(self, number: int) -> None:
        """Compare a new algorithm with the agents that are connected."""
        for agent in self.state.members.agents.values():
            self._compare_python(agent, number)

    def algorithm_failed(self, slave: ConnectedSlave, message: messages.AlgorithmFailed) -> None:
        """Record that a slave cannot run an algorithm. If the failure may pass, the agent replaces this slave.

        Raises:
            ProtocolError: there is no such algorithm; the agent's fault.
        """
        number, reason, agent = message.number, message.reason, slave.agent
        algorithms = self.state.jar.algorithms
        if not 0 <= number <= algorithms.highest:
            raise ProtocolError(f"AlgorithmFailed names algorithm {number}, which was never defined")
        if number not in algorithms.defined:  # it was forgotten, because no task of it is left
            return
        name = algorithms.defined[number].name
        match message.failure:
            case LoadFailure.SURE:
                self._refuse_algorithm(agent, number, reason)
            case LoadFailure.PASSING:
                self.state.notice(
                    f"a slave of {agent.place} could not load {name}, and is replaced by a new one, "
                    f"which tries again: {reason}",
                    key=f"passing {name} {reason}",
                )
                self.retire_slave(slave)
            case failure if number not in slave.refused:
                why = OTHER_CODE if failure is LoadFailure.OTHER_CODE else LIKE_OTHERS
                algorithms.defined[number].refused = True
                self.state.record(records.AlgorithmRefused(agent.name, name, reason, number, slave.sid))
                self.state.notice(
                    f"{slave.sid} of {agent.place} {why.format(name=name)}, and gets no more tasks of it: {reason}",
                    key=f"{failure} {name} {reason}",
                )

    def compare_packages(self, agent: ConnectedAgent, installed: dict[str, str]) -> None:
        """Compare the versions of packages on an agent with those on the master."""
        mine = self.state.jar.algorithms.packages
        there = {name: version for name, version in installed.items() if name in mine}
        same = [f"{name} {version}" for name, version in there.items() if version == mine[name]]
        other = {name: version for name, version in there.items() if version != mine[name]}
        different = [f"{name} {version or 'missing'}, not {mine[name]}" for name, version in other.items()]
        self.state.record(records.PackagesCompared(agent.name, same, different))
        for name, version in other.items():
            self.state.notice(
                f"{agent.place} has {f'{name} {version}' if version else f'no package {name}'}, the "
                f"master {mine[name]}: results may differ; install the same version, or pack the script (mwpy pack)",
                key=f"package {name} {version}",
            )

    def _compare_python(self, agent: ConnectedAgent, number: int) -> None:
        definition = self.state.jar.algorithms.defined[number].record.definition
        if agent.python == definition.python:
            return
        if not (definition.reference or definition.is_portable):
            self._refuse_algorithm(
                agent,
                number,
                f"{definition.name} travels by value, but the Pythons differ: {definition.python} (master) and "
                f"{agent.python} (slave). Use the same minor version, or give the slave the script",
            )
            return
        self.state.notice(
            f"{agent.place} has Python {agent.python}, the master {definition.python}: functions that "
            f"travel by name are run there, those by value are not, and results may differ; use the same minor version",
            key=f"python {agent.python}",
        )

    def _refuse_algorithm(self, agent: ConnectedAgent, number: int, reason: str) -> None:
        """Stop sending tasks of an algorithm to an agent's slaves."""
        if number in agent.refused:
            return
        defined = self.state.jar.algorithms.defined[number]
        defined.refused, name = True, defined.name
        self.state.record(records.AlgorithmRefused(agent.name, name, reason, number))
        self.state.notice(
            f"the slaves of {agent.place} cannot run {name} and get no more tasks of it: {reason}", key=name + reason
        )
