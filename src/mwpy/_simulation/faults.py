"""The faults of a simulated computation: what happens to agents, to their slaves, and to their connections."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from mwpy._simulation.machines import AgentHost, AgentProcess
from mwpy._simulation.network import Network
from mwpy._simulation.slaves import SIGKILL
from mwpy._simulation.world import World

__all__ = ["Faults"]

KINDS = (
    "kill",
    "break",
    "cut",
    "freeze",
    "full output",
    "evict",
    "garbage",
    "stranger",
    "slave",
    "slave",
    "slave and agent",
    "template",
    "hang",
    "nonsense",
)
"""Every kind of fault is equally likely."""

SILENT_S = 31.0
"""For how long nothing was heard from an agent whose connection broke for this reason, in seconds."""


class Faults(Struct, eq=False):
    """Lets faults happen, one after the other, as long as the world is faulty."""

    _world: World
    _network: Callable[[], Network]
    """Returns the connections to the master that runs now."""
    _hosts: Sequence[AgentHost]
    _pause_s: float
    """The longest pause between two faults."""

    def begin(self) -> None:
        """Let the first fault happen after a while."""
        self._world.after(self._world.random.random() * self._pause_s, self._happen)

    def _happen(self) -> None:
        if not self._world.faulty:
            return
        if self._hosts:
            host = self._world.random.choice(self._hosts)
            if host.process is not None:
                self._strike(host, host.process)
        self.begin()

    def _strike(self, host: AgentHost, process: AgentProcess) -> None:
        """Let something happen to an agent, or to one of its slaves."""
        kind = self._world.random.choice(KINDS)
        self._world.note(f"fault on {host.name}: {kind}")
        match kind:
            case "kill":
                host.end(process, None)
            case "break":
                self._network().cut(process.connection, self._world.random.choice((0.0, SILENT_S)))
            case "cut":
                self._network().cut(process.connection, SILENT_S)
            case "freeze":
                process.freeze()
            case "full output":
                process.fill_outlets()
            case "evict":
                process.terminate()
            case "garbage":
                self._network().send_garbage(process.connection)
            case "stranger":
                self._network().stranger()
            case "template":
                process.launcher.kill_template()
            case _:
                self._strike_slave(process, kind)

    def _strike_slave(self, process: AgentProcess, kind: str) -> None:
        slaves = [slave for slave in process.slaves.values() if slave.has_process and slave.code is None]
        if not slaves:
            return
        slave = self._world.random.choice(slaves)
        match kind:
            case "slave":
                slave.end(SIGKILL)
            case "slave and agent":
                process.kill_with(slave)
            case "hang":
                process.hang(slave)
            case "nonsense":
                slave.channel.write_nonsense()
