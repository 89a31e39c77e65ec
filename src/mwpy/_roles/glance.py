"""What a master shows of itself: its slaves, its tasks, its rate and its last failure, as text.

The figures are those that the core keeps anyway. They are read in the thread of the master algorithm while the I/O
thread changes them, so a figure may be one group of tasks behind another one.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from mwpy._roles.master_io import MasterIo
from mwpy._system import clock
from mwpy._values.phrases import counted

__all__ = ["Glance", "Standing"]


class Standing(Struct, frozen=True):
    """How a computation stands at one moment."""

    slaves: int
    waiting: int
    """How many tasks were submitted, have not ended, and do not run."""
    running: int
    done: int
    failed: int
    """How many tasks failed or are unrunnable."""
    cancelled: int
    """How many tasks were cancelled, or failed because of a task that they refer to."""
    rate: float
    """How many tasks ended in a second, in the last minute."""
    last_failure: str
    """How the last task failed; empty if none has failed."""

    def named(self) -> Iterator[tuple[str, int]]:
        """The numbers of tasks with their names."""
        for name in ("waiting", "running", "done", "failed", "cancelled"):
            yield name, getattr(self, name)


class Glance(Struct, eq=False):
    """Shows a master, also after its end and to threads that cannot use it."""

    _io: MasterIo
    closed: bool = False

    def figures(self) -> Standing:
        """The figures of this moment."""
        core = self._io.core
        jar, report = core.state.jar, core.inquiries.report
        failed, cancelled, ended = jar.failed, jar.cancelled, jar.ended
        running = sum(bool(held.spans) for held in list(jar.held.values()))
        waiting = max(0, self._io.submissions.total - ended - running)
        slaves, rate = (0, 0.0) if self.closed else (self._io.num_slaves, report.rate.at(clock.monotonic()))
        last = list(report.failures.newest.values())[-1:]
        done = max(0, ended - failed - cancelled)
        return Standing(slaves, waiting, running, done, failed, cancelled, rate, "".join(map(str, last)))

    def text(self) -> str:
        """Return the figures in one line."""
        figures = self.figures()
        tasks = ", ".join(f"{number} {name}" for name, number in figures.named())
        last = f"; last failure: {figures.last_failure}" if figures.last_failure else ""
        return f"<mwpy: {self._state(figures)}; tasks: {tasks}, {figures.rate:.3g} per second{last}>"

    def _state(self, figures: Standing) -> str:
        return "closed" if self.closed else counted(figures.slaves, "slave")
