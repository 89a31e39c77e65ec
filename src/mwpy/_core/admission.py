"""Who is let in, and how its slaves join the others.

An agent's first message says which computation it was sent to. It is let in or refused with the reason, which both
sides are told; what a refused one sends after that is not heard.
"""

from __future__ import annotations

from attrs import define, field

from mwpy import _messages as messages
from mwpy import records
from mwpy._core.dispatch import Dispatcher
from mwpy._core.events import Send
from mwpy._core.stable import Agent, SlaveEvent
from mwpy.errors import ProtocolError
from mwpy.last_words import LastWords
from mwpy.task import SlaveId, SlaveKind, SlaveState

__all__ = ["Admission"]


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
        agent = self.stable.add_agent(peer, address, max(0, hello.slaves), hello.job)
        self._record(records.AgentConnected(agent.name, address, hello.host, hello.pid, hello.job))
        settings = self.settings
        self._send(
            agent,
            messages.Welcome(agent.name, settings.client_timeout_s, settings.result_group, settings.max_result_bytes),
        )

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
