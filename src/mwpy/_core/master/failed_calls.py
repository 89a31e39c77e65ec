"""The calls of tasks that failed, to run them again in the master's process.

The core gives them out with the failed results. The master's process keeps the newest of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from mwpy._values.ids import Buffer
from mwpy._values.records import AlgorithmDefined

__all__ = ["KEPT_BYTES", "KEPT_CALLS", "FailedCall", "FailedCalls"]

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


class FailedCalls(Struct, eq=False):
    """The newest calls of one master that failed."""

    _calls: dict[int, FailedCall] = field(default_factory=dict)
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
