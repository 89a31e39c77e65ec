"""The rows of one commit, and their numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from mwpy._database.packing import PackedResults, ResultColumns
from mwpy._values import records
from mwpy._values.bounds import shortened

__all__ = ["COLUMNS", "USED_UP", "Batch", "Maker", "RowNumbers", "StoredGroup", "short"]

USED_UP = 2
"""In place of `may_have_run` in the table `once`: the attempts of the tasks are used up. The row of the table `ends`
with the reason has the number before."""

TEXT_CHARACTERS = 2000
"""The longest message or reason that is kept, in characters. Of a longer one, the middle is left out."""

COLUMNS: dict[str, tuple[str, ...]] = {
    "algorithms": ("number", "name", "reference", "code", "parts"),
    "submissions": ("at", "first", "count", "algorithm", "policy", "keys"),
    "reused": ("at", "first", "count", "algorithm", "failed", "answers", "keys"),
    "allocations": ("at", "sid", "base", "count", "attempt", "attempts", "reason"),
    "once": ("first", "count", "may_have_run"),
    "failures": ("at", "task", "attempt", "sid", "type", "message", "traceback", "arguments"),
    "ends": ("at", "first", "count", "attempt", "state", "sid", "reason"),
    "losses": ("at", "sid", "first", "count", "attempt", "algorithm", "cause", "charged", "lost_s", "reason"),
    "agents": ("at", "agent", "host", "pid", "job", "address", "slaves", "python", "returns_s"),
    "slaves": ("at", "sid", "agent", "kind"),
    "events": ("at", "kind", "text"),
}
"""The columns of the rows in `Batch.rows`, after `seq` and `generation`. If the last one is `keys`, its value is the
place of bytes in `Batch.blob`."""


class StoredGroup(Struct, gc=False):
    """A row of the table `results`."""

    seq: int
    at: float
    sid: str
    columns: ResultColumns
    failed: int
    packed: PackedResults
    generation: int
    """The generation that had sent the tasks to the slave."""
    brought: records.ResultsHandedOver | None = None
    """The record, if an agent has brought these results from a former generation."""


class Batch(Struct, eq=False):
    """The rows of one commit."""

    rows: dict[str, list[list[Any]]] = field(default_factory=lambda: {table: [] for table in COLUMNS})
    """New rows, by table."""
    blob: bytearray = field(default_factory=bytearray)
    """The bytes in these rows."""
    groups: list[StoredGroup] = field(default_factory=list)
    calls: Mapping[int, bytes] = field(default_factory=dict)
    """The encoded arguments of tasks that failed, by id, as far as they are known."""
    changes: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    """Statements that change earlier rows, and their parameters. They follow after all new rows."""


class RowNumbers(Struct, eq=False):
    """Numbers the rows of all tables.

    Args:
        generation: the number of this life of the master.
        seq: the number of the last row that is in the file.
    """

    generation: int
    seq: int = 0

    def next(self) -> int:
        """Return the number of the next row."""
        self.seq += 1
        return self.seq

    def add(self, batch: Batch, table: str, *values: Any, generation: int | None = None) -> None:
        """Add a row to a table.

        Args:
            generation: which one the row is about; None for the present one.
        """
        batch.rows[table].append([self.next(), generation or self.generation, *values])


Maker = Callable[[Any, float, Batch], None]
"""Turns a record into rows; the time of the record is in Unix seconds."""


def short(text: str) -> str:
    """Return a text of limited length that SQLite can store, so without half a surrogate pair."""
    return shortened(text, TEXT_CHARACTERS).encode(errors="replace").decode()
