"""The agents that a simulated master starts on its own machine. They die with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from mwpy._roles.edges import Process
from mwpy._simulation.machines import AgentHost
from mwpy._simulation.master import SimulatedMaster
from mwpy._simulation.slaves import SIGKILL
from mwpy._simulation.world import World
from mwpy._values.errors import ExitCode
from mwpy._values.exits import describe_exit

__all__ = ["SimulatedLocalAgents"]


class _LocalAgent(Struct, eq=False):
    """The process of a local agent, as the master sees it."""

    kill: Callable[[], None]
    code: int | None = None
    pid: int = 1
    peak_bytes: int = 0
    out_of_memory: bool = False

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        return self.code

    def describe_exit(self) -> str:
        """Its end in words."""
        assert self.code is not None, "it has not ended"
        return describe_exit(self.code)

    def close(self) -> None:
        """Do nothing."""


class SimulatedLocalAgents(Struct, eq=False):
    """The local agents of all lives of a master.

    Args:
        add: adds a machine whose agent starts now.
        master: returns the master that runs now, or that has crashed.
    """

    _world: World
    _add: Callable[[AgentHost], None]
    _master: Callable[[], SimulatedMaster]
    _hosts: list[AgentHost] = field(default_factory=list)

    def have_one(self) -> None:
        """The user asks for a local agent."""
        try:
            process = self.start(["agent"], environment={})
        except OSError:  # a user would see this, and start the master again
            self._world.after(1.0, self.have_one)
        else:
            if self._master().crashed:
                process.kill()
            else:
                self._master().io.local.keep(["agent"], {}, process)

    def start(self, command: Sequence[str], *, environment: Mapping[str, str]) -> Process:
        """Start an agent on the master's machine; sometimes fail because memory is missing."""
        if self._world.chance(0.2):
            raise OSError("no memory")

        def ended(code: ExitCode | None) -> None:
            process.code = SIGKILL if code is None else int(code)
            self._hosts.remove(host)

        def kill() -> None:
            if host.process is not None:
                host.end(host.process, None)

        host = AgentHost("the master's machine", ended, able=False)
        process = _LocalAgent(kill)
        self._hosts.append(host)
        self._add(host)
        return process

    def end(self) -> None:
        """The master is killed, and they die with it."""
        for host in [*self._hosts]:
            if host.process is not None:
                host.end(host.process, None)
