"""The figures that a master publishes."""

from __future__ import annotations

from attrs import field, frozen

__all__ = ["Counts"]


@frozen
class Counts:
    """Figures for the algorithm, the resource file and inquirers."""

    slaves_wanted: int
    slaves_connected: int
    slaves_needed: int
    shortest_task_s: float = 0.0
    """How many seconds each pending task needs at least; 0 if this is not known of all of them."""
    agents: int = 0
    """How many agents are connected."""
    jobs: dict[str, int] = field(factory=dict)
    """The jobs of a batch system that are connected, and how many slaves of each are in use."""
    excluded: dict[str, list[str]] = field(factory=dict)
    """The hosts that get no more work, and their last jobs."""
