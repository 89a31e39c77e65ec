"""The way from a master algorithm's thread to the I/O thread; it is closed when the computation ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from attrs import define

from mwpy._values.errors import UsageError

if TYPE_CHECKING:
    from mwpy._roles.master_io import MasterIo

__all__ = ["Access"]


class _Ended:
    """Replaces the I/O thread after the end, and raises an error for every use. Otherwise a wait would never end."""

    def __getattr__(self, name: str) -> object:
        raise UsageError("the computation is over, and so is this master: start another (mwpy.local_master, mwpy.main)")


@define(eq=False)
class Access:
    """Holds the I/O thread for all parts of the master that use it."""

    io: MasterIo
    """The I/O thread. Read this attribute for every use, and store neither its value nor parts of it."""

    def close(self) -> None:
        """Make every later use of `io` a `UsageError`."""
        self.io = cast("MasterIo", _Ended())
