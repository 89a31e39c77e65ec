"""The state that the parts of an overseer's core share."""

from __future__ import annotations

from msgspec import Struct, field

from mwpy._core.overseer.computation import WatchedComputation
from mwpy._core.overseer.events import OverseerActions

__all__ = ["OverseerSettings", "OverseerState"]


class OverseerSettings(Struct, frozen=True):
    """The options that the core needs; `cli/oversee.py` describes them."""

    max_jobs: int = 1000
    max_per_minute: int = 200
    patience_s: float = 60.0
    interval_s: float = 10.0
    job_limit_s: float | None = None
    """After how many seconds a batch system ends each job; None if this is not known."""


class OverseerState(Struct, eq=False):
    """The watched computations, and the actions that were decided."""

    settings: OverseerSettings
    computations: dict[str, WatchedComputation] = field(default_factory=dict)
    """The watched computations, by mark."""
    free_places: int | None = None
    """How many more jobs the batch system can take, by its last list; None if it has a queue."""
    actions: OverseerActions = field(default_factory=OverseerActions)

    def say(self, computation: WatchedComputation | None, text: str) -> None:
        """Request that a line is printed, about a computation or about all."""
        self.actions.say.append(f"{computation.name}: {text}" if computation else text)

    def active(self, now: float) -> list[WatchedComputation]:
        """The computations whose files are current, the most important ones first."""
        found = [each for each in self.computations.values() if each.file.is_current(now)]
        return sorted(found, key=lambda each: -each.priority)
