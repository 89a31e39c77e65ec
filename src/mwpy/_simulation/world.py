"""The simulated world: its time, its random numbers, and its next events."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from functools import partial
from math import inf


class World:
    """Runs events in the order of their times. It is also the clock of everything that is simulated.

    Args:
        seed: names the history.
        faulty_s: when faults end.
        now: when the history begins.
    """

    def __init__(self, seed: int, faulty_s: float, now: float) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now = now
        self.transcript: list[str] = []
        self.seconds: dict[int, float] = {}
        """How long tasks take, in seconds, for tasks of which a test decides this. Chance decides for all others."""
        self._faulty_s = faulty_s
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0

    @property
    def faulty(self) -> bool:
        """Whether faults still happen."""
        return self.now < self._faulty_s

    def chance(self, probability: float) -> bool:
        """Whether a fault of this probability happens now."""
        return self.now < self._faulty_s and self.random.random() < probability

    def after(self, delay: float, event: Callable[[], None]) -> None:
        """Let an event happen in `delay` seconds."""
        self.at(self.now + delay, event)

    def at(self, time: float, event: Callable[[], None]) -> None:
        """Let an event happen at this time. Events at the same time happen in the order of their calls of `at`."""
        self._sequence += 1
        heapq.heappush(self._events, (time, self._sequence, event))

    @property
    def next_at(self) -> float:
        """When the next event happens; infinity if there is none."""
        return self._events[0][0] if self._events else float("inf")

    def step(self) -> None:
        """Let the next event happen."""
        self.now, _, event = heapq.heappop(self._events)
        event()

    def note(self, text: str) -> None:
        """Add a line to the transcript."""
        self.transcript.append(f"{self.now:10.4f} {text}")

    # ---- the clock -----------------------------------------------------------------------------------------

    def monotonic(self) -> float:
        """The simulated time."""
        return self.now

    wall = monotonic

    def sleep(self, seconds: float, /) -> None:
        """Return at once: no other event happens during a sleep."""


class Alarm:
    """Wakes a loop at the earliest time that was set. After that, it must be set again.

    Args:
        world: the time.
        ring: makes the loop iterate.
    """

    def __init__(self, world: World, ring: Callable[[], None]) -> None:
        self._world = world
        self._ring = ring
        self._rings_at = inf
        self._number = 0
        """Number of the event that counts; older ones do nothing."""

    def set(self, time: float) -> None:
        """Ring at this time, unless it is set to an earlier time."""
        if time < self._rings_at:
            self._rings_at = time
            self._number += 1
            self._world.at(time, partial(self._happen, self._number))

    def _happen(self, number: int) -> None:
        if number == self._number:
            self._rings_at = inf
            self._ring()
