"""Fetches what running tasks have reported."""

from __future__ import annotations

from mwpy._core.master.commands import TakeReports
from mwpy._roles.executor_future import Future
from mwpy._roles.inbox import Inbox
from mwpy._roles.map_tasks import Portion
from mwpy._values.reports import Report

__all__ = ["fetch_reports"]


def fetch_reports(inbox: Inbox) -> list[Report]:
    """Ask the core for the newest reports. `Master.reports` explains the result and the errors."""
    inbox.receive()
    inbox.ask(TakeReports())
    fetched, inbox.reports = inbox.reports, {}
    return [report for report in fetched.values() if _is_wanted(report)]


def _is_wanted(report: Report) -> bool:
    """Whether the algorithm has submitted the task of a report. The tag of an item becomes this item."""
    tag = report.tag
    if type(tag) is Portion:
        if tag.tasks.closed:
            return False
        report.tag = tag.item(report.task_id)
    return type(tag) is not Future
