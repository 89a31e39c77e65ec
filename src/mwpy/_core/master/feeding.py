"""Whether slaves are sent tasks at all.

Results wait in memory until the algorithm fetches them. If too many wait, no more tasks are sent. This must not block
an algorithm that waits: it waits only when it has fetched what it can fetch, and what it waits for may be a task that
was not sent yet. An example is a map in order, which keeps the results of later items. So tasks are sent if the
algorithm waits and no slave has a task.
"""

from __future__ import annotations

from math import inf

from mwpy._core.master.commands import Waiting
from mwpy._core.master.state import MasterState
from mwpy._values.phrases import amount

__all__ = ["Feeding"]


class Feeding:
    """Stops the feeding of slaves while too many results wait, and some time before the master must end."""

    def __init__(self, state: MasterState) -> None:
        self.state = state
        self.unfetched = 0
        """About how many bytes of results the algorithm has not fetched."""
        self.holds_back = False
        """Whether tasks are held back until the algorithm fetches results."""
        self.out_of_time = False
        """Whether the time for tasks is over, so that the algorithm can save what it has."""
        self.deadline = state.settings.feeds_until
        """When to decide even if nothing happens, on the core's clock; None if there is no need."""

    def end_soon(self) -> None:
        """Send no more tasks from now on, if the end of the master is known."""
        if self.deadline is not None:
            self.deadline = -inf

    def decide(self, waiting: Waiting, now: float) -> bool:
        """Decide whether tasks may be sent at this time.

        Args:
            waiting: whether the master algorithm waits.
        """
        jar = self.state.jar
        is_much = self.unfetched > self.state.settings.max_waiting_bytes
        may_fetch = waiting is Waiting.NOT and self.unfetched > 0  # answers that wait for a repetition need tasks
        self.holds_back = is_much and (may_fetch or jar.num_allocated > 0)
        if self.deadline is not None and now >= self.deadline:
            self.out_of_time, self.deadline = True, None
            self.state.actions.ends_at = self.state.settings.ends_at
            self.state.notice(self.why_not)
        return not (self.holds_back or self.out_of_time)

    @property
    def why_not(self) -> str:
        """Why no tasks are sent; empty if they are sent."""
        if self.out_of_time:
            return "the time of the master is nearly over, so no more tasks are sent"
        return self.reason if self.holds_back else ""

    @property
    def reason(self) -> str:
        """Why tasks are held back, and what to do."""
        waiting_bytes = self.unfetched
        return (
            f"results of about {amount(waiting_bytes)} wait for the master algorithm, so no more tasks are sent. "
            f"Fetch them with mw.results() or from the maps that are open, or raise --mw-max-waiting-results"
        )
