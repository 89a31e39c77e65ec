"""Silence is a bug: when nothing can progress, the master says so, and again at growing intervals."""

from __future__ import annotations

from attrs import define

__all__ = ["SilenceWatch"]

FIRST_S = 5.0
"""Seconds that nothing can progress before the first word: half of the ten that were promised."""

GROWTH = 3.0
"""How much longer each interval is than the one before."""

LONGEST_S = 1800.0
"""Seconds between two words at the most."""


@define(eq=False)
class SilenceWatch:
    """Decides when to say why nothing progresses."""

    deadline: float | None = None
    """When to speak next if nothing changes, on the core's clock; None while all is well."""
    interval_s: float = FIRST_S
    since: float = 0.0

    def observe(self, stuck: bool, now: float) -> float | None:
        """Note whether anything can progress.

        Returns:
            Seconds that nothing could, if it is time to say so; else None.
        """
        if not stuck:
            self.deadline, self.interval_s = None, FIRST_S
            return None
        if self.deadline is None:
            self.since, self.deadline = now, now + self.interval_s
        if now < self.deadline:
            return None
        self.interval_s = min(self.interval_s * GROWTH, LONGEST_S)
        self.deadline = now + self.interval_s
        return now - self.since
