"""The master of a REPL, a notebook or a plain script: it has its slaves on this machine, and no script of its own."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from mwpy._roles.master_io import MasterIo
from mwpy._system import clock, shadows
from mwpy._transport.codec import Codec
from mwpy._values.phrases import counted
from mwpy._values.policy import Policies
from mwpy.master import Master

if TYPE_CHECKING:
    from mwpy._roles.computation import Computation
    from mwpy._roles.own_overseer import OwnOverseer

__all__ = ["LocalMaster"]


# What a master shows of itself: its slaves, its tasks, its rate and its last failure, as text.
#
# The figures are those that the core keeps anyway. They are read in the thread of the master algorithm while the I/O
# thread changes them, so a figure may be one group of tasks behind another one.


def _shown(io: MasterIo, is_closed: bool) -> str:
    """Show a master, also after its end and to threads that cannot use it."""
    jar, answers = io.core.state.jar, io.core.answers
    failed, cancelled, ended = jar.failed, jar.cancelled, jar.ended
    running = sum(bool(held.spans) for held in list(jar.held.values()))
    waiting, done = max(0, io.submissions.total - ended - running), max(0, ended - failed - cancelled)
    state = "closed" if is_closed else counted(io.num_slaves, "slave")
    tasks = f"{waiting} waiting, {running} running, {done} done, {failed} failed, {cancelled} cancelled"
    rate = 0.0 if is_closed else answers.rate.at(clock.monotonic())
    last = "".join(map(str, list(answers.failures.newest.values())[-1:]))
    failure = f"; last failure: {last}" if last else ""
    return f"<mwpy: {state}; tasks: {tasks}, {rate:.3g} per second{failure}>"


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

    def __init__(
        self, computation: Computation, codec: Codec, policy: Policies, overseer: OwnOverseer | None = None
    ) -> None:
        super().__init__(computation.access, codec, for_all=policy)
        self._computation = computation
        self._overseer = overseer
        self._io = computation.access.io
        self._is_closed = False
        if overseer is not None:
            try:
                overseer.start()
            except BaseException:
                computation.end(False)
                raise

    def close(self) -> None:
        """End the computation and its slaves. A second call does nothing.

        Tasks that have not ended are lost, except those of `executor`: this call waits for them.

        Raises:
            UsageError: another thread made this master.
        """
        self._end(finished=True)

    def __repr__(self) -> str:
        return _shown(self._io, self._is_closed)

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
            if finished and not self._is_closed:
                self._computation.end_executors(give_up=False)
            ended = finished
        finally:
            self._computation.end(ended)
            if self._overseer is not None and not self._is_closed:
                self._overseer.end()
            self._is_closed = True
