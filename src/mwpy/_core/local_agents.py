"""Decides whether the master replaces an agent on its own machine that has ended.

An agent ends when a user kills it, when the machine is out of memory, or when it cannot run the script at all. The
master starts another one, but not forever. If several agents in a row end soon after their start, the master stops and
prints what may be wrong. An agent whose slaves were ready does not count: if a task killed it, the master isolates this
task and gives it up.
"""

from __future__ import annotations

from msgspec import Struct

from mwpy._values.errors import ExitCode

__all__ = ["EARLY_ENDS_ALLOWED", "EARLY_S", "LocalAgentCore", "Verdict"]

EARLY_S = 10.0
"""An agent that ends within this many seconds, before a slave was ready, has ended early."""

END_S = 10.0
"""An agent whose connection has ended exits within a few seconds. If it still runs after this time, it never will exit:
a task or a user has stopped it."""

EARLY_ENDS_ALLOWED = 3
"""When this many agents in a row have ended early, the last one is not replaced."""


class Verdict(Struct, frozen=True):
    """The decision after the end of a local agent."""

    start_another: bool
    notice: str = ""
    """What to tell the user, if anything."""


class LocalAgentCore(Struct, eq=False):
    """Decides about one local agent and those that replace it.

    Args:
        command: the command line that starts it, for the user.
    """

    command: str
    _started_at: float = 0.0
    _joined_before: int = 0
    """How many slaves had joined the master when the agent was started."""
    _early_ends: int = 0
    """How many agents in a row have ended soon after their start."""
    _connected_at: float | None = None
    """When the agent was last seen connected; None if it was not connected yet."""

    def started(self, now: float, joined: int) -> None:
        """An agent was started, when `joined` slaves had ever joined the master."""
        self._started_at, self._joined_before, self._connected_at = now, joined, None

    def must_be_killed(self, connected: bool, now: float) -> bool:
        """Decide about an agent that runs: whether its connection has ended, but the agent does not."""
        if connected:
            self._connected_at = now
        return self._connected_at is not None and now >= self._connected_at + END_S

    def ended(self, code: int | None, how: str, now: float, joined: int) -> Verdict:
        """The agent ended.

        Args:
            code: its exit code, or the negative number of a signal; None if it could not be started.
            how: the same as a text for the user.
            now: the time, on the same clock as in `started`.
            joined: how many slaves have ever joined the master.
        """
        if code == ExitCode.CANNOT_START:
            return Verdict(False)  # the agent printed the reason, and the master's core reports it, too
        early = now < self._started_at + EARLY_S and joined == self._joined_before
        self._early_ends = self._early_ends + 1 if early else 0
        if self._early_ends < EARLY_ENDS_ALLOWED:
            return Verdict(True, f"the local agent ended ({how}); starting another")
        return Verdict(
            False,
            f"{self._early_ends} local agents in a row ended within seconds of their start ({how}), so there are no "
            f"slaves on this machine. An agent is started as `{self.command}`: does this command reach mwpy.main() "
            f"without standard input?",
        )

    def check(self) -> None:
        """Check what must always be true."""
        assert 0 <= self._early_ends <= EARLY_ENDS_ALLOWED, "an agent was replaced after too many early ends"
