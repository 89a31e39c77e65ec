"""When a slave needs the agent's attention: it is silent, its stream ended, or its process ended.

*Silence.* A slave sends results in groups. Its journal holds the results that it has not sent. A long task must not
delay the results of the tasks before it. So the agent reads the journal of a slave that holds tasks and has sent
nothing for `SILENT_S`, or `LATE_S` (see `late.py`). If the master fixes the size of groups, only the slave sends
results.

*End of the stream.* The slave can run no more tasks. It may still run its tear-down in Python, for at most `EXIT_S`.
Then it is killed with a reason. Otherwise, SIGKILL would seem to come from the kernel.

*Limits.* The agent looks when a task of the slave may be over its limit of time, and measures the memory of a slave
whose tasks have such a limit (see `enforcement.py`).

*Cancelled task.* A slave that runs a cancelled task gets some time to finish it (see `traffic`). Then the agent looks
which task the slave runs.

*End of the process.* Batch systems end a job by killing its processes in any order. The agent waits `KILLED_TOO_S`
before it reports a slave that SIGKILL has ended. If the agent is killed before that, the task of this slave is not
charged with a death. The agent does not wait after it has killed the slave itself.
"""

from __future__ import annotations

from msgspec import Struct

from mwpy._core.agent.child import Child, ChildState
from mwpy._core.agent.state import AgentState
from mwpy._core.moments import known
from mwpy._values import messages

__all__ = ["AGAIN_S", "EXIT_S", "KILLED_TOO_S", "LATE_S", "SILENT_S", "Watch"]

SILENT_S = 0.03
"""The journal of a busy slave is read after this many seconds of silence. A result waits for at most this time and the
time for which a slave gathers results."""

LATE_S = 0.04
"""The same while it runs tasks of portions. It sends their results itself before that, unless a task takes long."""

AGAIN_S = 0.01
"""Seconds from this look to the next one, which shows whether it is still at the same task. By then, a result has
waited for as long as it may."""

EXIT_S = 5.0
"""Seconds that a slave gets between the end of its stream and its exit, for its tear-down in Python."""

STILL_THERE = (
    f"because it was still there {EXIT_S:g} s after its connection to the agent had ended: its tear-down takes long, "
    f"or a task closed the connection"
)
"""Why a slave is killed that does not end."""

KILLED_TOO_S = 0.25
"""Seconds between a slave's end by SIGKILL and its report: the agent itself may be killed next."""


class Watch(Struct, eq=False):
    """Handles slaves that are silent, closed their stream, or ended."""

    _state: AgentState
    reads_journals: bool = True
    """Whether journals are read; False if the master fixes the size of groups of results."""

    def active(self, child: Child, now: float) -> None:
        """A slave sent something, or got tasks while it had none: its silence begins now."""
        child.read_journal_at = now + _patience_s(child) if self.reads_journals and child.held else None

    def heard(self, child: Child, message: messages.Message, now: float) -> None:
        """A slave sent a message. Before a state, it sends the results in its journal, but those of a stretch wait."""
        if not (type(message) is messages.Checkpoint and child.held and child.held[0].is_portion):
            self.active(child, now)

    def journal_emptied(self, child: Child, now: float) -> None:
        """The slave emptied its journal while the agent read it: read it again."""
        child.read_journal_at = now if child.held else None

    def look_again(self, child: Child, now: float) -> None:
        """Results wait in the slave, outside of its journal: look once more where it is."""
        child.read_journal_at = now + AGAIN_S if self.reads_journals else None

    def stream_ended(self, child: Child, now: float) -> None:
        """The slave closed its stream. If it is to be killed anyway, that is not put off."""
        child.kill_at = min(known((child.kill_at, now + EXIT_S)))

    def exit_seen(self, child: Child, by_sigkill: bool, leaving: bool, now: float) -> None:
        """The process of a slave ended."""
        child.ended = True
        child.look_at = child.measure_at = None
        unexpected = by_sigkill and not leaving and child.state is not ChildState.KILLED
        child.collect_at = now + KILLED_TOO_S if unexpected else now

    def decide(self, child: Child, now: float) -> None:
        """Do what is due for a slave."""
        actions = self._state.actions
        if child.read_journal_at is not None and now >= child.read_journal_at:
            child.read_journal_at = None
            if child.held:
                actions.read_journal.append(child.number)
        if child.look_at is not None and now >= child.look_at:
            child.look_at = None
            actions.check_memory.append(child.number)
        if child.measure_at is not None and now >= child.measure_at:
            child.measure_at = None
            limits = [limit for limit in child.memory_limits if limit is not None]
            if limits:
                actions.measure.append((child.number, 0 if child.exactly else min(limits)))
        if child.kill_at is not None and now >= child.kill_at:
            child.kill_at = None
            if not child.killed_because:
                child.overdue = child.state is ChildState.STARTING
                child.kill(STILL_THERE, child.loss)
            actions.kill.append(child.number)
        if child.spared_until is not None and now >= child.spared_until:
            child.spared_until = None
            actions.recall.append((child.number, None))
        if child.collect_at is not None and now >= child.collect_at:
            child.collect_at = child.kill_at = None
            actions.collect.append(child.number)


def _patience_s(child: Child) -> float:
    """The silence after which the agent looks for the results of a slave that holds tasks, in seconds."""
    return LATE_S if child.held[0].is_portion else SILENT_S
