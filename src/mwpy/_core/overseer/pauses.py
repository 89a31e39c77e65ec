"""Pauses in the submissions for one computation: after jobs that fail at their start, and after refusals."""

from __future__ import annotations

import math

from msgspec import Struct

__all__ = ["FailurePause", "RefusalPause"]

FAILURES_ALLOWED = 3
"""After this many failures in a row, submissions pause."""

FIRST_PAUSE_S = 60.0
"""Seconds until one job is tried. Each pause is twice the one before."""

LONGEST_PAUSE_S = 1800.0

FIRST_RETRY_S = 10.0
"""Seconds until a batch system that refused a submission is tried again. Each pause is twice the one before."""

LONGEST_RETRY_S = 600.0


class FailurePause(Struct, eq=False):
    """Pauses submissions when jobs fail at their start several times in a row, then allows one job at a time."""

    failures: int = 0
    """How many jobs in a row have failed at their start."""
    _until: float | None = None
    """When one job may be tried; None while there is no pause."""
    _failed_at: float = -math.inf
    _pause_s: float = FIRST_PAUSE_S
    tried_elsewhere_at: float | None = None
    """When the last job was tried, if it avoids the machines where jobs failed; otherwise None."""

    @property
    def is_pausing(self) -> bool:
        """Whether at most one job at a time is tried."""
        return self._until is not None

    def fail(self, now: float, *, may_pass: bool = False) -> float | None:
        """Count a failure.

        Args:
            now: the time.
            may_pass: the cause of the failure may pass soon. Such a failure makes the pauses no longer.

        Returns:
            The length in seconds of the pause that begins now; None if no pause begins.
        """
        self.failures += 1
        self._failed_at = now
        if self.failures < FAILURES_ALLOWED or (self._until is not None and now < self._until):
            return None
        pause_s = FIRST_PAUSE_S if may_pass else self._pause_s
        self._pause_s = self._pause_s if may_pass else min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._until = now + pause_s
        return pause_s

    def succeed(self, time: float) -> bool:
        """Count a job that is no longer young at this time. Return whether this ended a pause."""
        return time > self._failed_at and self.end()

    def end(self) -> bool:
        """Forget all failures. Return whether there was a pause."""
        paused = self._until is not None
        self.failures, self._until, self._pause_s, self.tried_elsewhere_at = 0, None, FIRST_PAUSE_S, None
        return paused

    def limit(self, wanted: int, unproven: int, now: float) -> int:
        """How many of the wanted jobs may be submitted. `unproven` other jobs may still fail at their start."""
        if self._until is None:
            return wanted
        return min(wanted, 1) if now >= self._until and not unproven else 0


class RefusalPause(Struct, eq=False):
    """Pauses submissions when the batch system refuses them. Each refusal in a row makes the pause longer."""

    until: float = 0.0
    _pause_s: float = 0.0

    def refuse(self, now: float) -> None:
        """Count a refusal."""
        self._pause_s = min(max(2 * self._pause_s, FIRST_RETRY_S), LONGEST_RETRY_S)
        self.until = now + self._pause_s

    def accept(self) -> None:
        """Count a submission that the batch system accepted."""
        self._pause_s = 0.0
