"""The commands from the algorithm's thread to the master's core."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from msgspec import Struct

from mwpy._values.groups import spans_of
from mwpy._values.ids import Buffer, SlaveId
from mwpy._values.task import SlaveKind

__all__ = [
    "AllocateSlaves",
    "Asking",
    "CancelTasks",
    "Command",
    "DeallocateSlaves",
    "EndSoon",
    "ExpectTasks",
    "FreeSlave",
    "GiveResult",
    "GoOn",
    "HoldResults",
    "ReleaseResults",
    "RenewSlaves",
    "Running",
    "ShutDown",
    "TakeReports",
    "Waiting",
]


class AllocateSlaves(Struct, frozen=True):
    """Want `amount` more slaves of a kind."""

    amount: int
    kind: SlaveKind


class DeallocateSlaves(Struct, frozen=True):
    """Want `amount` fewer slaves of a kind."""

    amount: int
    kind: SlaveKind


class EndSoon(Struct, frozen=True):
    """Send no more tasks, because the batch system has said that the known end of the master is near."""


class ExpectTasks(Struct, frozen=True):
    """Tasks wait outside of the master, and are submitted when there are slaves for them: want slaves for them, too.

    There may be several places where tasks wait.
    """

    change: int
    """How many more of them there are than before."""


class FreeSlave(Struct, frozen=True):
    """Make an ordered or intermingle slave unordered."""

    sid: SlaveId


class RenewSlaves(Struct, frozen=True):
    """Replace slaves, because modules that they have imported were edited."""

    refused: int | None
    """Only those of agents that cannot run the algorithm with this number; None for all slaves."""
    module_path: str = ""
    """Where new slaves find modules, as in `Renew`."""


class Running(Enum):
    """What happens to tasks that run when they are cancelled."""

    KILL = "kill"
    """They are killed without grace."""
    FINISH = "finish"
    """They may finish, and their results count. If they are lost with their slave, they are cancelled then."""
    DISCARD = "discard"
    """They are killed, and none of the cancelled tasks comes back to the algorithm."""


class CancelTasks(Struct, frozen=True, eq=False):
    """Cancel tasks. Those that have ended stay as they are."""

    ranges: Sequence[tuple[int, int]]
    """The first id and the count of each range of consecutive ids. The ranges do not overlap."""
    running: Running

    @classmethod
    def of(cls, ids: Sequence[int], running: Running) -> CancelTasks:
        """Cancel the tasks with these ids. Ascending ids make few ranges."""
        firsts, counts, _ = spans_of(ids, [0] * len(ids))
        return cls([*zip(firsts, counts, strict=True)], running)

    @property
    def last(self) -> int:
        """The highest id."""
        return max((first + count - 1 for first, count in self.ranges), default=0)


class GoOn(Struct, frozen=True, eq=False):
    """After a stop because of failures: when all tasks have ended, answer which ones did not run, and go on with the
    tasks that are submitted after this command."""


class HoldResults(Struct, frozen=True, eq=False):
    """Keep the results of those of these tasks that have not ended, because other tasks will refer to them."""

    numbers: Sequence[int]
    """In ascending order."""

    @property
    def last(self) -> int:
        """The highest id."""
        return self.numbers[-1]


class GiveResult(Struct, frozen=True):
    """Keep a result that the algorithm has received and not fetched, because other tasks will refer to it."""

    number: int
    frames: Sequence[Buffer] = ()
    """The encoded value and its large buffers; empty if the task has ended without a value."""
    cause: str = ""
    """Why there is no value: which task did not end well, and why."""
    root: int = 0
    """The id of that task."""


class TakeReports(Struct, frozen=True, eq=False):
    """Give out the newest reports of the tasks that run."""


class ReleaseResults(Struct, frozen=True):
    """The algorithm has fetched these results, so that it submits no more tasks that refer to them."""

    numbers: Sequence[int]
    last: int = 0
    """The id of the last task that was submitted before this command: it may refer to these results."""


class Tell(Struct, frozen=True):
    """Show the user a message, once."""

    text: str


class ShutDown(Struct, frozen=True):
    """End the computation."""

    finished: bool
    """Whether the computation is complete; if not, the agents' jobs stay queued."""
    grace_s: float
    """How long slaves may take to end by themselves."""
    of_maps: int = 0
    """About how many of the tasks that have not ended belong to open maps."""
    unread_maps: int = 0
    """How many maps nobody has asked for a value."""
    returned: bool = True
    """Whether the master algorithm came to its end. Then the user hears of what it has left undone."""


Command = (
    AllocateSlaves
    | CancelTasks
    | DeallocateSlaves
    | EndSoon
    | ExpectTasks
    | FreeSlave
    | GiveResult
    | GoOn
    | HoldResults
    | ReleaseResults
    | RenewSlaves
    | ShutDown
    | TakeReports
    | Tell
)


Asking = CancelTasks | GoOn | HoldResults | TakeReports
"""Commands that the core answers."""


class Waiting(Enum):
    """Whether the master algorithm waits in `mw.loop()`, and for how long."""

    NOT = "not"
    FOR_A_WHILE = "for a while"
    FOREVER = "forever"
