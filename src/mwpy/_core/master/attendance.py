"""How long slaves were connected, on each host. With the time that their tasks ran, this says how long they waited."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from mwpy._values import records
from mwpy._values.ids import SlaveId

__all__ = ["HOSTS_KEPT", "Attendance", "Present"]

HOSTS_KEPT = 10_000
"""How many hosts are counted. The slaves of more hosts are not counted."""


class Present(Struct, frozen=True):
    """The slaves that a host has had."""

    slaves: int
    seconds: float
    """How long they were connected, together."""


_NOTED = frozenset(
    {
        records.AgentConnected,
        records.AgentLost,
        records.AgentLeft,
        records.PeerDropped,
        records.SlaveConnected,
        records.SlaveEnded,
    }
)
"""The records that change who is connected. All others are passed over with one look at their type."""


class Attendance(Struct, eq=False):
    """Follows the records of a master."""

    _hosts: dict[str, str] = field(default_factory=dict)
    """The host of each agent."""
    _since: dict[SlaveId, tuple[str, float]] = field(default_factory=dict)
    """The host of each connected slave, and since when it is connected."""
    _ended: dict[str, Present] = field(default_factory=dict)
    """The slaves that have ended, by host."""

    def note(self, happened: Sequence[records.Record], now: float) -> None:
        """Take over records."""
        for record in happened:
            if type(record) in _NOTED:
                self._take_over(record, now)

    def _take_over(self, record: records.Record, now: float) -> None:
        match record:
            case records.AgentConnected(agent=agent, host=host):
                self._hosts[agent] = host
            case records.AgentLost(agent=agent) | records.AgentLeft(agent=agent) | records.PeerDropped(peer=agent):
                self._hosts.pop(agent, None)
            case records.SlaveConnected(sid=sid, agent=agent):
                self._since[sid] = self._hosts.get(agent, ""), now
            case records.SlaveEnded(sid=sid) if sid in self._since:
                host, since = self._since.pop(sid)
                self._add(self._ended, host, now - since)
            case _:
                pass

    def _add(self, to: dict[str, Present], host: str, seconds: float) -> None:
        before = to.get(host)
        if before is not None:
            to[host] = Present(before.slaves + 1, before.seconds + seconds)
        elif len(to) < HOSTS_KEPT:
            to[host] = Present(1, seconds)

    def until(self, now: float) -> dict[str, Present]:
        """Return the slaves of each host. Another thread may call this."""
        present = dict(self._ended)
        for host, since in list(self._since.values()):
            self._add(present, host, now - since)
        return present
