"""The task algorithms that the master knows, and the calls of them that failed last.

An algorithm that travels by name costs almost nothing. An algorithm that travels by value is a pickle, and a program
may use another one for each task. So the master forgets algorithms by value: those without runnable tasks, least
recently used first, as soon as all of them exceed a limit. `Definitions` decides this. If the same function comes
again, it is defined again.

Two threads use a `Defined`: the thread of the master algorithm makes it, and adds tasks; the core's thread keeps the
other counts. Each count is written by one thread, and is read as one number. So no lock is needed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from attrs import Factory, define
from msgspec import Struct
from msgspec.structs import replace

from mwpy._values.bounds import Buffer
from mwpy._values.records import AlgorithmDefined, AlgorithmsForgotten
from mwpy._values.shares import SharedObject

OVERHEAD_BYTES = 4096
"""What a function by value costs a process beside its pickle: the objects of the function, and entries in tables."""


class Defined:
    """A task algorithm of a master, and the counts of its tasks.

    Args:
        record: its definition.
        shares: the shared objects that the function has captured, if it travels by value.
    """

    def __init__(self, record: AlgorithmDefined, shares: Sequence[SharedObject] = ()) -> None:
        self.record = record
        self.shares = shares
        self.number = record.definition.number
        self.name = record.definition.name
        size = OVERHEAD_BYTES + len(record.packed) + sum(each.share.size for each in shares)
        self.size = 0 if record.definition.reference else size
        """How many bytes a process needs to keep it; 0 if it travels by name."""
        self.added = 0
        """How many of its tasks were ever submitted, without those of the batch that is still open."""
        self.away = 0
        """How many of its tasks are not pending any more: they are at slaves, are delayed, or have ended."""
        self.runnable = 0
        """How many of its tasks are in the core and have not ended."""
        self.blocked = 0
        """How many of its tasks wait for the results of others."""
        self.refused = False
        """Whether some agent ever reported that its slaves cannot run it."""
        self.differs = False
        """Whether a slave ever reported other values than the master's of variables that it uses."""
        self.compare_at = 0.0
        """When the algorithm's thread compares the master's values again with those of the definition, on its clock."""
        self.leaves_state = False
        """Whether one of its tasks ever left a state for its next attempt. Then an attempt is useful even if it does
        not finish, so no task of it is held back because an agent has too little time left."""
        self.succeeded = 0
        """How many of its tasks have returned a value."""
        self.succeeded_s = 0.0
        """How long these tasks ran, together."""

    def succeed(self, count: int, seconds: float) -> None:
        """Tasks of it have returned values. Together they ran for `seconds`."""
        self.succeeded += count
        self.succeeded_s += seconds

    @property
    def mean_s(self) -> float | None:
        """How long a task of it takes on average, in seconds; None if none has returned a value."""
        return self.succeeded_s / self.succeeded if self.succeeded else None


@define(eq=False, repr=False)
class Algorithms:
    """All algorithms that the core knows. Only the taskjar changes them."""

    defined: dict[int, Defined] = Factory(dict)
    """The algorithms, by number."""
    size: int = 0
    """The sizes of all algorithms, in bytes."""
    idle: OrderedDict[int, None] = Factory(OrderedDict)
    """Algorithms by value without runnable tasks; the first one has been idle for the longest time."""
    highest: int = -1
    """The highest number that was ever defined."""
    packages: dict[str, str] = Factory(dict)
    """The packages that algorithms ever named, and the master's versions of them."""

    def add(self, record: AlgorithmDefined) -> None:
        """Add an algorithm."""
        defined = self.defined[record.definition.number] = Defined(record)
        self.size += defined.size
        self.highest = max(self.highest, defined.number)
        self.packages |= record.definition.packages
        self._note_idle(defined)

    def adopt(self, defined: Defined) -> None:
        """Use an object of the algorithm's thread for an algorithm that was just recorded: its counts are shared."""
        defined.leaves_state = False  # it may have been forgotten before, and the records say the same
        self.size += defined.size - self.defined[defined.number].size  # records have no shared objects
        self.defined[defined.number] = defined

    def forget(self, record: AlgorithmsForgotten) -> None:
        """Remove idle algorithms."""
        for number in record.numbers:
            self.size -= self.defined.pop(number).size
            del self.idle[number]

    def begin(self, defined: Defined, count: int) -> None:
        """An algorithm has more runnable tasks."""
        if not defined.runnable and defined.size:
            del self.idle[defined.number]
        defined.runnable += count

    def end(self, defined: Defined, count: int) -> None:
        """An algorithm has fewer runnable tasks."""
        defined.runnable -= count
        if not defined.runnable:
            self._note_idle(defined)

    def _note_idle(self, defined: Defined) -> None:
        if defined.size:
            self.idle[defined.number] = None

    def check(self, runnable: dict[int, int], blocked: dict[int, int]) -> None:
        """Recompute all derived values.

        Args:
            runnable: how many runnable tasks each algorithm has, by number; no number is zero.
            blocked: how many of them are blocked.
        """
        assert self.size == sum(defined.size for defined in self.defined.values()), "the sizes were added up wrongly"
        assert runnable == {n: each.runnable for n, each in self.defined.items() if each.runnable}, "tasks miscounted"
        assert blocked == {n: each.blocked for n, each in self.defined.items() if each.blocked}, "tasks miscounted"
        idle = {number for number, each in self.defined.items() if each.size and not each.runnable}
        assert idle == self.idle.keys(), "an algorithm is idle and has tasks, or has none and is not idle"


# The calls of tasks that failed, to run them again in the master's process.
#
# The core gives them out with the failed results. The master's process keeps the newest of them.


KEPT_CALLS = 1000
"""How many calls are kept. People look at few failures."""

KEPT_BYTES = 64 << 20
"""How many bytes of arguments and of functions by value are kept."""


class FailedCall(Struct, frozen=True):
    """The call of a task that failed."""

    task_id: int
    algorithm: AlgorithmDefined
    payload: bytes
    """The encoded arguments."""
    buffers: Sequence[Buffer]

    @property
    def size(self) -> int:
        """How many bytes it needs."""
        return len(self.algorithm.packed) + len(self.payload) + sum(map(len, self.buffers))


@define(eq=False, repr=False)
class FailedCalls:
    """The newest calls of one master that failed."""

    _calls: dict[int, FailedCall] = Factory(dict)
    _size: int = 0

    def keep(self, call: FailedCall) -> None:
        """Keep a call instead of another one with the same id, and forget the oldest ones if there are too many.

        The objects to which it refers are not kept with it.
        """
        call = replace(call, buffers=[*call.buffers])
        if (other := self._calls.pop(call.task_id, None)) is not None:
            self._size -= other.size
        self._calls[call.task_id] = call
        self._size += call.size
        while len(self._calls) > KEPT_CALLS or self._size > KEPT_BYTES:
            oldest = next(iter(self._calls))
            self._size -= self._calls.pop(oldest).size

    def get(self, task_id: int) -> FailedCall | None:
        """Return the call of a task, if it is kept."""
        return self._calls.get(task_id)
