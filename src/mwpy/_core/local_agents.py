"""Decides whether the master replaces an agent on its own machine that has ended.

An agent that was ended from outside, by a user or because the machine is short of something, has not failed: the master
always starts another one, after longer and longer pauses. An agent that ends by itself soon after its start will do so
again, for example because it cannot run the script at all. After several of them in a row, the master starts no more.
An agent whose slaves were ready does not count: if a task killed it, the master isolates this task and gives it up.
"""

from __future__ import annotations

from attrs import define
from msgspec import Struct

from mwpy._values.errors import ExitCode, is_from_outside

EARLY_S = 10.0
"""An agent that ends within this many seconds, before a slave was ready, has ended early."""

END_S = 10.0
"""An agent whose connection has ended exits within a few seconds. If it still runs after this time, it never will exit:
a task or a user has stopped it."""

EARLY_ENDS_ALLOWED = 3
"""When this many agents in a row have ended early by themselves, the last one is not replaced."""

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 10.0
"""How long the master waits before it replaces the second agent in a row that has ended early. Each further pause is
twice as long."""

LEAVES = (ExitCode.EVICTED, ExitCode.INTERRUPTED)
"""The exit codes of an agent to which somebody has sent a signal."""


class Verdict(Struct, frozen=True):
    """The decision after the end of a local agent."""

    notice: str
    """What to print for the user, if anything; or why there is no other agent."""
    start_at: float | None = None
    """When to start another agent; None if it would fail, too."""


@define(eq=False, repr=False)
class LocalAgentCore:
    """Decides about one local agent and those that replace it.

    Args:
        command: the command line that starts it, for the user.
    """

    command: str
    _started_at: float = 0.0
    _joined_before: int = 0
    """How many slaves had joined the master when the agent was started."""
    _early_ends: int = 0
    """How many agents in a row have ended by themselves soon after their start."""
    _pause_s: float = 0.0
    """How long to wait with the next one, if the present one ends soon after its start, too."""
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
            code: its exit code, or the negative number of a signal; None if the system refused to start it.
            how: the same as a text for the user.
            now: the time, on the same clock as in `started`.
            joined: how many slaves have ever joined the master.
        """
        if code == ExitCode.CANNOT_START:  # the agent printed the reason, and has sent it to the master
            return Verdict("")
        is_early = now < self._started_at + EARLY_S and joined == self._joined_before
        if not is_early:
            self._early_ends, self._pause_s = 0, 0.0
        elif not (code is None or code in LEAVES or is_from_outside(code)):
            self._early_ends += 1
        if self._early_ends >= EARLY_ENDS_ALLOWED:
            return Verdict(
                f"{self._early_ends} local agents in a row ended within seconds of their start ({how}). An agent is "
                f"started as `{self.command}`: does this command reach mwpy.main() without standard input?"
            )
        pause_s = self._pause_s
        self._pause_s = min(LONGEST_PAUSE_S, 2 * pause_s or FIRST_PAUSE_S) if is_early else 0.0
        later = f" in {pause_s:g} s" if pause_s else ""
        return Verdict(f"the local agent ended ({how}); starting another{later}", now + pause_s)

    def check(self) -> None:
        """Check what must always be true."""
        assert 0 <= self._early_ends <= EARLY_ENDS_ALLOWED, "an agent was replaced after too many early ends"
