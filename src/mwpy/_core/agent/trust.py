"""Whether the agent trusts what it reads from a slave.

A slave runs the user's code, which may write into any memory and any file descriptor of its process. So the agent does
not rely on the numbers in the memory that both share, or on the messages of the slave. A slave that shows nonsense is
killed and replaced, and its end has the reason. From then on, nothing of it counts.
"""

from __future__ import annotations

from msgspec import Struct

from mwpy._core.agent.child import Child
from mwpy._core.agent.state import AgentState
from mwpy._values import records
from mwpy._values.causes import Cause

__all__ = ["Trust"]

OVERWROTE = "it overwrote the memory that it shares with its agent"
UNREADABLE = "what it sent cannot be read"


class Trust(Struct, eq=False):
    """Decides which slaves are not trusted any more."""

    _state: AgentState

    def broken_stream(self, child: Child, reason: str) -> None:
        """A slave sent bytes that are not a message, or a message that it must not send."""
        self._condemn(child, f"{UNREADABLE}: {reason}")

    def broken_memory(self, child: Child, reason: str) -> None:
        """The memory that a slave shares with the agent contains nonsense."""
        self._condemn(child, f"{OVERWROTE}: {reason}")

    def believes(self, child: Child, started: int) -> bool:
        """Whether a slave may have started the task at this position last. If not, the slave is killed."""
        if child.believes(started):
            return True
        self.broken_memory(child, f"it says that it runs task {started} of {child.passed_on}")
        return False

    def last_started(self, child: Child, started: int) -> int:
        """Position of the task that an ended slave started last. If it says nonsense, each task may have run."""
        if child.killed_at is not None:
            return child.killed_at
        return started if self.believes(child, started) else child.passed_on + 1

    def _condemn(self, child: Child, reason: str) -> None:
        if child.condemned or child.killed_because:
            return
        child.condemned = reason
        end = "has ended" if child.ended else "is killed"
        self._state.record(records.Notice(f"slave {child.number} {end}: {reason}"))
        if not child.ended:
            child.kill(f"because {reason}", Cause.CRASH)
            self._state.actions.kill.append(child.number)
