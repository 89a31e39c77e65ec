"""Saves what can be read of a damaged run database, such as one that was cut off.

Rows are read from both ends of each table up to the damage. A row of results counts only if its checksum is right.
Whatever is missing runs again. The damaged file is kept as FILE.damaged.

A kill or a power loss may come at any moment, so FILE exists at all times, and is the damaged file or the new one. The
log of the damaged file must not be beside the new file, because SQLite would add it there. Without its log, the damaged
file has less to save. So the log is deleted only when the new file is on the disk, under a name that says which file it
replaces. If that file is found at the next start, the replacement is completed.

SQLite notices damage only where it reads. A master that finds damage leaves a mark, and what can be read is saved when
the file is opened the next time: at once, if a restart finds it while it reads former answers; else at the next start.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mwpy._database.connection import Connection
from mwpy._database.opening import open_damaged, open_for_writing
from mwpy._database.packing import unpack
from mwpy._database.schema import TABLES_BY_SEQ
from mwpy._database.value_files import sync_folder
from mwpy._values.errors import RunDatabaseError

__all__ = ["complete_salvage", "is_marked", "mark_damaged", "salvage"]

SHARED_MEMORY = "-shm"
LOGS = ("-wal", "-journal")
"""What SQLite keeps beside a file, and needs to read it."""

OF_ALGORITHMS = "submissions", "reused", "calls"
"""Tables whose rows are of no use without the algorithm that they name."""

ALGORITHMS = "SELECT generation, number FROM algorithms"


def salvage(path: Path) -> str:
    """Replace a damaged run database by one with what can be read of it. Return a message about it."""
    copy, part = _unfinished(path)
    _remove(copy, part, _damaged(path), *_all_saved(path))
    try:
        for suffix in ("", *LOGS):
            if Path(f"{path}{suffix}").exists():
                shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
        rows = _copy_rows(copy, part)
        part.replace(_saved(path))
    finally:
        _remove(copy, part)
    return complete_salvage(path, is_empty=not rows)


def mark_damaged(path: Path) -> None:
    """Let the next master save what can be read. Without a disk that can be written, this does nothing."""
    try:
        _mark(path).touch()
    except OSError:
        pass


def is_marked(path: Path) -> bool:
    """Whether a master has found damage in a file."""
    return path.exists() and _mark(path).exists()


def complete_salvage(path: Path, *, is_empty: bool = False) -> str:
    """If there is a new file for a damaged run database, put it in its place. Return a message about it, or nothing.

    Args:
        is_empty: whether nothing could be read of the damaged file.
    """
    if not path.exists() or not (saved := _saved(path)).exists():
        return ""
    damaged = _damaged(path)
    _remove(*_unfinished(path))
    for suffix in ("", *LOGS):
        _keep(Path(f"{path}{suffix}"), Path(f"{damaged}{suffix}"))
    sync_folder(path.parent)
    for suffix in (*LOGS, SHARED_MEMORY):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    _mark(path).unlink(missing_ok=True)
    sync_folder(path.parent)
    saved.replace(path)
    sync_folder(path.parent)
    used = (
        "Nothing of it could be read" if is_empty else "What could be read of it is used, and the other tasks run again"
    )
    return (
        f"the run database {path} was damaged. {used}. The damaged file is {damaged}: delete it if you do not need it"
    )


def _mark(path: Path) -> Path:
    return path.with_name(f".{path.name}.damage-found")


def _damaged(path: Path) -> Path:
    return path.with_name(f"{path.name}.damaged")


def _unfinished(path: Path) -> tuple[Path, Path]:
    """A copy of the damaged file, which may change, and the new file until it is complete."""
    return path.with_name(f".{path.name}.copy"), path.with_name(f".{path.name}.part")


def _saved(path: Path) -> Path:
    """The complete new file for a run database, as long as this does not change."""
    found = path.stat()
    return path.with_name(f".{path.name}.saved-{found.st_ino}-{found.st_size}-{found.st_mtime_ns}")


def _all_saved(path: Path) -> list[Path]:
    start = f".{path.name}.saved-"
    return [each for each in path.parent.iterdir() if each.name.startswith(start)]


def _keep(file: Path, damaged: Path) -> None:
    """Give a file a second name. If it is gone, an earlier attempt has done this."""
    if not file.exists():
        return
    damaged.unlink(missing_ok=True)
    try:
        os.link(file, damaged)
    except OSError:  # the file system has no links
        shutil.copyfile(file, damaged)


def _remove(*files: Path) -> None:
    for file in files:
        for suffix in ("", *LOGS, SHARED_MEMORY):
            Path(f"{file}{suffix}").unlink(missing_ok=True)


def _copy_rows(source: Path, target: Path) -> int:
    """Copy all rows that can be read, and return how many there are."""
    old = open_damaged(source)
    try:
        new = open_for_writing(target, exclusive=True, full=True)
        try:
            with new.transaction():
                count = sum(_copy_table(old, new, table) for table in ("generations", *TABLES_BY_SEQ))
                for table in OF_ALGORITHMS:
                    new.run(f"DELETE FROM {table} WHERE (generation, algorithm) NOT IN ({ALGORITHMS})")
                return count
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
