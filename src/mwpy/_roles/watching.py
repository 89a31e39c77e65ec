"""How a master algorithm sees and shows what its computation does: a part of `mwpy.Master`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mwpy._roles.access import Access
from mwpy._roles.meter import Figures
from mwpy._roles.progress import Progress, ShowProgress, progress_of
from mwpy._roles.summary import summary_of
from mwpy._values.reports import Report

if TYPE_CHECKING:
    from mwpy._roles.inbox import Inbox

__all__ = ["Watching"]


class Watching:
    """What shows the state of a computation. `mwpy.Master` adds everything else that a master algorithm drives."""

    def __init__(self, access: Access, inbox: Inbox) -> None:
        self._whole = access
        self._reports_to = inbox
        self._progress: Progress | None = None

    def progress(self, show: ShowProgress = True, *, total: int | None = None) -> None:
        """Show the progress of all tasks from now on, until the computation ends.

        It is shown while the master waits, as for `map`, or for a future of `executor`. `--mw-progress` calls this
        before the master algorithm starts.

        Args:
            show: as `progress` of `map`; False shows it no longer.
            total: how many tasks there will be; None counts those that were submitted and the items of open maps.

        Raises:
            UsageError: an argument has a wrong type; the caller's fault.

        Examples:
            >>> mw.progress(total=2000)                        # doctest: +SKIP
        """
        shown, io = progress_of(show, total, (), "tasks"), self._whole.io
        if self._progress is not None:
            io.progress.end(self._progress)
        self._progress = shown

        def figures() -> Figures:
            jar, expected = io.core.state.jar, total
            if expected is None and (unread := io.unread_items()) is not None:
                expected = io.submissions.total + unread + io.executors.queued()
            return Figures(jar.ended, expected, jar.failed, io.num_slaves, jar.reused.count)

        if shown is not None:
            shown.is_shared = not callable(show)
            io.progress.begin(shown, figures)

    def reports(self) -> list[Report]:
        """Return what running tasks have sent with `mwpy.report` since the last call: the newest report of each.

        `loop` does not return for a report, because there may be many: wait with `mw.loop(timeout=1)`. In a map, call
        this between the results.

        Returns:
            The reports, oldest first, each once. Reports of attempts that have ended are left out, and so are those of
            executors. If a task has a second attempt (`speculate`), both may report. With `slaves=0` there are none,
            because this thread runs the tasks.

        Raises:
            TooManyFailures: `max_failures` stops the whole computation.

        Examples:
            >>> ids = [mw.submit(train.task(rate), tag=rate) for rate in rates]  # doctest: +SKIP
            >>> left = len(ids)                                # doctest: +SKIP
            >>> while left:                                    # doctest: +SKIP
            ...     mw.loop(timeout=1)
            ...     mw.cancel(report.task_id for report in mw.reports() if report.values["loss"] > 100)
            ...     left -= len(mw.results())
        """
        from mwpy._roles.reports import fetch_reports  # only here, because it loads concurrent.futures

        return fetch_reports(self._reports_to)

    def summary(self) -> str:
        """Return what was done until now, as a text of several lines: for each algorithm on each host the tasks, their
        failures by kind, and the lost attempts by cause.

        `--mw-summary` writes it to standard error at the end.

        Examples:
            >>> print(mw.summary())                            # doctest: +SKIP
        """
        return summary_of(self._whole.io)
