"""Shared objects in the master: which ones tasks need, and the parts that agents ask for.

Values that stay at agents are among them. The master has no content of these, see `relay.py`.

Each group of tasks names the shared objects that its tasks need. An agent that lacks one asks for its parts. The master
remembers nothing about that: it answers each request. An object exists as long as something refers to it: a handle, a
task that has not ended, or a function by value that the master keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakValueDictionary

from mwpy._core.master.members import ConnectedAgent
from mwpy._core.master.relay import Relay
from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterState
from mwpy._values import messages
from mwpy._values.errors import ProtocolError
from mwpy._values.ids import Buffer
from mwpy._values.share_messages import PART_BYTES, Share, task_of
from mwpy._values.shares import SharedObject, shares_in

__all__ = ["Shares"]


class Shares:
    """Names shared objects to agents, and sends them the parts."""

    def __init__(self, state: MasterState) -> None:
        self.state = state
        self.relay = Relay(state)
        """Passes on values that stay at agents."""
        self._named: WeakValueDictionary[str, SharedObject] = WeakValueDictionary()
        """Those that were named to an agent and still exist, by digest."""

    def needed_by(self, span: Span) -> dict[str, Share]:
        """Return the shared objects that tasks need, by digest."""
        needed = {each.share.digest: each for each in (*span.algorithm.shares, *shares_in(span.buffers))}
        self._named.update(needed)
        shares = {digest: each.share for digest, each in needed.items()}
        for number in span.refers:
            share = self.state.jar.blocked.results[number].share
            assert share is not None, f"{span} is sent to a slave without the value of task {number}"
            shares[share.digest] = share
        return shares

    def heard(
        self, agent: ConnectedAgent, message: messages.ShareWanted | messages.SharePart, frames: Sequence[Buffer]
    ) -> None:
        """An agent asks for a part, or sends one. It raises what `send_part` and `Relay.part` raise."""
        if isinstance(message, messages.SharePart):
            self.relay.part(agent, message, frames)
        else:
            self.send_part(agent, message)

    def send_part(self, agent: ConnectedAgent, wanted: messages.ShareWanted) -> None:
        """Answer an agent that asks for a part.

        Raises:
            ProtocolError: there is no such part; the agent's fault.
        """
        if task_of(wanted.digest):
            self.relay.wanted(agent, wanted)
            return
        shared = self._named.get(wanted.digest)
        if shared is None:  # its tasks have ended, and nothing else refers to it
            self.state.send(agent, messages.ShareGone(wanted.digest))
            return
        if wanted.start >= shared.share.size:
            raise ProtocolError(f"ShareWanted names byte {wanted.start} of {shared.share.size}")
        part = shared.content[wanted.start : wanted.start + PART_BYTES]
        self.state.send(agent, messages.SharePart(wanted.digest, wanted.start), [part])
