"""The agent that a master has started on its own machine: it is replaced when it ends, and ended with the master.

An agent that was ended from outside, by a user or because the machine is short of something, has not failed: the master
always starts another one, after longer and longer pauses. An agent that ends by itself soon after its start will do so
again, for example because it cannot run the script at all. After several of them in a row, the master starts no more.
An agent whose slaves were ready does not count: if a task killed it, the master isolates this task and gives it up.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from math import inf

from attrs import Factory, define

from mwpy._core.pauses import Pause, between_messages
from mwpy._system import process
from mwpy._system.clock import Clock
from mwpy._values.errors import ExitCode, is_from_outside
from mwpy._values.options import MODULE_PATH

FAREWELL_S = 2.5
"""Seconds that a local agent gets to exit at the end before it is killed."""

POLL_S = 0.01

EARLY_S = 10.0
"""An agent that ends within this many seconds, before a slave was ready, has ended early."""

END_S = 10.0
"""An agent whose connection has ended exits within a few seconds. If it still runs after this time, it never will exit:
a task or a user has stopped it."""

EARLY_ENDS_ALLOWED = 3
"""When this many agents in a row have ended early by themselves, the last one is not replaced."""

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 10.0
"""How long the master waits before it replaces an agent that has ended early. Each further pause in a row is twice as
long."""

LEAVES = (ExitCode.EVICTED, ExitCode.INTERRUPTED)
"""The exit codes of an agent to which somebody has sent a signal."""


@define(eq=False, repr=False)
class LocalAgent:
    """The agent that a master has started on its own machine, and its replacements. There may be none.

    Args:
        start: the function that starts a process.
        clock: the time.
        notify: the function that prints a message for the user.
        joined: how many slaves have ever joined the master.
        connected: whether an agent with this process id is connected to the master.
    """

    _start_process: Callable[..., process.Child]
    _clock: Clock
    _notify: Callable[[str], None]
    _joined: Callable[[], int]
    _connected: Callable[[int], bool]
    _command: Sequence[str] = ()
    _environment: Mapping[str, str] = Factory(dict)
    _process: process.Child | None = None
    """None if none runs now."""
    _start_at: float = inf
    """When to start another one, if none runs now; infinity for never."""
    why_none: str | None = None
    """Why no agent will ever run again; empty if the last one has said so; None if one runs or will be started."""
    _started_at: float = 0.0
    _joined_before: int = 0
    """How many slaves had joined the master when the agent was started."""
    _connected_at: float = inf
    """When the agent was last seen connected; infinity if it was not connected yet."""
    _early_ends: int = 0
    """How many agents in a row have ended by themselves soon after their start."""
    _quiet: Pause = Factory(lambda: between_messages(LONGEST_PAUSE_S))
    """The pauses between the messages about agents that end soon after their start."""
    _pause: Pause = Factory(lambda: Pause(FIRST_PAUSE_S, LONGEST_PAUSE_S))
    """The pauses after agents that end soon after their start."""

    def keep(self, command: Sequence[str], environment: Mapping[str, str], process: process.Child) -> None:
        """Replace an agent, which has just been started, whenever it ends."""
        self._command, self._environment, self._process = command, environment, process
        self._note_start()

    def _note_start(self) -> None:
        self._started_at, self._joined_before, self._connected_at = self._clock.monotonic(), self._joined(), inf

    def find_modules_in(self, path: str) -> bool:
        """Let agents that are started from now on find modules in other folders. Return whether this is a change."""
        changed = self._environment.get(MODULE_PATH, path) != path
        if changed:
            self._environment = {**self._environment, MODULE_PATH: path}
        return changed

    def look(self) -> None:
        """Replace an agent that has ended. Kill one that still runs long after its connection has ended."""
        child, now = self._process, self._clock.monotonic()
        if child is None:
            self._start_if_due(now)
        elif (code := child.poll()) is not None:
            self._process = None
            self._ended(code, child.describe_exit(), now)
        elif self._connected(child.pid):
            self._connected_at = now
        elif now >= self._connected_at + END_S:
            child.kill()

    def _start_if_due(self, now: float) -> None:
        if now < self._start_at:
            return
        self._start_at = inf
        self._note_start()
        try:
            self._process = self._start_process(self._command, environment=self._environment)
        except OSError as error:
            limit = process.named(error)
            self._ended(None if limit else ExitCode.FAILED, f"cannot be started: {limit or error}", now)

    def _ended(self, code: int | None, how: str, now: float) -> None:
        """Decide whether there is another agent after one that has ended.

        Args:
            code: its exit code, or the negative number of a signal; None if the system refused to start it.
            how: the same as a text for the user.
        """
        if code == ExitCode.CANNOT_START:  # the agent printed the reason, and has sent it to the master
            self.why_none = ""
            return
        is_early = now < self._started_at + EARLY_S and self._joined() == self._joined_before
        if not is_early:
            self._early_ends = 0
        elif not (code is None or code in LEAVES or is_from_outside(code)):
            self._early_ends += 1
        if code == ExitCode.USAGE or self._early_ends >= EARLY_ENDS_ALLOWED:  # the next one would read the same options
            what = f"{self._early_ends} local agents in a row ended within seconds of their start ({how})"
            if code == ExitCode.USAGE:
                what = f"the local agent ended ({how}), as it says above"
            self.why_none = (
                f"{what}. An agent is started as `{shlex.join(self._command)}`: does this command reach mwpy.main() "
                f"without standard input?"
            )
            self._notify(self.why_none)
            return
        pause_s = 0.0
        if is_early:
            pause_s = self._pause.begin(now)
        else:
            self._pause.reset()
            self._quiet.reset()
        if now >= self._quiet.until:
            self._quiet.begin(now)
            later = f" in {pause_s:g} s" if pause_s else ""
            self._notify(f"the local agent ended ({how}); starting another{later}")
        self._start_at = now + pause_s
        self._start_if_due(now)

    @property
    def running(self) -> bool:
        """Whether an agent runs. An agent that connects only now leaves at once, because the computation ends."""
        return self._process is not None and self._process.poll() is None

    def close(self) -> None:
        """Wait a moment for the agent to exit, then kill it."""
        deadline = self._clock.monotonic() + FAREWELL_S
        while self.running and self._clock.monotonic() < deadline:
            self._clock.sleep(POLL_S)
        if self._process is not None:
            self._process.kill()
            self._process.poll()
