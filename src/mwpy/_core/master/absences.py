"""Agents that are away: nothing is heard from them, and they may come back with their running tasks.

When the connection of an agent ends because of silence, the network may have failed, or the agent was stopped. An agent
that has a session looks for its master then (`Hello.returns_s`). So it is away, and not lost: its slaves keep their
tasks, get no others, and values stay at it. When it comes back, everything goes on as if the messages had only been
late. An agent that does not come back in time is lost, as other agents are at once.

After another client timeout, idle slaves start second attempts of its tasks (`stragglers.py`).

If the connection was ended from the other side, the process of the agent was probably killed. Then it is lost at once.
"""

from __future__ import annotations

from msgspec import Struct, field

from mwpy._core.master.losses import Losses
from mwpy._core.master.members import ConnectedAgent, SlaveEvent
from mwpy._core.master.state import MasterState
from mwpy._values import records
from mwpy._values.phrases import counted
from mwpy._values.task import SlaveState

__all__ = ["Absences"]

SHOWN = 3
"""How many agents that are away a message names."""


class Absences(Struct, eq=False):
    """Decides how long the master waits for agents that are away."""

    state: MasterState
    losses: Losses
    _since: dict[str, float] = field(default_factory=dict)
    """Since when nothing was heard from each agent that is away, on the core's clock."""
    _until: dict[str, float] = field(default_factory=dict)
    """Until when the master waits for it."""

    @property
    def deadline(self) -> float | None:
        """When to decide even if nothing happens, on the core's clock; None if there is no need."""
        return min(self._until.values(), default=None)

    def alone_until(self, agent: ConnectedAgent) -> float:
        """Until when its tasks get no second attempts because it is away, on the core's clock."""
        return self._until[agent.name] - agent.returns_s + self.state.settings.client_timeout_s

    def begin(self, peer: bytes, silent_s: float, now: float) -> None:
        """The connection of a peer has ended, without a goodbye if it was an agent.

        Args:
            silent_s: as in `Vanished`.
        """
        agent = self.state.members.peers.get(peer)
        if agent is None:
            return
        if not silent_s or self.state.closing is not None or not agent.returns_s or agent.leaving:
            self.losses.agent_vanished(agent, silent_s)
            return
        self._since[agent.name], self._until[agent.name] = now - silent_s, now + agent.returns_s
        reason = f"nothing was heard from it for {silent_s:.0f} s: its machine or the network failed, or it was stopped"
        self.state.record(records.AgentAway(agent.name, reason))
        for slave in agent.slaves.values():
            if slave.state in (SlaveState.IDLE, SlaveState.BUSY):
                self.state.change(slave, SlaveEvent.GO_AWAY)
        held = sum(slave.held.count for slave in agent.slaves.values())
        tasks = f", and {counted(held, 'task')} with it" if held else ""
        timeout_s = self.state.settings.client_timeout_s
        self.state.notice(
            f"{agent.place} is away{tasks}: {reason}. It has {agent.returns_s:.0f} s to come back; then "
            f"its tasks run elsewhere. Idle slaves start them again after {timeout_s:.0f} s, but not with retry=False",
            key=f"away {agent.name}",
        )

    def end(self, peer: bytes, address: str, now: float) -> None:
        """An agent is back on another connection, from this address."""
        agent = self.state.members.peers[peer]
        if not agent.is_away:  # its connection had ended, and the master did not know it yet
            return
        away_s = now - self._since.pop(agent.name)
        del self._until[agent.name]
        self.state.record(records.AgentBack(agent.name, address))
        for slave in agent.slaves.values():
            if slave.state is SlaveState.AWAY:
                self.state.change(slave, SlaveEvent.COME_BACK)
                if slave.held.spans:
                    self.state.change(slave, SlaveEvent.FEED)
                    self.state.members.hungry[slave.sid] = slave
                slave.last_heard = now
        self.state.notice(f"{agent.place} is back after {away_s:.0f} s", key=f"back {agent.name}")

    def decide(self, now: float) -> None:
        """Give up the agents that did not come back in time. The end of the computation waits for none of them."""
        for name, until in [*self._until.items()]:
            if until <= now or self.state.closing is not None:
                self._give_up(self.state.members.agents[name], now)

    def _give_up(self, agent: ConnectedAgent, now: float) -> None:
        silent_s = now - self._since.pop(agent.name)
        del self._until[agent.name]
        self.losses.agent_vanished(agent, silent_s)
        self.state.actions.forget.append(agent.peer)

    @property
    def waits(self) -> bool:
        """Whether tasks are at agents that are away, and no other slave has any."""
        if not self._until or not self.state.jar.num_allocated:
            return False
        return not any(slave.held.spans and not slave.agent.is_away for slave in self.state.members.slaves.values())

    def text(self, now: float) -> str:
        """Which agents are away, and what waits for them."""
        agents = [self.state.members.agents[name] for name in self._until]
        held = sum(slave.held.count for agent in agents for slave in agent.slaves.values())
        named = "; ".join(f"{each.place}, away for {now - self._since[each.name]:.0f} s" for each in agents[:SHOWN])
        more = f"; and {len(agents) - SHOWN} more" if len(agents) > SHOWN else ""
        left_s = min(self._until.values()) - now
        return (
            f"the master waits for the return of {counted(len(agents), 'agent')} with {counted(held, 'task')} "
            f"({named}{more}). The first one is given up in {left_s:.0f} s; then its tasks run elsewhere"
        )

    def check(self) -> None:
        """Assert that the master waits for each agent that is away, and for no other."""
        assert self._until.keys() == self._since.keys() == self.state.members.away.keys(), "an absence has no end"
