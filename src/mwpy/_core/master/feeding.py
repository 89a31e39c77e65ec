"""Whether slaves are sent tasks at all."""

from __future__ import annotations

from attrs import define

from mwpy._core.master.state import MasterState

__all__ = ["Feeding"]


@define(eq=False)
class Feeding:
    """Stops the feeding of slaves some time before the master must end, so that the algorithm can save what it has."""

    state: MasterState
    out_of_time: bool = False
    """Whether the time for tasks is over."""

    def is_allowed(self, now: float) -> bool:
        """Whether tasks may be sent at this time."""
        until = self.state.settings.feeds_until
        if until is not None and now >= until and not self.out_of_time:
            self.out_of_time = True
            self.state.actions.ends_at = self.state.settings.ends_at
            self.state.notice("the time of the master is nearly over, so no more tasks are sent")
        return not self.out_of_time

    @property
    def deadline(self) -> float | None:
        """When to decide even if nothing happens, on the core's clock; None if there is no need."""
        return None if self.out_of_time else self.state.settings.feeds_until
