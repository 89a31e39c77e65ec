"""Notices that this process was stopped: then it looks at the clock later than it meant to.

A batch system may suspend a job for hours, and a laptop may sleep. Then the time of the stop must not count: neither
for the tasks that were stopped too, nor for the reason why the master has given this agent up.
"""

from __future__ import annotations

from mwpy._core.agent.core import AgentCore
from mwpy._core.agent.events import Resumed
from mwpy._system.clock import Clock

__all__ = ["LATE_S", "StopDetector"]

LATE_S = 1.0
"""An agent that is later than this, in seconds, was stopped. Work that takes longer counts as a stop, too."""


class StopDetector:
    """Looks at the clock for an agent, and tells its core about each stop."""

    def __init__(self, clock: Clock, core: AgentCore) -> None:
        self._clock = clock
        self._core = core
        self.looked_at = clock.monotonic()
        """When it last looked at the clock."""

    def look(self, waits_s: float = 0.0) -> float:
        """Return the time. Report a stop since the last look, whether the agent waited or worked.

        Args:
            waits_s: for how many seconds at most the agent meant to wait meanwhile.
        """
        now = self._clock.monotonic()
        late_s = now - self.looked_at - waits_s
        self.looked_at = now
        if late_s > LATE_S:
            self._core.handle(Resumed(late_s), now)
        return now
