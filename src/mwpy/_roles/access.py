"""The way from a master algorithm's thread to the I/O thread; it is closed when the computation ends.

Only one thread may use a master. Two threads would take each other's results, or wait for each other forever. A process
that is forked from the master's process has a copy of the master, but no I/O thread, so it would wait forever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from mwpy._values.errors import UsageError

if TYPE_CHECKING:
    from mwpy._roles.master_io import MasterIo

__all__ = ["FORKED", "USED_BY_A_TASK", "Access"]

USED_BY_A_TASK = "a task cannot use the master: return from the task what the master should do"

OVER = "the computation is over, and so is this master: start another (mwpy.local_master, mwpy.main)"

FORKED = (
    "this process was forked from the process of the master and has only a copy of the master: use the master in the "
    "process that made it, or start another one here with mwpy.local_master"
)


class _Refusal:
    """Replaces the I/O thread where it must not be used, and raises an error for every use.

    Args:
        reason: the text of the error.
    """

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> object:
        raise UsageError(self._reason)


class Access(threading.local):
    """Holds the I/O thread for all parts of the master that use it.

    Each thread has its own attributes here, because this costs each submission less than a comparison of threads.
    Python calls `__init__` with the same arguments when another thread uses this object for the first time.

    Args:
        io: the I/O thread.
        owner: the thread that may use it.
        drive: runs tasks in this thread until there is an outcome, for a timeout in seconds or None; None if slaves run
            them.
    """

    io: MasterIo
    """The I/O thread. Read this attribute for every use, and store neither its value nor parts of it."""
    usable: bool
    """Whether this thread may use `io`: it is the owner, and the computation is not over."""

    def __init__(
        self, io: MasterIo, owner: threading.Thread, drive: Callable[[float | None], None] | None = None
    ) -> None:
        user = threading.current_thread()
        refusal = _Refusal(
            f"this master belongs to the thread {owner.name}, and the thread {user.name} uses it: let {owner.name} do "
            f"this, give the other threads an executor of this master (mw.executor), or start a master in each thread "
            f"with mwpy.local_master"
        )
        self.drive = drive
        self.usable = user is owner
        self.io = io if self.usable else cast("MasterIo", refusal)

    def check(self) -> None:
        """Check that this thread may use the master, for what needs no `io`.

        Raises:
            UsageError: it may not; the caller's fault.
        """
        assert self.io.core is not None

    def close(self, reason: str = OVER) -> None:
        """Make every later use of `io` in this thread a `UsageError` with this text."""
        self.usable = False
        self.io = cast("MasterIo", _Refusal(reason))
