"""What the algorithm's thread asks of the master's core: to make algorithms known, and to obey commands."""

from __future__ import annotations

from msgspec import Struct

from mwpy._values.algorithm import Algorithm
from mwpy._values.ids import SlaveId
from mwpy._values.messages import AlgorithmDefinition
from mwpy._values.task import SlaveKind

__all__ = ["AllocateSlaves", "Command", "DeallocateSlaves", "Definition", "FreeSlave", "ShutDown"]


class Definition(Struct, frozen=True, eq=False):
    """A task algorithm and everything that a slave needs to run it."""

    algorithm: Algorithm
    header: AlgorithmDefinition
    """What is sent in the header of an `Algorithms` message."""
    function: bytes = b""
    """The pickled function if it travels by value, else empty."""


class AllocateSlaves(Struct, frozen=True):
    """Want `amount` more slaves of a kind."""

    amount: int
    kind: SlaveKind


class DeallocateSlaves(Struct, frozen=True):
    """Want `amount` fewer slaves of a kind."""

    amount: int
    kind: SlaveKind


class FreeSlave(Struct, frozen=True):
    """Make an ordered or intermingle slave unordered."""

    sid: SlaveId


class ShutDown(Struct, frozen=True):
    """End the computation."""

    finished: bool
    """Whether the computation is complete; if not, the agents' jobs stay queued."""
    grace_s: float
    """How long slaves may take to end by themselves."""


Command = AllocateSlaves | DeallocateSlaves | FreeSlave | ShutDown
