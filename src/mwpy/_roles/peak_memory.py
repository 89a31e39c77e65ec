"""The most memory that a slave uses for each algorithm.

The kernel keeps the highest mark of the resident memory, which no sample can miss. The mark begins again when tasks of
another algorithm begin. It contains everything that is resident: the libraries, the shared objects that the tasks use,
and what earlier tasks have left. A batch system counts nearly the same.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, field

from mwpy._system import memory

__all__ = ["PeakMemory"]

NEWS = 1.02
"""A peak is sent again when it is this many times as high."""


class PeakMemory(Struct, eq=False):
    """Finds peaks, and sends those that are higher than before.

    Args:
        send: sends the number of an algorithm, and the bytes.
    """

    send: Callable[[int, int], None]
    _running: int | None = None
    """The number of the algorithm whose tasks run."""
    _known: dict[int, int] = field(default_factory=dict)
    """The highest peak of each algorithm that was sent."""
    _programs: int = 0
    """The highest peak of a program when the tasks of this algorithm began."""

    def switch(self, algorithm: int) -> None:
        """Tasks of this algorithm run from now on."""
        if algorithm == self._running:
            return
        self.look()
        self._running = algorithm
        self._programs = memory.program_bytes()
        if memory.peak_bytes(self._known.get(algorithm, 0)):
            memory.forget_peak()

    def look(self) -> None:
        """Send the peak of the algorithm whose tasks have run, if it is higher than before."""
        if self._running is None:
            return
        known = int(self._known.get(self._running, 0) * NEWS)
        programs = memory.program_bytes()
        peak = max(memory.peak_bytes(known), programs if programs > self._programs else 0)
        if peak > known:
            self._known[self._running] = peak
            self.send(self._running, peak)

    def forget_all(self) -> None:
        """Another generation of the master gives its algorithms other numbers."""
        self._running = None
        self._known.clear()
