"""Starts the simulated slaves of an agent, as the real launcher does: as fresh interpreters, or with a template."""

from __future__ import annotations

from collections.abc import Container
from typing import Protocol

from msgspec import Struct

from mwpy._roles.edges import SlaveParts
from mwpy._simulation.network import SimulatedAgentLink
from mwpy._simulation.outputs import SimulatedOutlet
from mwpy._simulation.slaves import SIGKILL, SimulatedSlave
from mwpy._simulation.templates import SimulatedTemplate
from mwpy._simulation.workload import Workload
from mwpy._simulation.world import World
from mwpy._values import messages

__all__ = ["SimulatedLauncher"]


class Owner(Protocol):
    """The process of the agent: `AgentProcess`."""

    outlets: dict[int, SimulatedOutlet]

    def check_start(self, slave: SimulatedSlave) -> None: ...
    def template_ended(self) -> None: ...
    def slave_ended(self, slave: SimulatedSlave) -> None: ...


class SimulatedLauncher(Struct, eq=False):
    """Starts the simulated slaves of an agent."""

    _world: World
    workload: Workload
    _link: SimulatedAgentLink
    _slaves: dict[int, SimulatedSlave]
    _unsafe: bool
    """Whether the script leaves something that must not be copied by a fork."""
    _owner: Owner
    _template: SimulatedTemplate | None = None

    @property
    def is_starting(self) -> bool:
        """Whether the template just starts a slave, or hangs."""
        return self._template is not None and self._template.is_starting

    def start(self, number: int, welcome: messages.Welcome) -> SlaveParts:
        """Start a slave as a fresh interpreter; sometimes fail because memory is missing."""
        slave = self.make_slave(number, self.workload.checker.code.edits)
        if self._world.chance(0.05):
            slave.hang(closes=False)
            self.check_start(slave)
        self.begin(slave, self.workload.start_s)
        return SlaveParts(slave, slave.channel, slave.outputs)

    def start_template(self, number: int, welcome: messages.Welcome) -> tuple[SimulatedTemplate, SlaveParts]:
        """Start a template and its first slave."""
        assert self._template is None or self._template.is_over, "there are two templates"
        template = SimulatedTemplate(self._world, self, self._link, self.workload.checker.code.edits, self._unsafe)
        parts = template.fork(number, welcome)
        template.load(self.workload.start_s)
        self._template = template
        return template, parts

    def reap(self, known: Container[int]) -> None:
        """Do nothing: simulated processes leave nothing behind."""

    def make_slave(self, number: int, edits: int) -> SimulatedSlave:
        """Make a slave that has no process yet; sometimes fail because memory is missing."""
        if self._world.chance(0.02):
            raise OSError("no memory")
        outlets, ended = self._owner.outlets, self._owner.slave_ended
        slave = self._slaves[number] = SimulatedSlave(number, self.workload, self._link, outlets, ended, edits)
        return slave

    def begin(self, slave: SimulatedSlave, longest_s: float) -> None:
        """The process of a slave begins. Its script is loaded after at most this many seconds."""
        slave.has_process = True
        self._world.after(self._world.random.random() * longest_s, slave.start)

    def check_start(self, slave: SimulatedSlave) -> None:
        """Check that a slave is killed whose start hangs."""
        self._owner.check_start(slave)

    def kill_template(self) -> None:
        """Something kills the template."""
        if self._template is not None:
            self._template.end(SIGKILL)

    def template_ended(self) -> None:
        """The agent gets a signal."""
        self._owner.template_ended()
