"""The state that all parts of the agent's core share: settings, slaves, and the actions that are not taken yet."""

from __future__ import annotations

from msgspec import Struct, field

from mwpy._core.agent.child import Child, ChildEvent, ChildState
from mwpy._core.agent.events import AgentActions, AgentSettings, Outgoing
from mwpy._values import messages, records

__all__ = ["AgentState"]

UNBOUNDED = 1 << 30
"""A recall of this many tasks takes back all that are not started."""

_LIVING = (ChildState.STARTING, ChildState.READY, ChildState.STOPPING)


class AgentState(Struct, eq=False):
    """The state that the parts of an agent's core share."""

    settings: AgentSettings
    children: dict[int, Child] = field(default_factory=dict)
    """The slave processes, by number."""
    actions: AgentActions = field(default_factory=AgentActions)
    template_bytes: int = 0
    """How much memory the template has, which slaves share."""

    def living(self) -> list[Child]:
        """The slaves that have a process and were not killed."""
        return [child for child in self.children.values() if child.state in _LIVING]

    def stop(self, child: Child, finished: bool) -> None:
        """Let a slave finish its running task and end, and take back its other tasks."""
        if child.held:
            self.actions.recall.append((child.number, UNBOUNDED))
        child.change(ChildEvent.STOP)
        self.to_slave(child, messages.Shutdown(finished, 0.0))

    def record(self, record: records.Record) -> None:
        """State a fact."""
        self.actions.records.append(record)

    def to_slave(self, child: Child, message: messages.Message) -> None:
        """Send a message of the agent's own to a slave."""
        self.actions.to_slaves.append((child.number, Outgoing(message)))

    def to_master(self, message: messages.Message) -> None:
        """Send a message of the agent's own to the master."""
        self.actions.to_master.append(Outgoing(message))

    def check(self) -> None:
        """Compare the slaves with the settings."""
        assert len(self.children) <= self.settings.hello.slaves, "more slaves than the settings allow"
        for number, child in self.children.items():
            assert child.number == number, f"slave {child.number} is stored as {number}"
            assert child.state is not ChildState.GONE, f"slave {number} is gone"
            assert child.num_held <= child.passed_on, f"slave {number} holds more tasks than it got"
