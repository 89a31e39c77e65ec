"""The clocks of this machine: one that measures durations, one for dates, and a pause.

Code that also runs in simulated time receives a `Clock`. This module is a `Clock`, too.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A real or simulated clock."""

    def monotonic(self) -> float:
        """Return seconds on a clock that is never set back."""

    def wall(self) -> float:
        """Return seconds since 1970."""

    def sleep(self, seconds: float, /) -> None:
        """Do nothing for this many seconds."""


monotonic = time.monotonic
"""Seconds on a clock that is never set back; only comparable on this machine."""

wall = time.time
"""Seconds since 1970: comparable with the clocks of other machines."""


def date(wall_s: float, timespec: str = "seconds") -> str:
    """Write a time, in seconds since 1970, as a date in UTC, like 2026-11-21T01:02:03Z."""
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


sleep = time.sleep
"""Do nothing for this many seconds. Use it for short moments only, because the thread handles no event meanwhile."""
