"""Whether the agent trusts what it reads from a slave.

A slave runs the user's code, which may write into any memory and any file descriptor of its process. So the agent does
not rely on the numbers in the memory that both share, or on the messages of the slave. A slave that shows nonsense is
killed and replaced, and its end has the reason. From then on, nothing of it counts.

A slave has started the task after each one that it has finished. So if the results of finished tasks are neither sent
nor in the journal, and this is still so after `MISSING_S` of silence, they are lost.

If a task writes the beginning of a message, the later messages of its slave seem to be the rest of it. None of this is
nonsense, but the agent hears nothing any more. A slave that sends a message does nothing else meanwhile. So if nothing
arrives for `UNFINISHED_S`, the slave has not begun this message.
"""

from __future__ import annotations

from msgspec import Struct

from mwpy._core.agent.child import Child
from mwpy._core.agent.late import num_missing
from mwpy._core.agent.state import AgentState
from mwpy._values import records
from mwpy._values.causes import Cause

__all__ = ["Trust"]

OVERWROTE = "it overwrote the memory that it shares with its agent"
UNREADABLE = "what it sent cannot be read"

MISSING_S = 2.5
"""Seconds after which missing results of a silent slave are lost. A slave sends results within milliseconds."""

UNFINISHED_S = 4.0
"""Seconds without another byte after which the agent gives up a message that has begun. The next check finds it."""


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

    def check(self, child: Child, unsent: int | None, unfinished: int | None, now: float) -> None:
        """Check a silent slave; see `MemoryRead` for the two numbers."""
        if unsent is not None:
            self._check_results(child, unsent, now)
        self._check_stream(child, unfinished, now)

    def resumed(self) -> None:
        """The agent was stopped, most likely with its slaves: they get more time to complete their messages."""
        for child in self._state.children.values():
            child.unfinished = None

    def _check_results(self, child: Child, unsent: int, now: float) -> None:
        if num_missing(child, child.started) <= unsent:
            child.missing_from = None
        elif child.missing_from is None:
            child.missing_from = now
        elif now >= child.missing_from + MISSING_S:
            self.broken_memory(child, "the results of tasks that it has finished are lost")

    def _check_stream(self, child: Child, unfinished: int | None, now: float) -> None:
        last = child.unfinished
        if unfinished is None:
            child.unfinished = None
        elif last is None or last[0] != unfinished:
            child.unfinished = unfinished, now
        elif now >= last[1] + UNFINISHED_S:
            self.broken_stream(child, "the beginning of a message, and never its rest")

    def _condemn(self, child: Child, reason: str) -> None:
        if child.condemned or child.killed_because:
            return
        child.condemned = reason
        end = "has ended" if child.ended else "is killed"
        self._state.record(records.Notice(f"slave {child.number} {end}: {reason}"))
        if not child.ended:
            child.kill(f"because {reason}", Cause.CRASH)
            self._state.actions.kill.append(child.number)
