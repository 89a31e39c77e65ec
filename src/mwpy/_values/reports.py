"""Reports: a task sends interim values to the master while it runs.

A report is useful only while its task runs. So nothing waits for it, no record is made of it, and a newer one replaces
it.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from mwpy._values.checkpoints import running_task
from mwpy._values.ids import Buffer, SlaveId, TaskId
from mwpy._values.messagepack import decode
from mwpy._values.task import loaded

__all__ = ["Report", "report", "size_of"]


def report(**values: Any) -> None:
    """Send interim values of the task that calls this to the master, which gets them from `mw.reports()`.

    The master algorithm can then cancel the task, or show how far it is. The values are pickled at once, so they may
    change afterwards. The agent sends the newest report to the master at most once a second, and only while the task
    runs. Nothing waits for the master: a call takes less than 0.1 ms.

    Args:
        values: any objects that can be pickled, by name; together at most 64 KiB.

    Raises:
        UsageError: no task runs in this thread, or the values are too large; the caller's fault.
        ArgumentNotPicklable: a value cannot be pickled, and the message names it; the caller's fault.

    Examples:
        >>> def train(rate):                                   # doctest: +SKIP
        ...     for epoch in range(100):
        ...         loss = step(rate)
        ...         mwpy.report(epoch=epoch, loss=loss)
        ...     return loss
    """
    running_task("mwpy.report()").report(values)


class Report(Struct, eq=False):
    """Interim values of a task that runs. `mw.reports()` returns them.

    Examples:
        >>> for report in mw.reports():                        # doctest: +SKIP
        ...     print(report.task_id, report.values["loss"])
    """

    task_id: TaskId
    tag: Any
    """The object given at submission, unchanged; the tag of an item of a map is this item."""
    attempt: int
    """Which attempt of the task reports this."""
    sid: SlaveId
    """The slave that runs the task."""
    host: str
    """The name of the machine of this slave."""
    seconds: float
    """How long the attempt had run when it called `mwpy.report`, in seconds."""
    _entry: Buffer
    """The encoded values; empty if they were read."""
    _values: dict[str, Any] | None = None

    @property
    def values(self) -> dict[str, Any]:
        """The values by name, as the task gave them. They are unpickled when they are first read.

        Raises:
            Exception: a value cannot be unpickled here, for example because a module is not installed.
        """
        if self._values is None:
            try:
                self._values = loaded(decode(self._entry))
            except Exception as error:
                error.add_note(f"(mwpy.report: the values that task {self.task_id} reported cannot be unpickled here)")
                raise
            except (SystemExit, GeneratorExit) as error:  # a pickle can call anything, also sys.exit
                kind = type(error).__name__
                raise ValueError(f"unpickling the values that task {self.task_id} reported raised {kind}") from error
            self._entry = b""
        return self._values

    def __repr__(self) -> str:
        return (
            f"<Report of task {self.task_id}, attempt {self.attempt}, on {self.sid} after {self.seconds:.1f} s, "
            f"tag={self.tag!r}>"
        )


def size_of(report: Report) -> int:
    """Return how many bytes the values of a report take, if they were not read yet."""
    return len(report._entry)
