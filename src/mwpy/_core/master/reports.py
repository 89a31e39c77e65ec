"""Keeps what running tasks report, until the algorithm asks for it.

A report counts only while its slave holds the task in this attempt: this is looked at when it arrives, and again when
the algorithm asks, after everything else was decided. A slave runs one task at a time, so the newest report of each
slave is kept. No record is made of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from mwpy._core.master.commands import TakeReports
from mwpy._core.master.members import ConnectedSlave
from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterState
from mwpy._values import messages
from mwpy._values.ids import Buffer, SlaveId, TaskId
from mwpy._values.phrases import amount
from mwpy._values.reports import Report, size_of
from mwpy._values.task import TaskState

__all__ = ["MOST_BYTES", "OVERHEAD_BYTES", "Reports"]

MOST_BYTES = 64 << 20
"""About how many bytes the reports take that are kept. The manual names this number."""

OVERHEAD_BYTES = 500
"""About how many bytes a report takes beside its values."""

_ADVICE = (
    "the reports of tasks that mw.reports() has not returned take more than {}, so the oldest are dropped: call "
    "mw.reports() more often, or let the tasks report less"
)


class Reports(Struct, eq=False):
    """Keeps the newest report of each slave."""

    state: MasterState
    bytes: int = 0
    """About how many bytes they take."""
    _unread: dict[SlaveId, Report] = field(default_factory=dict)
    """The reports that the algorithm did not get, the oldest first."""
    asking: TakeReports | None = None
    """The command of an algorithm that waits for the reports."""

    def receive(self, slave: ConnectedSlave, message: messages.Reported, frames: Sequence[Buffer]) -> None:
        """Keep a report, unless its task is not at this slave in this attempt, or is cancelled."""
        self.state.send(slave.agent, messages.ReportRead(slave.number))
        span = _running(slave, message.task, message.attempt)
        if span is None:
            return
        if slave.sid in self._unread:
            self._remove(slave.sid)
        task, tag = TaskId(message.task), span.tags[message.task - span.first]
        where = slave.sid, slave.agent.host
        report = Report(task, tag, message.attempt, *where, message.seconds, bytes(frames[0]))
        self._unread[slave.sid] = report
        self.bytes += size_of(report) + OVERHEAD_BYTES
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Drop the oldest reports if all of them take too much, or if their tasks have ended. The newest one stays."""
        oldest = next(iter(self._unread.values()))
        while not (counts := self._counts(oldest)) or self.bytes > MOST_BYTES:
            self._remove(oldest.sid)
            if counts:
                self.state.notice(_ADVICE.format(amount(MOST_BYTES)), key=_ADVICE)
            oldest = next(iter(self._unread.values()))

    def decide(self) -> None:
        """If the algorithm waits for the reports, give out those of the tasks that still run."""
        if self.asking is None:
            return
        self.state.actions.reports += filter(self._counts, self._unread.values())
        self.state.actions.cancelled.append((self.asking, []))
        self.asking = None
        self._unread.clear()
        self.bytes = 0

    def _counts(self, report: Report) -> bool:
        """Whether the task of a report is still at its slave, in the same attempt."""
        slave = self.state.members.slaves.get(report.sid)
        return slave is not None and _running(slave, report.task_id, report.attempt) is not None

    def _remove(self, sid: SlaveId) -> None:
        self.bytes -= size_of(self._unread.pop(sid)) + OVERHEAD_BYTES

    def check(self) -> None:
        """Recompute the size."""
        size = sum(size_of(report) + OVERHEAD_BYTES for report in self._unread.values())
        assert self.bytes == size <= MOST_BYTES, "too many reports are kept, or they were miscounted"


def _running(slave: ConnectedSlave, task: int, attempt: int) -> Span | None:
    """The span with a task that a slave may run in this attempt; None if it does not, or if nobody wants the result."""
    span = next((span for span in slave.held.spans if task in span.ids), None)
    wanted = span is not None and span.attempt == attempt and span.state is TaskState.ALLOCATED
    return span if wanted else None
