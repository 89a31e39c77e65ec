"""Checks from outside which hosts are excluded, and that they get no more work."""

from __future__ import annotations

import re
from collections import Counter

from msgspec import Struct, field

from mwpy._values import messages, records
from mwpy._values.ids import SlaveId

__all__ = ["HostChecker"]

_FIGURES = re.compile(
    r"(?P<bad>\d+) of \d+ (attempts of .+|starts of slaves) failed there, and \d+ of \d+ on \d+ other"
)


class HostChecker(Struct, eq=False):
    """Checks the excluded hosts of one computation."""

    excluded: dict[str, None] = field(default_factory=dict)
    times: int = 0
    """How often a host was excluded."""
    _bad: Counter[str] = field(default_factory=Counter)
    """How many attempts and starts were bad on each host, as the records say."""
    _agents: dict[str, str] = field(default_factory=dict)
    """The connected agents, and their hosts."""
    _agent_of: dict[SlaveId, str] = field(default_factory=dict)
    _host_of: dict[bytes, str] = field(default_factory=dict)
    """The hosts of connections."""
    _hosts: dict[str, str] = field(default_factory=dict)
    """The hosts of all agents that ever were connected."""

    def heard(self, peer: bytes, hello: messages.Hello) -> None:
        """The master gets the first message of an agent."""
        self._host_of[peer] = hello.host

    def charges_nothing(self, peer: bytes) -> bool:
        """Whether a death at this agent is no task's fault any more, because the agent must leave."""
        return self._host_of.get(peer) in self.excluded

    def recorded(self, record: records.Record) -> None:
        """The master states a fact."""
        match record:
            case records.AgentConnected(agent, _, host):
                assert host not in self.excluded, f"{agent} joins, but {host} is excluded"
                self._agents[agent] = self._hosts[agent] = host
            case records.AgentLost(agent) | records.AgentLeft(agent) | records.PeerDropped(agent):
                self._agents.pop(agent, None)
            case records.SlaveConnected(sid, agent):
                self._agent_of[sid] = agent
            case records.TasksAllocated(sid) | records.AttemptsStarted(sid):
                host = self._hosts[self._agent_of[sid]]
                assert host not in self.excluded, f"{sid} is sent tasks, but {host} is excluded"
            case records.ResultsReceived(sid, results):
                self._bad[self._hosts[self._agent_of[sid]]] += len(results.failed)
            case (
                records.TasksReturned(sid, tasks, _, charges)
                | records.AttemptsEnded(sid, tasks, _, charges)
                | records.TasksGivenUp(sid, _, tasks, _, charges)
            ):
                if any(charge.is_charged for charge in charges):
                    self._bad[self._hosts[self._agent_of[sid]]] += sum(each.count for each in tasks)
            case records.SlaveEnded(sid) if sid not in self._agent_of:  # in its start; it is named AGENT/NUMBER
                self._bad[self._hosts[sid.partition("/")[0]]] += 1
            case records.HostExcluded(host, reason):
                self._exclude(host, reason)
            case records.HostReadmitted(host):
                del self.excluded[host]

    def _exclude(self, host: str, reason: str) -> None:
        assert host not in self.excluded, f"{host} is excluded twice"
        self.excluded[host] = None
        self.times += 1
        hosts = {*self._agents.values(), *self.excluded}
        assert 2 * len(self.excluded) <= len(hosts), f"too many of {hosts} are excluded: {[*self.excluded]}"
        found = _FIGURES.search(reason)
        assert found, f"no figures: {reason}"
        assert int(found["bad"]) <= self._bad[host], f"only {self._bad[host]} attempts were bad there: {reason}"
