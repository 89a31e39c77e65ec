"""Says when the disk of the run database does not answer, or when the file is not where it was.

A network file system may be away, or a disk may be overloaded or frozen. A write to it then neither ends nor fails, and
nothing can end it. No result reaches the master algorithm meanwhile, so the user must learn why.

A file that was deleted or renamed can be written all the same, and the user must learn that a restart will not find it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from mwpy._roles.edges import RecordStore

if TYPE_CHECKING:
    from pathlib import Path

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
    _missing: Path | None = None
    """The file of which was said last that it is not there."""

    def look(self) -> bool:
        """Say that the file is not where it was, or that the disk does not answer, if this is due. Return whether
        results wait for the disk."""
        missing = self._store.missing()
        if missing is not None and self._missing is None:
            self._notice(
                f"{missing} was deleted, renamed or replaced while the master uses it. The master goes on, but a "
                f"restart with the run database {self._store.path} does not find its results. If the file was renamed, "
                f"or its folder, start again with the new name of the run database. If it was deleted, the results "
                f"in it are lost when the master ends"
            )
        self._missing = missing
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
