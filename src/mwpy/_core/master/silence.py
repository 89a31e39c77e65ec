"""Silence is a bug: when nothing can progress, the master says so, and again at growing intervals.

What counts is for how long nothing could, since something last came of it. That a slave tries a task and fails at once
is no progress; but while it works nothing is said, and once it has worked for some seconds, it was one. A reason that
was not named yet is named in time.
"""

from __future__ import annotations

from enum import Enum

from attrs import define, field

__all__ = ["SilenceWatch", "Waiting"]

FIRST_S = 5.0
"""Seconds that nothing can progress before the first word: half of the ten that were promised."""

GROWTH = 3.0
"""How much longer each interval is than the one before."""

LONGEST_S = 1800.0
"""Seconds between two words at the most."""

ROUNDING_S = 1e-6
"""A sum of seconds that is short by so little is due."""


class Waiting(Enum):
    """Whether the master algorithm waits in `mw.loop()`, and for how long."""

    NOT = "not"
    FOR_A_WHILE = "for a while"
    FOR_EVER = "for ever"


@define(eq=False)
class SilenceWatch:
    """Decides when to say why nothing progresses."""

    deadline: float | None = None
    """When to observe again if nothing changes, on the core's clock; None if there is no need."""
    stuck_s: float = 0.0
    """For how long nothing could progress, pauses not counted."""
    _due_s: float = FIRST_S
    _interval_s: float = FIRST_S
    _seen: float | None = None
    """When it was last seen that nothing can; None in a pause."""
    _pause: float | None = None
    """When the pause began."""
    _reasons: set[str] = field(factory=set)

    def reset(self, deadline: float | None) -> None:
        """Something progressed, or nothing is waited for; observe again at the deadline at the latest."""
        self.deadline = deadline
        self._seen = self._pause = None
        self.stuck_s = 0.0
        self._due_s = self._interval_s = FIRST_S
        self._reasons.clear()

    def pause(self, now: float) -> None:
        """A slave is at work, and may come to something."""
        if self._pause is None:
            self._count(now)
            self.deadline, self._seen, self._pause = None, None, now

    def observe(self, reason: str, now: float) -> float | None:
        """Nothing can progress at present, for a reason.

        Returns:
            Seconds that nothing could, if it is time to say so; else None.
        """
        if self._pause is not None and now >= self._pause + FIRST_S:
            self.reset(None)
        self._count(now)
        self._seen, self._pause = now, None
        if reason not in self._reasons:
            self._reasons.add(reason)
            self._due_s = min(self._due_s, self.stuck_s + FIRST_S)
        told = None
        if self.stuck_s >= self._due_s - ROUNDING_S:
            told = self.stuck_s
            self._interval_s = min(self._interval_s * GROWTH, LONGEST_S)
            self._due_s = self.stuck_s + self._interval_s
        self.deadline = now + self._due_s - self.stuck_s
        return told

    def _count(self, now: float) -> None:
        if self._seen is not None:
            self.stuck_s += now - self._seen
