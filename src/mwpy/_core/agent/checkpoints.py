"""States of tasks on their way to the master.

A task may leave states in a tight loop, and each may be large. The slave sends each of them to its agent, so none is
lost with the slave. The agent keeps the newest one of each slave. It sends this one when `CHECKPOINT_S` have passed
since the last one and the master has read the last one. So a slow network cannot make the states that wait for it grow
without bound. An agent that leaves does not wait for the time. When the slave ends, its newest state is sent at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from msgspec import Struct

from mwpy._core.agent.child import Child
from mwpy._core.agent.events import Outgoing
from mwpy._core.agent.state import AgentState
from mwpy._values import messages
from mwpy._values.ids import Buffer

__all__ = ["CHECKPOINT_S", "Checkpoints"]

CHECKPOINT_S = 1.0
"""Seconds between two states of a slave that are sent to the master. If its agent is killed, at most this much work is
repeated. A thousand slaves send the master at most a thousand messages a second. The manual names this number."""


class Checkpoints(Struct, eq=False):
    """Decides when states are sent to the master."""

    _state: AgentState

    def left(self, child: Child, message: messages.Checkpoint, received: Sequence[Buffer]) -> None:
        """A task has left a state. Ignore it if the task is cancelled, or if its result was read in the journal."""
        if child.holds(message.task, message.attempt):
            child.unsent = message, received

    def due(self, child: Child, leaving: bool) -> float | None:
        """When to send the newest state of a slave, which there is; None if the master must answer first."""
        if child.unread:
            return None
        return -inf if leaving else child.unsent_until

    def decide(self, child: Child, leaving: bool, now: float) -> None:
        """Send the newest state of a slave, if there is one and it is due."""
        if child.unsent is None:
            return
        due = self.due(child, leaving)
        if due is not None and now >= due:
            child.unsent_until, child.unread = now + CHECKPOINT_S, True
            self._send(child)

    def ended(self, child: Child, group: messages.Results) -> None:
        """Tasks of a slave have ended. Nobody needs the state of one of them, unless the task failed: then it may be
        tried again, or replayed by the user."""
        if child.unsent is not None and not _is_held(child, child.unsent[0]):
            if group.failed:
                self._send(child)
            child.unsent = None

    def send_newest(self, child: Child) -> None:
        """Some of a slave's tasks go back to the master. Send the newest state before: it may be of one of them."""
        if child.unsent is not None:
            child.unread = True
            self._send(child)

    def slave_ended(self, child: Child) -> None:
        """A slave has ended, and still holds the task that it ran, unless this task is cancelled."""
        if child.unsent is not None and _is_held(child, child.unsent[0]):
            self._send(child)

    def _send(self, child: Child) -> None:
        assert child.unsent is not None, "there is no state to send"
        message, received = child.unsent
        child.unsent = None
        self._state.actions.to_master.append(Outgoing(message, (), received))


def _is_held(child: Child, state: messages.Checkpoint) -> bool:
    """Whether a slave holds the task of a state, in the attempt that left the state."""
    return child.holds(state.task, state.attempt)
