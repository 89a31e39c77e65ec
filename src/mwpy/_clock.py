"""The two clocks: one that measures, one that names moments."""

from __future__ import annotations

import time

__all__ = ["monotonic", "wall"]


def monotonic() -> float:
    """Seconds on a clock that is never set back."""
    return time.monotonic()


def wall() -> float:
    """Seconds since 1970, as other machines see them."""
    return time.time()
