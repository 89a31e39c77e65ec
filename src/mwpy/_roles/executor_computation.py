"""The computation of an executor: one of its own, or one that a master algorithm has opened."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, cast

from msgspec import Struct

from mwpy._core.master.commands import CancelTasks, Running
from mwpy._roles.access import Access
from mwpy._roles.computation import Computation
from mwpy._roles.executor_io import ExecutorIo, Owner
from mwpy._roles.master_io import MasterIo
from mwpy._roles.parts import MasterParts
from mwpy._transport.codec import Codec
from mwpy._values.policy import Policies

__all__ = ["ExecutorComputation", "OwnComputation", "SharedComputation"]


class ExecutorComputation(Protocol):
    """What the thread of an executor has of its computation."""

    def begin(self, owner: Owner, policy: Policies) -> MasterParts:
        """Begin to use the computation, in the thread of the executor.

        Args:
            owner: the executor.
            policy: the policies of all its tasks.

        Raises:
            MwpyError: it cannot start.
        """

    def end(self, finished: bool) -> None:
        """Use the computation no more. If it did not begin, do nothing.

        Args:
            finished: whether all tasks have ended.
        """


class OwnComputation(Struct, eq=False):
    """A computation that begins and ends with its executor.

    Args:
        start: starts it.
        codec: pickles what its tasks need.
    """

    _start: Callable[[], Computation]
    _codec: Codec
    _computation: Computation | None = None

    def begin(self, owner: Owner, policy: Policies) -> MasterParts:  # noqa: ARG002  # all tasks are those of the owner
        self._computation = self._start()
        return MasterParts.of(self._computation.access, self._codec, for_all=policy)

    def end(self, finished: bool) -> None:
        if self._computation is not None:
            self._computation.end(finished)


class SharedComputation(Struct, eq=False):
    """The computation of a master algorithm. It goes on until the master and all its executors have ended.

    Args:
        master: the parts of the master.
        io: its I/O thread.
    """

    _master: MasterParts | None
    _io: MasterIo
    _parts: MasterParts | None = None

    def begin(self, owner: Owner, policy: Policies) -> MasterParts:
        master = self._master
        assert master is not None
        own = ExecutorIo(self._io, owner)
        access = Access(cast(MasterIo, own), threading.current_thread())
        policies = cast(Policies, {**master.terms.for_all, **policy})
        self._parts = MasterParts.of(access, master.codec, policies, master.inbox.failed)
        self._io.executors.begin(own)
        return self._parts

    def end(self, finished: bool) -> None:
        if self._parts is None:
            return
        access = self._parts.access
        try:
            if finished:  # the answer comes behind all records of `logging`
                self._parts.inbox.ask(CancelTasks([], Running.KILL))
            access.io.progress.end_all()
        finally:
            self._io.executors.end(cast(ExecutorIo, access.io))
            access.close()
            self._master = None  # last, because this may end the computation
