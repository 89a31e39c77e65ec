"""The first page of a run database that was overwritten: it is made again.

This page says where each table begins. Without it, SQLite reads nothing. But the statements of `schema.py` always give
the same pages to the tables of a new file, and so does `VACUUM`. So a file is recognised by what is on these pages, and
its first page is replaced by one that names them. A file that an older mwpy made and a newer one upgraded has its
tables elsewhere; nothing can be read of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

from mwpy._database.connection import connected, in_memory

__all__ = ["PAGE_BYTES", "layout_of", "replace", "tables"]

PAGE_BYTES = 4096
"""The size of a page of the file. The first page has the number of all pages."""

BEGINS = {"table": (b"\x05", b"\x0d"), "index": (b"\x02", b"\x0a")}
"""With which byte the first page of a table or of an index begins."""


class _Beginning(NamedTuple):
    """Where a table or an index begins."""

    kind: str
    name: str
    page: int


def layout_of(path: Path) -> Sequence[_Beginning] | None:
    """Return where the tables of a file begin, if it has tables and indexes exactly where a run database has them."""
    with path.open("rb") as file:
        for layout in _layouts():
            if all(_begins(file, beginning) for beginning in layout):
                return layout
    return None


def _begins(file: BinaryIO, beginning: _Beginning) -> bool:
    file.seek((beginning.page - 1) * PAGE_BYTES)
    return file.read(1) in BEGINS[beginning.kind]


def replace(path: Path, layout: Sequence[_Beginning]) -> None:
    """Let the first page of a file name the tables of a run database, so that their rows can be read.

    Raises:
        RunDatabaseError: the file cannot be written.
    """
    with closing(in_memory(PAGE_BYTES)) as empty:
        empty.run("CREATE TABLE t (c)")
        empty.run("DROP TABLE t")
        first = bytearray(empty.content()[:PAGE_BYTES])
    first[28:32] = (path.stat().st_size // PAGE_BYTES).to_bytes(4, "big")
    first[32:40] = bytes(8)  # no pages are free
    with path.open("r+b") as file:
        file.write(first)
    with closing(connected(path, "rw")) as connection:
        connection.run("PRAGMA writable_schema = ON")
        for kind, name, page in layout:
            if kind == "table":
                made = "INSERT INTO sqlite_master (type, name, tbl_name, rootpage, sql) VALUES (?, ?, ?, ?, ?)"
                connection.run(made, (kind, name, name, page, tables()[name]))


@cache
def tables() -> dict[str, str]:
    """Return how each table is made, without indexes and constraints."""
    found = dict[str, str]()
    with closing(in_memory(PAGE_BYTES)) as made:
        made.upgrade()
        for kind, name, _ in _layouts()[0]:
            if kind == "table":
                columns = made.rows("SELECT name, pk FROM pragma_table_info(?)", (name,))
                named = ", ".join(f"{column} INTEGER PRIMARY KEY" if key else column for column, key in columns)
                found[name] = f"CREATE TABLE {name} ({named})"
    return found


@cache
def _layouts() -> list[list[_Beginning]]:
    """Where the tables and indexes begin: those of a new run database, and those of one that was pruned."""
    found = []
    with closing(in_memory(PAGE_BYTES)) as made:
        made.upgrade()
        for _ in range(2):
            rows = made.rows("SELECT type, name, rootpage FROM sqlite_master WHERE rootpage > 0")
            found.append([_Beginning(*row) for row in rows])
            made.run("VACUUM")
    return found
