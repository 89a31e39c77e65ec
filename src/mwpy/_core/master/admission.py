"""Who is let in, and how its slaves join the others.

An agent's first message says which computation it was sent to. It is let in or refused with the reason, which both
sides are told; what a refused one sends after that is not heard.

Whoever is let in may have another Python or other packages than the master. A function that travels by value does not
cross Python's minor versions, so no task of it is sent there. All else is tried: it is said once for each difference,
with both versions, and what is the same stands in the audit file alone.
"""

from __future__ import annotations

from attrs import define, field

from mwpy._core.master.commands import Definition
from mwpy._core.master.dispatch import Dispatcher
from mwpy._core.master.events import Send
from mwpy._core.master.stable import Agent, SlaveEvent
from mwpy._values import messages, records
from mwpy._values.algorithm import Algorithm
from mwpy._values.errors import ProtocolError
from mwpy._values.ids import SlaveId
from mwpy._values.last_words import LastWords
from mwpy._values.task import SlaveKind, SlaveState

__all__ = ["Admission"]

VERSION_CHARACTERS = 100
"""So much is believed of a version that an agent tells."""


@define(eq=False)
class Admission(Dispatcher):
    """The dispatcher, and the door."""

    closing: messages.Shutdown | None = None
    """What the agents were told at the end; None while the computation runs."""
    _dropped: dict[bytes, None] = field(factory=dict)
    _refusals: int = 0
    """How many were not let in since somebody was."""
    _last_refusal: str = ""

    def _hello(self, hello: messages.Hello, peer: bytes, address: str) -> None:
        reason = self._why_not(hello)
        if reason:
            self._note_refusal(address, reason)
            self._actions.sends.append(Send(peer, messages.Refused(reason)))
            self._dropped[peer] = None
            return
        if self.closing is not None:
            self._actions.sends.append(Send(peer, self.closing))
            self._dropped[peer] = None
            return
        self._refusals = 0
        agent = self.stable.add_agent(peer, address, max(0, hello.slaves), hello.job, hello.python)
        self._record(records.AgentConnected(agent.name, address, hello.host, hello.pid, hello.job))
        settings = self.settings
        self._send(
            agent,
            messages.Welcome(agent.name, settings.client_timeout_s, settings.result_group, settings.max_result_bytes),
        )
        for definition in self._definitions.values():
            self._compare_python(agent, definition)

    def _why_not(self, hello: messages.Hello) -> str:
        mine = self.settings
        if hello.member_id != mine.member_id:
            return (
                f"member id {hello.member_id!r} is not this master's {mine.member_id!r}: the agent on {hello.host} "
                f"was sent to another computation; check --mw-member-id or its resource file"
            )
        if hello.generation and hello.generation != mine.generation:
            return (
                f"the agent on {hello.host} read a resource file of generation {hello.generation}, this master is "
                f"generation {mine.generation}: the file is stale, give it a fresh copy"
            )
        return ""

    def _compare_python(self, agent: Agent, definition: Definition) -> None:
        header = definition.header
        if agent.python == header.python:
            return
        if not header.reference:
            self._refuse_algorithm(
                agent,
                definition.algorithm,
                f"{header.name} travels by value, which Python {header.python} (master) and {agent.python} "
                f"(slave) cannot do: use the same minor version, or give the slave the script",
            )
            return
        self._say_once(
            f"{agent.name} ({agent.address}) has Python {agent.python}, the master {header.python}: functions that "
            f"travel by name are run there, those by value are not, and results may differ; use the same minor version",
            key=f"python {agent.python}",
        )

    def _refuse_algorithm(self, agent: Agent, algorithm: Algorithm, reason: str) -> None:
        """Note that an agent's slaves cannot run an algorithm; they are sent no more of it."""
        if algorithm in agent.refused:
            return
        agent.refused[algorithm] = reason
        self._record(records.AlgorithmRefused(agent.name, algorithm.name, reason))
        self._say_once(
            f"the slaves of {agent.name} ({agent.address}) cannot run {algorithm.name} and are sent no more "
            f"of it: {reason}",
            key=algorithm.name + reason,
        )

    def _compare_packages(self, agent: Agent, installed: dict[str, str]) -> None:
        mine: dict[str, str] = {}
        for algorithm in agent.known:
            mine |= self._definitions[algorithm].header.packages
        told = {name: version[:VERSION_CHARACTERS] for name, version in installed.items() if name in mine}
        same = [f"{name} {version}" for name, version in told.items() if version == mine[name]]
        other = {name: version for name, version in told.items() if version != mine[name]}
        different = [f"{name} {version or 'missing'}, not {mine[name]}" for name, version in other.items()]
        self._record(records.PackagesCompared(agent.name, same, different))
        for name, version in other.items():
            self._say_once(
                f"{agent.name} ({agent.address}) has {f'{name} {version}' if version else f'no package {name}'}, the "
                f"master {mine[name]}: results may differ; install the same version, or pack the script (mwpy pack)",
                key=f"package {name} {version}",
            )

    def _note_refusal(self, address: str, reason: str) -> None:
        self._refusals += 1
        self._last_refusal = f"{address}: {reason}"
        self._record(records.AgentRefused(address, reason))

    def _slave_ready(self, agent: Agent, number: int, now: float) -> None:
        if number in agent.slaves:
            raise ProtocolError(f"slave {number} is ready twice")
        slave = self.stable.add_slave(agent, number, now)
        self._record(records.SlaveConnected(slave.sid, agent.name, agent.address, slave.kind))
        self._change(slave, SlaveEvent.ADMIT)
        self._send(agent, messages.SlaveNamed(number, slave.sid))
        if slave.kind is not SlaveKind.UNORDERED:
            self._actions.connected.append(slave.sid)
            self._progressed = True
        if self.closing is not None:
            self._change(slave, SlaveEvent.SHUT_DOWN)

    def _slave_never_came(self, agent: Agent, number: int, cause: str, words: LastWords) -> None:
        sid = SlaveId(f"{agent.name}/{number}")
        if agent.leaving:
            self._record(records.SlaveEnded(sid, cause, "", words))
            return
        self._record(records.SlaveEnded(sid, f"before it could take a task: {cause}", "", words))
        self._say_once(
            f"a slave of {agent.name} ({agent.address}) ended before it could take a task: {cause}. "
            f"It wrote last:\n{words.shown() or '(nothing)'}",
            key=cause + words.headline,
        )

    def _retire(self, agent: Agent, why: str) -> None:
        """Send its slaves no more tasks; what they run may still end, and what they do not end is charged to none."""
        agent.announced = 0
        agent.leaving = why
        for slave in agent.slaves.values():
            if slave.state in (SlaveState.IDLE, SlaveState.BUSY):
                self._change(slave, SlaveEvent.SHUT_DOWN)
