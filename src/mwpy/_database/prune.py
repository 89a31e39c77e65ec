"""Removes from a run database what no restart needs."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from mwpy._database.opening import lock, open_for_writing
from mwpy._database.place import is_network, kind_of_file_system, real_path
from mwpy._database.value_files import ValueFiles
from mwpy._values.errors import RunDatabaseError

__all__ = ["Pruned", "prune"]

HISTORY = ("allocations", "losses", "ends", "events")
"""The tables that only people read."""


class Pruned(Struct, frozen=True):
    """What was removed from a run database."""

    attempts: int
    """How many attempts of former generations."""
    results: int
    """How many results of former generations."""
    files: int
    """How many files with large values."""
    bytes: int
    """How much space is free now, in bytes."""


def prune(path: Path) -> Pruned:
    """Remove what no restart needs. `RunDatabase.prune` describes it."""
    path = real_path(path)
    if not path.exists():
        raise RunDatabaseError(f"there is no run database {path}: give the file that a master has written")
    shared = is_network(kind_of_file_system(path.parent))
    held = lock(path)
    try:
        return _prune(path, shared=shared)
    finally:
        held.release()


def _prune(path: Path, *, shared: bool) -> Pruned:
    files = ValueFiles(path)
    connection = open_for_writing(path, exclusive=shared, full=True)
    try:
        before = path.stat().st_size
        [(last,)] = connection.rows("SELECT coalesce(max(generation), 0) FROM generations")
        [(attempts,)] = connection.rows("SELECT coalesce(sum(count), 0) FROM allocations WHERE generation < ?", (last,))
        complete = connection.rows("SELECT 1 FROM generations WHERE generation = ? AND why = 'SHUTDOWN'", (last,))
        unused = (
            "generation < ? AND seq NOT IN (SELECT json_extract(j.value, '$[0]') FROM reused u, json_each(u.answers) j "
            "WHERE u.generation = ?) AND seq < ?"
        )
        results = 0
        with connection.transaction():
            for table in HISTORY:
                connection.run(f"DELETE FROM {table} WHERE generation < ?", (last,))
            if complete:
                [(brought,)] = connection.rows(  # agents brought the later ones to the last generation
                    "SELECT coalesce(min(seq), 1 << 62) FROM agents WHERE generation = ?", (last,)
                )
                [(results,)] = connection.rows(
                    f"SELECT coalesce(sum(count), 0) FROM results WHERE {unused}", (last, last, brought)
                )
                connection.run(f"DELETE FROM results WHERE {unused}", (last, last, brought))
        connection.run("VACUUM")
        connection.run("PRAGMA wal_checkpoint(TRUNCATE)")
        named = {name for (name,) in connection.rows("SELECT file FROM results WHERE file IS NOT NULL")}
        removed = [files.remove(name) for name in list(files.names()) if name not in named]
        return Pruned(attempts, results, len(removed), max(0, before - path.stat().st_size) + sum(removed))
    finally:
        connection.close()
