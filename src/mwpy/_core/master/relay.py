"""Passes parts of values that stay at agents on to other agents.

An agent asks the master for a part, as it asks for a part of any shared object. The master asks the agent that has the
value, and passes the part on to all agents that have asked for it meanwhile. Few parts are on their way to the master
at a time, so that they take little memory.

An agent that reads slowly must not fill the memory either. While much waits for it, its requests wait, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from mwpy._core.master.members import FEEDING_BYTES, ConnectedAgent
from mwpy._core.master.state import MasterState
from mwpy._values import messages
from mwpy._values.errors import ProtocolError
from mwpy._values.ids import Buffer
from mwpy._values.share_messages import PART_BYTES, task_of

__all__ = ["PARTS_COMING", "Relay"]

PARTS_COMING = 16
"""How many parts are on their way to the master at a time."""

Part = tuple[str, int]
"""The digest of a value, and the first byte of a part of it."""


class Relay(Struct, eq=False):
    """Asks agents for parts of values, and passes them on."""

    state: MasterState
    asked: dict[Part, dict[str, None]] = field(default_factory=dict)
    """The parts that agents wait for, and the names of these agents."""
    _coming: dict[Part, str] = field(default_factory=dict)
    """Those of them that are on their way, and the name of the agent that has them."""

    def wanted(self, agent: ConnectedAgent, wanted: messages.ShareWanted) -> None:
        """An agent asks for a part.

        Raises:
            ProtocolError: there is no such part; the agent's fault.
        """
        place = self._place(wanted.digest)
        if place is None:
            self.state.send(agent, messages.ShareGone(wanted.digest))
            return
        _, size = place
        if wanted.start >= size or wanted.start % PART_BYTES:
            raise ProtocolError(f"ShareWanted names byte {wanted.start} of {size}")
        self.asked.setdefault((wanted.digest, wanted.start), {})[agent.name] = None

    def _place(self, digest: str) -> tuple[str, int] | None:
        """The name of the agent that has a value, and the size of the value; None if there is no such agent."""
        result = self.state.jar.blocked.results.get(task_of(digest))
        if result is None or result.share is None or result.share.digest != digest:
            return None
        return (result.agent, result.share.size) if result.agent in self.state.members.agents else None

    def part(self, agent: ConnectedAgent, message: messages.SharePart, frames: Sequence[Buffer]) -> None:
        """A part has arrived: pass it on to the agents that have room. Ignore it if nobody waits for it any more.

        Raises:
            ProtocolError: it has a wrong size; the agent's fault.
        """
        part = message.digest, message.start
        place = self._place(message.digest)
        if place is None or self._coming.get(part) != agent.name:
            return
        if len(frames[0]) != min(PART_BYTES, place[1] - message.start):
            raise ProtocolError(f"SharePart has {len(frames[0])} bytes, from byte {message.start} of {place[1]} on")
        del self._coming[part]
        waiting = self.asked.pop(part)
        for name in [name for name in waiting if self._has_room(name)]:
            del waiting[name]
            if name in self.state.members.agents:
                self.state.send(self.state.members.agents[name], message, frames)
        if waiting:
            self.asked[part] = waiting

    def _has_room(self, name: str) -> bool:
        """Whether an agent can get another part, or is gone."""
        agent = self.state.members.agents.get(name)
        return agent is None or agent.waiting_bytes < FEEDING_BYTES

    def decide(self) -> None:
        """Ask for the next parts. Say so to agents that wait for a value that is lost or released."""
        for part in [part for part in self.asked if self._place(part[0]) is None]:
            self._coming.pop(part, None)
            for name in self.asked.pop(part):
                if name in self.state.members.agents:
                    self.state.send(self.state.members.agents[name], messages.ShareGone(part[0]))
        for part, names in self.asked.items():
            if len(self._coming) == PARTS_COMING:
                break
            place = self._place(part[0])
            if part not in self._coming and place is not None and any(map(self._has_room, names)):
                self._coming[part] = place[0]
                self.state.send(self.state.members.agents[place[0]], messages.ShareWanted(*part))

    def check(self) -> None:
        """Assert that each part that comes is waited for, and that few come."""
        assert self._coming.keys() <= self.asked.keys(), "a part comes for nobody"
        assert len(self._coming) <= PARTS_COMING, "too many parts come"
