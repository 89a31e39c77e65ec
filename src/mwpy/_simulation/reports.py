"""Checks from outside which reports of tasks the algorithm gets."""

from __future__ import annotations

from msgspec import Struct, field

from mwpy._simulation.checkers import HistoryChecker
from mwpy._values.reports import Report

__all__ = ["ReportChecker"]


class ReportChecker(Struct, eq=False):
    """Follows the reports from their tasks to the algorithm."""

    checker: HistoryChecker
    given: int = 0
    """How many reports the algorithm got."""
    _last: dict[tuple[int, int], int] = field(default_factory=dict)
    """The number of the last report of each task and attempt that the algorithm got."""

    def gave(self, report: Report) -> None:
        """The algorithm gets a report: its attempt lives, it is wanted, and no newer one came before."""
        checker = self.checker
        task, attempt, sid = report.task_id, report.attempt, report.sid
        named = f"the report of task {task}, attempt {attempt}, at {sid}"
        assert checker.attempts.holds(sid, task, attempt), f"{named}: this attempt does not live"
        unwanted = task in checker.ended or task in checker.states.cancelled
        assert not unwanted, f"{named}: nobody wants its result"
        assert report.tag is checker.tags[task], f"{named} has the tag of another task"
        assert (report.values["task"], report.values["attempt"]) == (task, attempt), f"{named} has other values"
        number, before = report.values["number"], self._last.get((task, attempt), -1)
        assert number >= before, f"{named} has number {number}, and {before} came before"  # it may arrive twice
        self._last[task, attempt] = number
        self.given += 1
