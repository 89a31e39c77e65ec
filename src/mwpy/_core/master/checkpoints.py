"""Keeps the states that tasks leave for their next attempts.

A state counts only if its slave holds the task in this attempt, as with results. It replaces an earlier state of the
task, and is kept until the task ends. The master sends it with the arguments of the next attempt, and never reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from mwpy._core.master.members import ConnectedSlave
from mwpy._core.master.state import MasterState
from mwpy._values import messages, records
from mwpy._values.ids import Buffer
from mwpy._values.phrases import amount
from mwpy._values.task import TaskState

__all__ = ["Checkpoints"]

LARGE_BYTES = 1 << 30
"""When all states together take more bytes, a notice says so. The manual names this number."""

_ADVICE = (
    "the states that tasks left with mwpy.checkpoint take more than {} of the master's memory: leave less, or write "
    "the states to files and leave their names"
)


class Checkpoints(Struct, eq=False):
    """Keeps the newest state of each task."""

    state: MasterState

    def receive(self, slave: ConnectedSlave, message: messages.Checkpoint, frames: Sequence[Buffer]) -> None:
        """Keep a state, unless its task is not at this slave in this attempt, or must not be sent again."""
        self.state.send(slave.agent, messages.CheckpointRead(slave.number))
        span = next((span for span in slave.held.spans if message.task in span.ids), None)
        if span is None or span.attempt != message.attempt or span.state is not TaskState.ALLOCATED:
            return
        task = span.part(message.task, 1, message.attempt)
        self.state.record(records.TaskCheckpointed(slave.sid, task, frames))
        slave.last_left = self.state.now
        if self.state.jar.left.bytes > LARGE_BYTES:
            self.state.notice(_ADVICE.format(amount(LARGE_BYTES)), key=_ADVICE)
