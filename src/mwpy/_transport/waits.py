"""How long the links wait: for something to happen, and from one heartbeat to the next."""

from __future__ import annotations

import math

__all__ = ["heartbeat_interval", "milliseconds"]

HEARTBEATS_A_TIMEOUT = 4
"""How many heartbeats there are within one timeout."""

SHORTEST_INTERVAL_S = 0.1
"""The shortest time between two heartbeats."""

LONGEST_POLL_MS = 2**31 - 1
"""The longest time that a poller accepts, three weeks."""


def heartbeat_interval(timeout_s: float) -> float:
    """Return the seconds between two heartbeats."""
    return max(SHORTEST_INTERVAL_S, timeout_s / HEARTBEATS_A_TIMEOUT)


def milliseconds(seconds: float) -> int:
    """Convert a time to milliseconds for a poller. It is limited, and rounded up so that no poll returns too early."""
    if seconds <= 0:
        return 0
    return math.ceil(seconds * 1000) if seconds < LONGEST_POLL_MS / 1000 else LONGEST_POLL_MS
