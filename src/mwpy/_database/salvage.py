"""Saves what can be read of a damaged run database, such as one that was cut off.

The damaged file is kept as FILE.damaged. Rows are read from both ends of each table up to the damage. A row of results
counts only if its checksum is right. Whatever is missing runs again.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mwpy._database.connection import Connection, open_damaged, open_for_writing
from mwpy._database.packing import unpack
from mwpy._database.schema import TABLES_BY_SEQ
from mwpy._values.errors import RunDatabaseError

__all__ = ["salvage"]

LOGS = ("-wal", "-shm")


def salvage(path: Path) -> str:
    """Replace a damaged run database by one with what can be read of it. Return a message about it."""
    damaged, saved = path.with_name(f"{path.name}.damaged"), path.with_name(f".{path.name}.saved")
    copy = path.with_name(f".{path.name}.copy")
    _remove(saved, copy)
    for suffix in ("", "-wal"):
        if Path(f"{path}{suffix}").exists():
            shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
    try:
        rows = _copy_rows(copy, saved)
        for suffix in ("", "-wal"):
            if Path(f"{path}{suffix}").exists():
                Path(f"{path}{suffix}").replace(f"{damaged}{suffix}")
        saved.replace(path)
    finally:
        _remove(saved, copy)
    used = "What could be read of it is used, and the other tasks run again" if rows else "Nothing of it could be read"
    return (
        f"the run database {path} was damaged. {used}. The damaged file is {damaged}: delete it if you do not need it"
    )


def _remove(*files: Path) -> None:
    for file in files:
        for suffix in ("", *LOGS):
            Path(f"{file}{suffix}").unlink(missing_ok=True)


def _copy_rows(source: Path, target: Path) -> int:
    """Copy all rows that can be read, and return how many there are."""
    old = open_damaged(source)
    try:
        new = open_for_writing(target, exclusive=True, full=True)
        try:
            with new.transaction():
                return sum(_copy_table(old, new, table) for table in ("generations", *TABLES_BY_SEQ))
        finally:
            new.close()
    finally:
        old.close()


def _copy_table(old: Connection, new: Connection, table: str) -> int:
    names, _ = new.named_rows(f"SELECT * FROM {table} LIMIT 0")
    statement = f"INSERT OR IGNORE INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
    count, seen = 0, 0
    for order in ("ASC", "DESC"):
        query = f"SELECT {', '.join(names)} FROM {table} ORDER BY {names[0]} {order}"
        for row in _until_damage(old, query):
            if order == "DESC" and row[0] <= seen:
                break
            seen = max(seen, row[0]) if order == "ASC" else seen
            if table != "results" or _is_right(dict(zip(names, row, strict=True))):
                new.run(statement, row)
                count += 1
    return count


def _until_damage(old: Connection, query: str) -> Iterator[tuple[Any, ...]]:
    try:
        yield from old.each_row(query)
    except RunDatabaseError:  # the damage; or the table itself is lost
        return


def _is_right(row: dict[str, Any]) -> bool:
    if row["file"] is not None:
        return True  # its value is checked when it is read
    try:
        unpack(row["head"], row["frames"] or b"", row["checksum"])
    except RunDatabaseError:
        return False
    return True
