"""The results of portions that wait in a simulated slave, outside of its journal; see `_roles/stretches.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct, field

from mwpy._roles.stretches import SHORT_S, STRETCH_S
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
    silent_from: float = 0.0
    """Since when the agent has heard nothing, as far as the slave knows."""
    _results: list[tuple[int, int, float, bool, bytes]] = field(default_factory=list)
    """Task, attempt and seconds of each result, whether it is a failure, and what it is."""

    def add(self, task: int, attempt: int, seconds: float, entry: bytes, *, failed: bool) -> None:
        """A task of a portion has returned a value, or has raised an exception."""
        self._results.append((task, attempt, seconds, failed, entry))

    def is_due(self) -> bool:
        """Whether the results are sent now. A failure does not wait."""
        *_, (_, _, seconds, failed, _) = self._results
        every_s = STRETCH_S if seconds <= SHORT_S else STRETCH_S / 2
        return failed or self._world.now // every_s > self.silent_from // every_s

    def waits(self, task: int, attempt: int) -> bool:
        """Whether the result of a task waits here."""
        return any(result[:2] == (task, attempt) for result in self._results)

    def send(self) -> bool:
        """Send the results. Often only the sum of their times is known. Return whether there were any."""
        if not self._results:
            return False
        tasks, attempts, times, failures, entries = zip(*self._results, strict=True)
        seconds = [*times] if self._world.random.random() < 0.5 else [sum(times)]
        failed = [place for place, is_failure in enumerate(failures) if is_failure]
        spans = groups.spans_of(tasks, attempts)
        are_plain = not failed and len(tasks) % 5 > 0  # sometimes one of the values is a pickle
        group = messages.Results(self._number, *spans, seconds, failed, plain=are_plain)
        self._send(group, [groups.payload(len(tasks), entries)])
        self._results.clear()
        self.silent_from = self._world.now
        return True
