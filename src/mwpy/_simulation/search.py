"""How a simulated agent finds its master again after its connection broke."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import Struct

from mwpy._core.agent.events import AddressesFound, ComputationOver
from mwpy._simulation.checkers import HistoryChecker
from mwpy._simulation.network import ADDRESS, Network, SimulatedAgentLink

__all__ = ["Life", "SimulatedSearch"]


class Life(NamedTuple):
    """One life of the master, as its agents see it."""

    network: Network
    checker: HistoryChecker
    durations: Sequence[float]
    """How long tasks take."""


class SimulatedSearch(Struct, eq=False):
    """The resource file, and connections to the master that it names.

    Args:
        life: returns the newest life of the master. It may be over.
        reconnect: begins another connection of the agent, to a life.
    """

    life: Callable[[], Life]
    reconnect: Callable[[Life], SimulatedAgentLink]

    def ask(self) -> None:
        """Read the resource file."""

    def answer(self) -> AddressesFound | ComputationOver:
        """Return what the file says."""
        if self.life().network.is_finished:
            return ComputationOver("the master has ended", finished=True)
        return AddressesFound([ADDRESS])

    def connect(self, address: str) -> SimulatedAgentLink:
        """Connect to the master."""
        assert address == ADDRESS, "there is one address"
        return self.reconnect(self.life())
