"""When a resource file counts as stale. Readers, overseers and the doctor share this one rule."""

from __future__ import annotations

__all__ = ["STALE_INTERVALS", "is_stale"]

STALE_INTERVALS = 3
"""A file that missed this many updates was left by a master that is dead or stuck."""


def is_stale(age_s: float, interval_s: float) -> bool:
    """Whether a file of this age is stale, if its master should write it once per interval."""
    return age_s > STALE_INTERVALS * interval_s
