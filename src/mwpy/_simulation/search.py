"""How a simulated agent finds its master again after its connection broke."""

from __future__ import annotations

from collections.abc import Callable

from attrs import define

from mwpy._core.agent.events import AddressesFound, ComputationOver
from mwpy._simulation.network import ADDRESS, Network, SimulatedAgentLink

__all__ = ["SimulatedSearch"]


@define(eq=False)
class SimulatedSearch:
    """The resource file, and connections to the master that it names.

    Args:
        network: the connections to the master with which the agent has its session.
        reconnect: begins another connection of the agent.
    """

    network: Network
    reconnect: Callable[[], SimulatedAgentLink]

    def ask(self) -> None:
        """Read the resource file."""

    def answer(self) -> AddressesFound | ComputationOver:
        """Return what the file says."""
        if self.network.is_down:
            return ComputationOver("the master has ended", finished=self.network.is_finished)
        return AddressesFound([ADDRESS])

    def connect(self, address: str) -> SimulatedAgentLink:
        """Connect to the master."""
        assert address == ADDRESS, "there is one address"
        return self.reconnect()
