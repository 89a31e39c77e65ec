"""How many tasks of an executor have ended, for its progress."""

from __future__ import annotations

from collections.abc import Sized
from concurrent.futures import Future
from typing import Any

from msgspec import Struct

from mwpy._roles.meter import Figures
from mwpy._values.task import Result, failed

__all__ = ["Counts"]


class Counts(Struct, eq=False):
    """Counts the tasks that have ended."""

    ended: int = 0
    failed: int = 0

    def note(self, result: Result[Any], future: Future[Any]) -> None:
        """A task has ended. If it was cancelled, it has not failed."""
        self.ended += 1
        self.failed += failed(result) and not future.cancelled()

    def figures(self, sent: Sized, waiting: Sized, slaves: int) -> Figures:
        """What the progress shows if some tasks have been sent to the master, and others wait."""
        return Figures(self.ended, self.ended + len(sent) + len(waiting), self.failed, slaves)
