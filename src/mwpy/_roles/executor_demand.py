"""How many slaves an executor wants from a batch system.

Most tasks of an executor are not with its master, so the master must be asked to want slaves for them, too.
"""

from __future__ import annotations

from msgspec import Struct

from mwpy._core.master.commands import ExpectTasks
from mwpy._roles.master_io import MasterIo

__all__ = ["Demand"]


class Demand(Struct, eq=False):
    """The tasks in the queue of an executor, as far as its master knows them.

    Args:
        most: for how many tasks there can be a slave; 0 if the number of slaves is fixed.
    """

    most: int = 0
    _expected: int = 0

    def settle(self, io: MasterIo, waiting: int) -> None:
        """This number of tasks waits in the queue."""
        expected = min(self.most, waiting)
        if expected != self._expected:
            io.command(ExpectTasks(expected - self._expected))
            self._expected = expected
