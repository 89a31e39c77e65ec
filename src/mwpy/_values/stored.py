"""Results whose values are in the run database. A value is read when it is asked for, in the thread that asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from mwpy._values.ids import Buffer


class StoredAt(Struct, frozen=True):
    """Where a value is."""

    row: int
    place: int
    """The place of the value in the results of the row."""
    read: Callable[[int, int], tuple[Any, Sequence[Buffer]]]
    """Reads the entry of a value and its large buffers; its arguments are `row` and `place`."""

    def load(self) -> tuple[Any, Sequence[Buffer]]:
        """Read the entry of the value and its large buffers, as they arrived.

        Raises:
            MwpyError: the file cannot be read.
        """
        return self.read(self.row, self.place)
