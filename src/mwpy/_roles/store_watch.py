"""Says when the disk of the run database does not answer.

A network file system may be away, or a disk may be overloaded or frozen. A write to it then neither ends nor fails, and
nothing can end it. No result reaches the master algorithm meanwhile, so the user must learn why.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from mwpy._roles.edges import RecordStore

__all__ = ["StoreWatch"]

SHORT_S = 1.0
"""After this many seconds of a write, other reasons why nothing progresses are not reported."""

LONG_S = 5.0
"""A write that takes this many seconds is reported. The manual names this number."""

GROWTH = 3.0
"""Each report comes this many times as late as the one before."""


class StoreWatch(Struct, eq=False):
    """Watches the store of a master. The I/O thread calls it.

    Args:
        store: where records are stored.
        notice: shows the user a message.
    """

    _store: RecordStore
    _notice: Callable[[str], None]
    _due_s: float = LONG_S

    def look(self) -> bool:
        """Say that the disk does not answer, if this is due. Return whether results wait for the disk."""
        delay_s = self._store.delay_s()
        if delay_s < LONG_S:
            self._due_s = LONG_S
        elif delay_s >= self._due_s:
            self._due_s = delay_s * GROWTH
            self._notice(
                f"the run database {self._store.path} has not answered for {delay_s:.0f} s, so new results do not "
                f"reach the master algorithm: is its file system away, or its disk overloaded? mwpy goes on when it "
                f"answers"
            )
        return delay_s >= SHORT_S
