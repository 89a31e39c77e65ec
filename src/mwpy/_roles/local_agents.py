"""The agent that a master has started on its own machine: it is replaced when it ends, and ended with the master."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence

from attrs import Factory, define

from mwpy._core.local_agents import LocalAgentCore, Verdict
from mwpy._system import process
from mwpy._system.clock import Clock
from mwpy._values.errors import ExitCode
from mwpy._values.options import MODULE_PATH

FAREWELL_S = 2.5
"""Seconds that a local agent gets to exit at the end before it is killed."""

POLL_S = 0.01


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
    _core: LocalAgentCore = Factory(lambda: LocalAgentCore(""))
    _process: process.Child | None = None
    """None if none runs now."""
    _verdict: Verdict | None = None
    """Whether there will be another one, if none runs; None if none has ended yet."""

    def keep(self, command: Sequence[str], environment: Mapping[str, str], process: process.Child) -> None:
        """Replace an agent, which has just been started, whenever it ends."""
        self._command, self._environment, self._process = command, environment, process
        self._core = LocalAgentCore(shlex.join(command))
        self._core.started(self._clock.monotonic(), self._joined())

    def find_modules_in(self, path: str) -> bool:
        """Let agents that are started from now on find modules in other folders. Return whether this is a change."""
        changed = self._environment.get(MODULE_PATH, path) != path
        if changed:
            self._environment = {**self._environment, MODULE_PATH: path}
        return changed

    def look(self) -> None:
        """Replace an agent that has ended, and kill one that hangs, if the core decides so."""
        process = self._process
        if process is None:
            self._start_if_due()
        elif (code := process.poll()) is not None:
            self._process = None
            self._ended(code, process.describe_exit())
        elif self._core.must_be_killed(self._connected(process.pid), self._clock.monotonic()):
            process.kill()

    def _start_if_due(self) -> None:
        start_at = None if self._verdict is None else self._verdict.start_at
        if start_at is None or self._clock.monotonic() < start_at:
            return
        self._core.started(self._clock.monotonic(), self._joined())
        try:
            self._process = self._start_process(self._command, environment=self._environment)
        except OSError as error:
            limit = process.named(error)
            self._ended(None if limit else ExitCode.FAILED, f"cannot be started: {limit or error}")

    def _ended(self, code: int | None, how: str) -> None:
        self._verdict = self._core.ended(code, how, self._clock.monotonic(), self._joined())
        if self._verdict.notice:
            self._notify(self._verdict.notice)
        self._start_if_due()

    @property
    def why_none(self) -> str | None:
        """Why no agent will ever run again; empty if the last one has said so; None if one runs or will be started."""
        if self._process is not None or self._verdict is None or self._verdict.start_at is not None:
            return None
        return self._verdict.notice

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
