"""The master of a REPL, a notebook or a plain script: it has its slaves on this machine, and no script of its own."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from msgspec import Struct

from mwpy._roles.master_io import MasterIo
from mwpy._system import clock, shadows
from mwpy._transport.codec import Codec
from mwpy._values.phrases import counted
from mwpy._values.policy import Policies
from mwpy.master import Master

if TYPE_CHECKING:
    from mwpy._roles.computation import Computation

__all__ = ["LocalMaster"]


# What a master shows of itself: its slaves, its tasks, its rate and its last failure, as text.
#
# The figures are those that the core keeps anyway. They are read in the thread of the master algorithm while the I/O
# thread changes them, so a figure may be one group of tasks behind another one.


class Standing(Struct, frozen=True):
    """How a computation stands at one moment."""

    slaves: int
    waiting: int
    """How many tasks were submitted, have not ended, and do not run."""
    running: int
    done: int
    failed: int
    """How many tasks failed or are unrunnable."""
    cancelled: int
    """How many tasks were cancelled, or failed because of a task that they refer to."""
    rate: float
    """How many tasks ended in a second, in the last minute."""
    last_failure: str
    """How the last task failed; empty if none has failed."""

    def named(self) -> Iterator[tuple[str, int]]:
        """The numbers of tasks with their names."""
        for name in ("waiting", "running", "done", "failed", "cancelled"):
            yield name, getattr(self, name)


class Glance(Struct, eq=False):
    """Shows a master, also after its end and to threads that cannot use it."""

    _io: MasterIo
    closed: bool = False

    def figures(self) -> Standing:
        """The figures of this moment."""
        core = self._io.core
        jar, report = core.state.jar, core.inquiries.report
        failed, cancelled, ended = jar.failed, jar.cancelled, jar.ended
        running = sum(bool(held.spans) for held in list(jar.held.values()))
        waiting = max(0, self._io.submissions.total - ended - running)
        slaves, rate = (0, 0.0) if self.closed else (self._io.num_slaves, report.rate.at(clock.monotonic()))
        last = list(report.failures.newest.values())[-1:]
        done = max(0, ended - failed - cancelled)
        return Standing(slaves, waiting, running, done, failed, cancelled, rate, "".join(map(str, last)))

    def text(self) -> str:
        """Return the figures in one line."""
        figures = self.figures()
        tasks = ", ".join(f"{number} {name}" for name, number in figures.named())
        last = f"; last failure: {figures.last_failure}" if figures.last_failure else ""
        return f"<mwpy: {self._state(figures)}; tasks: {tasks}, {figures.rate:.3g} per second{last}>"

    def _state(self, figures: Standing) -> str:
        return "closed" if self.closed else counted(figures.slaves, "slave")


class LocalMaster(Master):
    """A master with slaves on this machine. Made by `mwpy.local_master`, or by `mwpy.open`, which is the same function.

    Its slaves end with the `with` block. Without a block, they end with `close()`, when nothing refers to the master
    any more, or with this process.

    Examples:
        >>> mw = mwpy.local_master(slaves=2)                   # doctest: +SKIP
        >>> sum(mw.map(square, range(100)))                    # doctest: +SKIP
        328350
        >>> mw                                                 # doctest: +SKIP
        <mwpy: 2 slaves; tasks: 0 waiting, 0 running, 100 done, 0 failed, 0 cancelled, 950 per second>
        >>> mw.close()                                         # doctest: +SKIP
    """

    def __init__(self, computation: Computation, codec: Codec, policy: Policies) -> None:
        super().__init__(computation.access, codec, for_all=policy)
        self._computation = computation
        self._glance = Glance(computation.access.io)

    def close(self) -> None:
        """End the computation and its slaves. A second call does nothing.

        Tasks that have not ended are lost, except those of `executor`: this call waits for them.

        Raises:
            UsageError: another thread made this master.
        """
        self._end(finished=True)

    def __repr__(self) -> str:
        return self._glance.text()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            shadows.explain(error)
        self._end(finished=error is None)

    def _end(self, finished: bool) -> None:
        ended = False
        try:
            if finished and not self._glance.closed:
                self._computation.end_executors(give_up=False)
            ended = finished
        finally:
            self._computation.end(ended)
            self._glance.closed = True
