"""The master of a REPL, a notebook or a plain script: it has its slaves on this machine, and no script of its own."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from mwpy._roles.glance import Glance
from mwpy._system import shadows
from mwpy._transport.codec import Codec
from mwpy._values.policy import Policies
from mwpy.master import Master

if TYPE_CHECKING:
    from mwpy._roles.computation import Computation

__all__ = ["LocalMaster"]


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
