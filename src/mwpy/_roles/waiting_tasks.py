"""Tasks that have arrived at a slave and were not started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from mwpy._values.ids import Buffer

__all__ = ["WaitingTasks"]


class WaitingTasks(Struct, frozen=True, eq=False):
    """Tasks of one algorithm that arrived and were not started; see `holding`."""

    first: int
    count: int
    attempt: int
    position: int
    """The position of the first task, counted from 1 in the order in which tasks arrived."""
    number: int
    """The algorithm's number."""
    seconds_max: float | None
    """How long each of the tasks may run; None if they have no limit of time."""
    calls: Sequence[Any]
    buffers: Sequence[Sequence[Buffer]]
    left: Sequence[Buffer] = ()
    """The state that an earlier attempt of the only task left; empty if there is none."""
    shares: Sequence[str] = ()
    """The digests of the shared objects that must be here before a task of their group starts."""
    portion: int = 0
    """If they are run in stretches: what `calls` are, see `packed.py`; else 0."""

    def cut(self, count: int) -> tuple[WaitingTasks, WaitingTasks]:
        """Split into the first `count` tasks and the others."""
        rest = WaitingTasks(
            self.first + count,
            self.count - count,
            self.attempt,
            self.position + count,
            self.number,
            self.seconds_max,
            self.calls[count:],
            self.buffers[count:],
            self.left,
            self.shares,
            self.portion,
        )
        return replace(self, count=count, calls=self.calls[:count], buffers=self.buffers[:count]), rest
