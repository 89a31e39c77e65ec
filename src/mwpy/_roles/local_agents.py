"""The agents that a master has started on its own machine: it starts them, checks whether they run, and ends them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from mwpy._core.local_agents import LocalAgentCore
from mwpy._roles.edges import Process, ProcessStarter
from mwpy._system import process
from mwpy._system.clock import Clock
from mwpy._values.errors import ExitCode
from mwpy._values.options import MODULE_PATH

FAREWELL_S = 2.5
"""Seconds that a local agent gets to exit at the end before it is killed."""

POLL_S = 0.01


class _LocalAgent(Struct, eq=False):
    """A local agent and its replacements."""

    command: Sequence[str]
    environment: Mapping[str, str]
    core: LocalAgentCore
    process: Process | None = None
    """None if no one runs now."""
    start_at: float | None = None
    """When to start another one, if none runs; None if there will be no other."""
    why_ended: str = ""
    """Why there will be no other; empty if the last one has sent the reason to the master."""


class LocalAgents(Struct, eq=False):
    """Local agents of one master.

    Args:
        start: the function that starts a process.
        clock: the time.
        notify: the function that prints a message for the user.
        joined: how many slaves have ever joined the master.
        connected: whether an agent with this process id is connected to the master.
    """

    _start_process: ProcessStarter
    _clock: Clock
    _notify: Callable[[str], None]
    _joined: Callable[[], int]
    _connected: Callable[[int], bool]
    _agents: list[_LocalAgent] = field(default_factory=list)

    def keep(self, command: Sequence[str], environment: Mapping[str, str], process: Process) -> None:
        """Replace an agent, which has just been started, whenever it ends."""
        agent = _LocalAgent(command, environment, LocalAgentCore(shlex.join(command)), process)
        agent.core.started(self._clock.monotonic(), self._joined())
        self._agents.append(agent)

    def find_modules_in(self, path: str) -> bool:
        """Let all agents that are started from now on find modules in other folders.

        Returns:
            Whether this is a change for an agent.
        """
        changed = False
        for agent in self._agents:
            if agent.environment.get(MODULE_PATH, path) != path:
                agent.environment = {**agent.environment, MODULE_PATH: path}
                changed = True
        return changed

    def _start(self, agent: _LocalAgent) -> None:
        agent.core.started(self._clock.monotonic(), self._joined())
        try:
            agent.process = self._start_process(agent.command, environment=agent.environment)
        except OSError as error:
            limit = process.named(error)
            self._replace(agent, None if limit else ExitCode.FAILED, f"cannot be started: {limit or error}")

    def look(self) -> None:
        """Replace the agents that have ended, and kill those that hang, if their cores decide so."""
        for agent in self._agents:
            process = agent.process
            if process is None:
                if agent.start_at is not None and self._clock.monotonic() >= agent.start_at:
                    self._start(agent)
            elif (code := process.poll()) is not None:
                agent.process = None
                self._replace(agent, code, process.describe_exit())
            elif agent.core.must_be_killed(self._connected(process.pid), self._clock.monotonic()):
                process.kill()

    def _replace(self, agent: _LocalAgent, code: int | None, how: str) -> None:
        verdict = agent.core.ended(code, how, self._clock.monotonic(), self._joined())
        agent.start_at, agent.why_ended = verdict.start_at, verdict.notice
        if verdict.notice:
            self._notify(verdict.notice)
        if agent.start_at is not None and self._clock.monotonic() >= agent.start_at:
            self._start(agent)

    @property
    def why_none(self) -> str | None:
        """Why no agent will ever run again; empty if the last one has said so; None if one runs or will be started."""
        if not self._agents or any(each.process is not None or each.start_at is not None for each in self._agents):
            return None
        return self._agents[-1].why_ended

    @property
    def running(self) -> bool:
        """Whether an agent runs. An agent that connects only now leaves at once, because the computation ends."""
        return any(agent.process is not None and agent.process.poll() is None for agent in self._agents)

    def close(self) -> None:
        """Wait a moment for the agents to exit, then kill them."""
        deadline = self._clock.monotonic() + FAREWELL_S
        while self.running and self._clock.monotonic() < deadline:
            self._clock.sleep(POLL_S)
        for agent in self._agents:
            if agent.process is not None:
                agent.process.kill()
                agent.process.poll()
