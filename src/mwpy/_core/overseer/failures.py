"""Jobs that fail at their start, and the pause in submissions that they cause."""

from __future__ import annotations

import math

from attrs import define

from mwpy._values.errors import ExitCode
from mwpy._values.jobs import End, Outcome

__all__ = ["YOUNG_S", "FailurePause", "explain", "is_failure"]

YOUNG_S = 30.0
"""A job that ended within this many seconds failed at its start. A job that runs longer works well."""

FAILURES_ALLOWED = 3
"""After this many failures in a row, submissions pause."""

FIRST_PAUSE_S = 60.0
"""Seconds until one job is tried. Each pause is twice the one before."""

LONGEST_PAUSE_S = 1800.0

EXPLANATIONS = {
    1: "its script failed before it called mwpy.main()",
    ExitCode.USAGE: "a bad option, or a bad or missing resource file",
    ExitCode.REFUSED: "the master refused it, or another program listens at the master's address",
    ExitCode.UNREACHABLE: "no address of the master answered",
    ExitCode.CANNOT_START: "its slaves die before they can take a task",
    126: "its program cannot be executed there",
    127: "its program does not exist there",
    ExitCode.FAILED: "the master was lost",
}


def explain(outcome: Outcome) -> str:
    """Describe how a job ended, and what its exit code means."""
    meaning = EXPLANATIONS.get(outcome.exit_code) if outcome.exit_code is not None else None
    return f"{outcome.description} ({meaning})" if meaning else outcome.description


def is_failure(outcome: Outcome) -> bool:
    """Whether a job failed at its start. A job that was removed, evicted, or sent away by its master did not."""
    failed = outcome.end is End.KILLED or outcome.exit_code not in (None, ExitCode.OK, ExitCode.EVICTED)
    return failed and outcome.ran_s < YOUNG_S


@define(eq=False)
class FailurePause:
    """Pauses submissions when jobs fail at their start several times in a row, then allows one job at a time."""

    failures: int = 0
    """How many in a row."""
    _until: float | None = None
    """When one job may be tried; None while there is no pause."""
    _failed_at: float = -math.inf
    _pause_s: float = FIRST_PAUSE_S

    def fail(self, now: float) -> float | None:
        """Count a failure.

        Returns:
            The length in seconds of the pause that begins now; None if no pause begins.
        """
        self.failures += 1
        self._failed_at = now
        if self.failures < FAILURES_ALLOWED or (self._until is not None and now < self._until):
            return None
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._until = now + pause_s
        return pause_s

    def succeed(self, time: float) -> bool:
        """Count a job that stopped being young at this time. Return whether this ended a pause."""
        return time > self._failed_at and self.end()

    def end(self) -> bool:
        """Forget all failures. Return whether there was a pause."""
        paused = self._until is not None
        self.failures, self._until, self._pause_s = 0, None, FIRST_PAUSE_S
        return paused

    def limit(self, wanted: int, unproven: int, now: float) -> int:
        """How many of the wanted jobs may be submitted, while so many other jobs are still young."""
        if self._until is None:
            return wanted
        return min(wanted, 1) if now >= self._until and not unproven else 0
