"""The two clocks, one that measures and one that names moments, and a pause."""

from __future__ import annotations

import time

__all__ = ["monotonic", "sleep", "wall"]


def monotonic() -> float:
    """Seconds on a clock that is never set back."""
    return time.monotonic()


def wall() -> float:
    """Seconds since 1970, as other machines see them."""
    return time.time()


def sleep(seconds: float) -> None:
    """Do nothing for a while; for moments only, as nothing else is heard meanwhile."""
    time.sleep(seconds)
