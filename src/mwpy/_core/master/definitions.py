"""Defines task algorithms, sends their definitions to agents, and decides what is forgotten.

An agent gets the definition of an algorithm before the first task of it, and passes it on to all its slaves. The
master knows which definitions each agent has, and so it decides what an agent forgets, by the same rule as for itself:
what was used least recently goes first, and nothing goes that a slave needs for a task that it holds. A definition that
was forgotten is sent again when it is needed again.
"""

from __future__ import annotations

from msgspec import Struct

from mwpy._core.master.admission import Admission
from mwpy._core.master.algorithms import Defined
from mwpy._core.master.members import ConnectedAgent
from mwpy._core.master.state import MasterState
from mwpy._values import messages, records

__all__ = ["Definitions"]


class Definitions(Struct, eq=False):
    """Decides which process keeps which definition."""

    state: MasterState
    admission: Admission

    def add(self, defined: Defined) -> None:
        """Add a task algorithm, if the core does not know it: it is new, or it was forgotten."""
        algorithms = self.state.jar.algorithms
        if defined.number not in algorithms.defined:
            self.state.record(defined.record)
            algorithms.adopt(defined)
            self.admission.algorithm_defined(defined.number)

    def send(self, agent: ConnectedAgent, unknown: dict[int, Defined]) -> None:
        """Send an agent definitions that it does not have. The tasks that need them must be allocated already."""
        for number, defined in unknown.items():
            agent.known[number] = None
            if defined.size:
                agent.by_value[number] = defined.size
                agent.bytes_by_value += defined.size
        defined_here = [each.record for each in unknown.values()]
        self.state.send(
            agent,
            messages.Algorithms([each.definition for each in defined_here], self._forget_there(agent)),
            [each.packed for each in defined_here if not each.definition.reference],
        )

    def _forget_there(self, agent: ConnectedAgent) -> list[int]:
        """The numbers of the algorithms that an agent must forget."""
        slaves, excess = agent.slaves.values(), agent.bytes_by_value - self.state.settings.max_definition_bytes
        forgotten: list[int] = []
        for number, size in agent.by_value.items():
            if excess <= 0:
                break
            if not any(number in slave.held.load for slave in slaves):
                excess -= size
                forgotten.append(number)
        for number in forgotten:
            agent.bytes_by_value -= agent.by_value.pop(number)
            del agent.known[number]
        return forgotten

    def decide(self) -> None:
        """Forget algorithms by value that have no tasks, because all of them together are too large."""
        algorithms = self.state.jar.algorithms
        excess = algorithms.size - self.state.settings.max_definition_bytes
        forgotten: list[int] = []
        for number in algorithms.idle:
            if excess <= 0:
                break
            excess -= algorithms.defined[number].size
            forgotten.append(number)
        if forgotten:
            self.state.record(records.AlgorithmsForgotten(forgotten))

    def check(self) -> None:
        """Assert that each agent has the definitions of all tasks that its slaves hold."""
        for slave in self.state.members.slaves.values():
            unknown = [number for number in slave.held.load if number not in slave.agent.known]
            assert not unknown, f"{slave.sid} holds tasks of algorithms {unknown}, which were not sent to it"
        for agent in self.state.members.agents.values():
            assert agent.bytes_by_value == sum(agent.by_value.values()), f"the sizes at {agent.name} were miscounted"
            assert not agent.by_value.keys() - agent.known.keys(), f"{agent.name} keeps what it does not know"
