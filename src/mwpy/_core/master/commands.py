"""The commands from the algorithm's thread to the master's core."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from mwpy._values.ids import SlaveId
from mwpy._values.task import SlaveKind

__all__ = ["AllocateSlaves", "Command", "DeallocateSlaves", "FreeSlave", "RenewSlaves", "ShutDown", "Waiting"]


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


class RenewSlaves(Struct, frozen=True):
    """Replace slaves, because modules that they have imported were edited."""

    refused: int | None
    """Only those of agents that cannot run the algorithm with this number; None for all slaves."""


class ShutDown(Struct, frozen=True):
    """End the computation."""

    finished: bool
    """Whether the computation is complete; if not, the agents' jobs stay queued."""
    grace_s: float
    """How long slaves may take to end by themselves."""


Command = AllocateSlaves | DeallocateSlaves | FreeSlave | RenewSlaves | ShutDown


class Waiting(Enum):
    """Whether the master algorithm waits in `mw.loop()`, and for how long."""

    NOT = "not"
    FOR_A_WHILE = "for a while"
    FOREVER = "forever"
