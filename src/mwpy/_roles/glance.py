"""What a master shows of itself: its slaves and its tasks, as text and as HTML.

The figures are those that the core keeps anyway. They are read in the thread of the master algorithm while the I/O
thread changes them, so a figure may be one group of tasks behind another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from attrs import define, frozen

from mwpy._roles.master_io import MasterIo
from mwpy._values.phrases import counted

__all__ = ["Figures", "Glance"]


@frozen
class Figures:
    """The figures of one moment."""

    slaves: int
    waiting: int
    """How many tasks were submitted, have not ended, and do not run."""
    running: int
    done: int
    failed: int
    """How many tasks failed or are unrunnable."""
    cancelled: int
    """How many tasks were cancelled, or failed because of a task that they refer to."""

    def named(self) -> Iterator[tuple[str, int]]:
        """The numbers of tasks with their names."""
        for name in ("waiting", "running", "done", "failed", "cancelled"):
            yield name, getattr(self, name)


@define(eq=False)
class Glance:
    """Shows a master, also after its end and to threads that cannot use it."""

    _io: MasterIo
    closed: bool = False

    def figures(self) -> Figures:
        """The figures of this moment."""
        jar = self._io.core.state.jar
        failed, cancelled, ended = jar.failed, jar.cancelled, jar.ended
        running = sum(bool(held.spans) for held in list(jar.held.values()))
        waiting = max(0, self._io.submissions.total - ended - running)
        slaves = 0 if self.closed else self._io.num_slaves
        return Figures(slaves, waiting, running, max(0, ended - failed - cancelled), failed, cancelled)

    def text(self) -> str:
        """Return the figures in one line."""
        figures = self.figures()
        tasks = ", ".join(f"{number} {name}" for name, number in figures.named())
        return f"<mwpy: {self._state(figures)}; tasks: {tasks}>"

    def html(self) -> str:
        """Return the figures as a table."""
        figures = self.figures()
        names = "".join(f"<th>{name}</th>" for name, _ in figures.named())
        numbers = "".join(f"<td>{number}</td>" for _, number in figures.named())
        return (
            f"<table><caption>mwpy: {escape(self._state(figures))}</caption>"
            f"<tr><th>tasks</th>{names}</tr><tr><td></td>{numbers}</tr></table>"
        )

    def _state(self, figures: Figures) -> str:
        return "closed" if self.closed else counted(figures.slaves, "slave")
