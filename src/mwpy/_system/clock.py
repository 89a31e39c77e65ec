"""The two clocks, one that measures and one that names moments, and a pause."""

from __future__ import annotations

import time

__all__ = ["monotonic", "sleep", "wall"]


monotonic = time.monotonic
"""Seconds on a clock that is never set back."""

wall = time.time
"""Seconds since 1970, as other machines see them."""

sleep = time.sleep
"""Do nothing for so many seconds; for moments only, as nothing else is heard meanwhile."""
