"""The results of portions that wait in a simulated slave, outside of its journal; see `_roles/stretches.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct, field

from mwpy._simulation.world import World
from mwpy._values import groups, messages
from mwpy._values.ids import Buffer

__all__ = ["SimulatedStretch"]


class SimulatedStretch(Struct, eq=False):
    """The results of one stretch.

    Args:
        number: the number of the slave.
        send: sends a message.
    """

    _world: World
    _number: int
    _send: Callable[[messages.Message, Sequence[Buffer]], None]
    positions: dict[int, None] = field(default_factory=dict)
    """The positions of the tasks of portions."""
    _results: list[tuple[int, int, float, bytes]] = field(default_factory=list)
    """Task, attempt, seconds and value of each result."""

    def add(self, task: int, attempt: int, seconds: float, entry: bytes) -> None:
        """A task of a portion has returned a value."""
        self._results.append((task, attempt, seconds, entry))

    def send(self) -> bool:
        """Send the results. Often only the sum of their times is known. Return whether there were any."""
        if not self._results:
            return False
        tasks, attempts, times, entries = zip(*self._results, strict=True)
        seconds = [*times] if self._world.random.random() < 0.5 else [sum(times)]
        group = messages.Results(self._number, *groups.spans_of(tasks, attempts), seconds, [], plain=True)
        self._send(group, [groups.payload(len(tasks), entries)])
        self._results.clear()
        return True
