"""Shared objects in the master: which ones tasks need, and the parts that agents ask for.

Each group of tasks names the shared objects that its tasks need. An agent that lacks one asks for its parts. The master
answers each request. An object exists as long as something refers to it: a handle, a task that has not ended, or a
function by value that the master keeps. Then the agents to which it was named learn that it is gone, because each
object takes a file descriptor there.
"""

from __future__ import annotations

from collections import deque
from weakref import KeyedRef

from msgspec import Struct, field

from mwpy._core.master.members import ConnectedAgent
from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterState
from mwpy._values import messages
from mwpy._values.errors import ProtocolError
from mwpy._values.share_messages import PART_BYTES, Share
from mwpy._values.shares import SharedObject, shares_in

__all__ = ["Shares"]


class _Named(Struct, eq=False):
    """An object that was named to agents."""

    shared: KeyedRef[str, SharedObject]
    agents: dict[str, None] = field(default_factory=dict)
    """The names of these agents."""


class Shares:
    """Names shared objects to agents, and sends them the parts."""

    def __init__(self, state: MasterState) -> None:
        self.state = state
        self._named: dict[str, _Named] = {}
        """Those that were named to an agent, by digest."""
        self.gone: deque[KeyedRef[str, SharedObject]] = deque()
        """Those of them that do not exist any more. The thread that drops the last handle adds to it."""

    def needed_by(self, span: Span, agent: ConnectedAgent) -> dict[str, Share]:
        """Return the shared objects that tasks need, by digest. They are named to this agent."""
        shares: dict[str, Share] = {}
        for each in (*span.algorithm.shares, *shares_in(span.buffers)):
            digest = each.share.digest
            named = self._named.get(digest)
            if named is None or named.shared() is not each:
                named = self._named[digest] = _Named(
                    KeyedRef(each, self.gone.append, digest), named.agents if named else {}
                )
            named.agents[agent.name] = None
            shares[digest] = each.share
        return shares

    def decide(self) -> None:
        """Let agents give up the objects that do not exist any more, unless there is an equal one."""
        while self.gone:
            shared = self.gone.popleft()
            named = self._named.get(shared.key)
            if named is not None and named.shared is shared:
                del self._named[shared.key]
                for agent in self.state.members.agents.values():
                    if agent.name in named.agents:
                        self.state.send(agent, messages.ShareGone(shared.key))

    def send_part(self, agent: ConnectedAgent, wanted: messages.ShareWanted) -> None:
        """Answer an agent that asks for a part.

        Raises:
            ProtocolError: there is no such part; the agent's fault.
        """
        named = self._named.get(wanted.digest)
        shared = None if named is None else named.shared()
        if shared is None:  # its tasks have ended, and nothing else refers to it
            self.state.send(agent, messages.ShareGone(wanted.digest))
            return
        if wanted.start >= shared.share.size:
            raise ProtocolError(f"ShareWanted names byte {wanted.start} of {shared.share.size}")
        part = shared.content[wanted.start : wanted.start + PART_BYTES]
        self.state.send(agent, messages.SharePart(wanted.digest, wanted.start), [part])
