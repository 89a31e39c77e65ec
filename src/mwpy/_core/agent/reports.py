"""Reports of tasks on their way to the master.

A task may report in a tight loop. The slave sends each report to its agent, and the agent keeps the newest one of each
slave. It sends this one when `REPORT_S` have passed since the last one and the master has read the last one, but only
while the slave still holds the task: nobody needs the report of a task that has ended. A report does not end the
silence of its slave, after which the agent reads results in its journal.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from mwpy._core.agent.child import Child
from mwpy._core.agent.events import Outgoing
from mwpy._core.agent.state import AgentState
from mwpy._values import messages
from mwpy._values.ids import Buffer

__all__ = ["REPORT_S", "Reports"]

REPORT_S = 1.0
"""Seconds between two reports of a slave that are sent to the master. A thousand slaves send the master at most a
thousand messages a second. The manual names this number."""


class Reports(Struct, eq=False):
    """Decides when reports are sent to the master."""

    _state: AgentState

    def takes(self, child: Child, message: messages.Message, received: Sequence[Buffer]) -> bool:
        """If the message is a report, keep it, unless the task has ended or is cancelled. Return whether it is one."""
        if not isinstance(message, messages.Reported) or message.slave != child.number:
            return False
        if child.holds(message.task, message.attempt):
            child.report = message, received
        return True

    def due(self, child: Child) -> float | None:
        """When to send the newest report of a slave, which there is; None if the master must answer first."""
        return None if child.report_unread else child.report_until

    def decide(self, child: Child, now: float) -> None:
        """Send the newest report of a slave if it is due, or drop it if its task has ended."""
        due = self.due(child)
        if child.report is None or due is None or now < due:
            return
        (message, received), child.report = child.report, None
        if child.holds(message.task, message.attempt):
            child.report_until, child.report_unread = now + REPORT_S, True
            self._state.actions.to_master.append(Outgoing(message, (), received))
