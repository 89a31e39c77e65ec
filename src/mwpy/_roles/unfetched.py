"""How many bytes of results the algorithm has received and not fetched.

The sizes of single results are not known, because the core counts the bytes of whole groups. So each result counts for
the mean of those that wait with it. Nothing is counted per result.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import TYPE_CHECKING

from msgspec import Struct, field

from mwpy._roles.access import Access

if TYPE_CHECKING:
    from mwpy._core.master.core import Actions

__all__ = ["Unfetched"]

SHARE = 8
"""Below one in eight of the bytes that may wait, nothing is counted again. So small results cost nothing."""


class _Waiting(Struct, eq=False):
    """Results that wait together."""

    count: int = 0
    size: int = 0

    def keep(self, count: int) -> None:
        """Only this many wait now."""
        if count < self.count:
            self.count, self.size = count, self.size * count // self.count


class Unfetched(Struct, eq=False):
    """Tells the I/O thread how much was fetched.

    Args:
        most: how many bytes may wait.
    """

    access: Access
    most: int
    _alone: _Waiting = field(default_factory=_Waiting)
    _of_maps: _Waiting = field(default_factory=_Waiting)
    _total: int = 0
    """How many bytes have ever arrived."""
    is_much: bool = False
    """Whether so much may wait that it must be counted."""

    def arrived(self, outcome: Actions, alone: int) -> None:
        """Results arrived. This many of them belong to no map."""
        count = len(outcome.results)
        if outcome.stretches:
            count += sum(stretch.count for stretch in outcome.stretches)
        if count:
            # no call from here on, so that no interrupt comes between
            size, outcome.result_bytes = outcome.result_bytes, 0
            share = size * alone // count
            self._total += size
            self._alone.count += alone
            self._alone.size += share
            self._of_maps.count += count - alone
            self._of_maps.size += size - share
            self.is_much = (self._alone.size + self._of_maps.size) * SHARE > self.most

    def settle(self, alone: Sized) -> None:
        """Count the results that wait. Those outside of maps are `alone`."""
        self._alone.keep(len(alone))
        io = self.access.io
        self._of_maps.keep(sum(tasks.num_waiting for tasks in io.open_maps()))
        waiting = self._alone.size + self._of_maps.size
        self.is_much = waiting * SHARE > self.most
        io.fetched_bytes = self._total - waiting
        if io.holds_back:
            io.link.wake()
