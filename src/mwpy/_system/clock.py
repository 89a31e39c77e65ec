"""Clocks to measure with, the clock that names moments, and a pause."""

from __future__ import annotations

import time

__all__ = ["monotonic", "perf_counter", "sleep", "wall"]


monotonic = time.monotonic
"""Seconds on a clock that is never set back."""

perf_counter = time.perf_counter
"""Seconds on the finest clock that is never set back: for short times within one process."""

wall = time.time
"""Seconds since 1970, as other machines see them."""

sleep = time.sleep
"""Do nothing for so many seconds; for moments only, as nothing else is heard meanwhile."""
