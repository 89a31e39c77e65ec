"""Cancels what a cell of a notebook has submitted, if the cell is interrupted.

IPython says when a cell begins and how it ends. mwpy does not import IPython: where nobody has imported it, there are
no cells, and an interrupt ends maps only.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from typing import Any, Protocol

from msgspec import Struct

from mwpy._core.master.state import CancelTasks, Running
from mwpy._roles.inbox import Access, HeldResults, Inbox

BEGIN, END = "pre_run_cell", "post_run_cell"
"""The events of IPython."""


class UsedInCells(Protocol):
    """Something that cells use. IPython runs cells in the main thread, and calls these methods there."""

    def cell_begins(self) -> None: ...
    def cell_interrupted(self) -> None: ...


def follow_cells(used: UsedInCells) -> None:
    """Tell an object about the cells that begin and are interrupted, as long as something else refers to it."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None:
        return
    reference, events = weakref.ref(used), shell.events

    def begin(_: object) -> None:
        if (found := reference()) is not None:
            found.cell_begins()

    def end(result: object) -> None:
        if (found := reference()) is None:
            events.unregister(BEGIN, begin)
            events.unregister(END, end)
        elif _is_interrupted(result):
            found.cell_interrupted()

    events.register(BEGIN, begin)
    events.register(END, end)


def _is_interrupted(result: Any) -> bool:
    """Whether a cell was interrupted. A cell that awaits is cancelled, and may have no result."""
    asyncio = sys.modules.get("asyncio")
    kinds = KeyboardInterrupt if asyncio is None else (KeyboardInterrupt, asyncio.CancelledError)
    return result is None or isinstance(result.error_in_exec, kinds)


def _without(others: Iterable[int], first: int, last: int) -> list[tuple[int, int]]:
    """The ids from the first to the last without some others, as ranges with their counts."""
    ranges = []
    for number in sorted(others):
        if first <= number <= last:
            ranges.append((first, number - first))
            first = number + 1
    return [(start, count) for start, count in [*ranges, (first, last + 1 - first)] if count > 0]


class CellTasks(Struct, eq=False, weakref=True):
    """The tasks that the cell which runs has submitted to one master."""

    access: Access
    inbox: Inbox
    held: HeldResults
    _before: int = 0
    """The last task that was submitted before the cell began."""

    def cell_begins(self) -> None:
        """Remember which tasks are of earlier cells."""
        if self.access.usable:
            self._before = self.access.io.submissions.total

    def cell_interrupted(self) -> None:
        """Kill the tasks of this cell that have not ended. Only a map that goes on learns of them."""
        if not self.access.usable:
            return
        self.inbox.end_abandoned()
        io = self.access.io
        with io.submitting:
            first, last, of_executors = self._before + 1, io.submissions.total, io.executors.open_ids()
        if ranges := _without(of_executors, first, last):
            killed = {*self.inbox.ask(CancelTasks(ranges, Running.KILL))}
            dropped = [result for result in self.inbox.results if result.task_id in killed]
            self.inbox.results[:] = [result for result in self.inbox.results if result.task_id not in killed]
            self.held.fetched(dropped)
