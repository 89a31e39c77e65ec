"""Pauses that grow: between messages that repeat, and before another attempt at something that failed."""

from __future__ import annotations

import math

from attrs import define

SAY_AGAIN_S = 600.0
"""While a condition lasts, a message about it is repeated after pauses of at most this many seconds. The manual names
this number."""

SAY_GROWTH = 3.0
"""How many times as long as the one before such a pause is."""


@define(eq=False, repr=False)
class Pause:
    """A pause after something that goes on or went wrong. Each pause in a row is longer than the one before."""

    first_s: float
    longest_s: float = math.inf
    growth: float = 2.0
    """How many times as long as the one before a pause is."""
    until: float = -math.inf
    """When it ends, or has ended; minus infinity if there was none since all was well."""
    _last_s: float = 0.0

    def begin(self, now: float) -> float:
        """Begin the next pause, and return its length in seconds."""
        self._last_s = min(max(self.growth * self._last_s, self.first_s), self.longest_s)
        self.until = now + self._last_s
        return self._last_s

    def reset(self) -> None:
        """All is well again."""
        self.until, self._last_s = -math.inf, 0.0


def between_messages(first_s: float) -> Pause:
    """Return the pauses between messages about a condition that lasts.

    Args:
        first_s: the length of the first one, in seconds.
    """
    return Pause(first_s, max(first_s, SAY_AGAIN_S), SAY_GROWTH)
