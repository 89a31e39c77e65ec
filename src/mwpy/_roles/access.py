"""The way from a master algorithm's thread to the I/O thread; it is closed when the computation ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from attrs import define

from mwpy._values.errors import UsageError

if TYPE_CHECKING:
    from mwpy._roles.master_io import MasterIo

__all__ = ["Access"]


class _Ended:
    """Raises an error for every use: without an I/O thread, a wait would never end."""

    def __getattr__(self, name: str) -> object:
        raise UsageError("the computation is over, and so is this master: start another (mwpy.local_master, mwpy.main)")


@define(eq=False)
class Access:
    """Holds the I/O thread for everything that works for the master algorithm."""

    io: MasterIo
    """Look this up for every use, and keep no reference to it or to its parts."""

    def close(self) -> None:
        """Make every later use of `io` a `UsageError`."""
        self.io = cast("MasterIo", _Ended())
