"""What people ask of a run database: a summary, an export; and which rows can be pruned.

Sums up a run database: generations, tasks, failures, slaves, and time that was lost.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec import Struct

from mwpy._database.opening import Connection, lock, open_for_writing
from mwpy._database.rows import ValueFiles
from mwpy._system.locks import is_network, kind_of_file_system, real_path
from mwpy._values.errors import RunDatabaseError

KINDS_SHOWN = 20
"""How many kinds of failures, hosts and causes are named, the most frequent first."""


def summarize(connection: Connection) -> dict[str, Any]:
    """Return the summary, ready for JSON. `RunDatabase.summary` describes it."""
    query = "SELECT generation, host, pid, command, started, ended, why FROM generations ORDER BY generation"
    generations = [dict(row) for row in connection.rows(query)]
    for each in generations:
        each["command"] = json.loads(each["command"])
    last = generations[-1]["generation"] if generations else 0
    member = connection.rows("SELECT member_id FROM generations WHERE generation = ?", (last,))
    return {
        "member_id": member[0][0] if member else "",
        "generations": generations,
        "tasks": _tasks(connection, last),
        "algorithms": _algorithms(connection, last),
        "failures": _failures(connection, last),
        "hosts": _hosts(connection),
        "lost": _lost(connection),
    }


def _tasks(connection: Connection, generation: int) -> dict[str, int]:
    """The tasks of a generation by state."""
    query = (
        "SELECT coalesce(sum(count), 0), coalesce(sum(CASE WHEN answers IS NOT NULL THEN count END), 0), "
        "coalesce(sum(json_array_length(failed)), 0) FROM submissions WHERE generation = ?"
    )
    [(submitted, reused, old_failed)] = connection.rows(query, (generation,))
    query = "SELECT coalesce(sum(count), 0), coalesce(sum(failed), 0) FROM results WHERE generation = ?"
    [(answered, failed)] = connection.rows(query, (generation,))
    ends = dict(
        connection.rows("SELECT state, sum(count) FROM ends WHERE generation = ? GROUP BY state", (generation,))
    )
    return {
        "submitted": submitted,
        "reused": reused,
        "finished": answered - failed + reused - old_failed + ends.get("finished", 0),
        "failed": failed + old_failed + ends.get("failed", 0),
        "unrunnable": ends.get("unrunnable", 0),
        "cancelled": ends.get("cancelled", 0),
        "not ended": max(0, submitted - reused - answered - sum(ends.values())),
    }


def _algorithms(connection: Connection, generation: int) -> dict[str, int]:
    query = (
        "SELECT a.name, sum(t.count) FROM algorithms a JOIN submissions t "
        "ON t.generation = a.generation AND t.algorithm = a.number WHERE a.generation = ? GROUP BY a.name"
    )
    return dict(connection.rows(query, (generation,)))


def _failures(connection: Connection, generation: int) -> list[dict[str, Any]]:
    old = "SELECT 1 FROM submissions WHERE failed IS NOT NULL AND generation = ? LIMIT 1"
    source = "(SELECT generation, error AS type, task, message, arguments FROM tasks WHERE error IS NOT NULL)"
    if not connection.rows(old, (generation,)):
        source = "failures"  # much quicker
    query = (
        f"SELECT type AS error, count(*) AS count, task, message, arguments FROM {source} WHERE generation = ? "
        f"GROUP BY type ORDER BY count(*) DESC LIMIT {KINDS_SHOWN}"
    )
    return [dict(row) for row in connection.rows(query, (generation,))]


def _hosts(connection: Connection) -> list[dict[str, Any]]:
    query = (
        "SELECT g.host, count(*) AS slaves, coalesce(sum(r.count), 0) AS tasks, "
        "coalesce(sum(r.total_s), 0.0) AS seconds FROM slaves s JOIN agents g USING (generation, agent) "
        "LEFT JOIN (SELECT generation, sid, sum(count) AS count, sum(total_s) AS total_s FROM results GROUP BY 1, 2) r "
        f"USING (generation, sid) GROUP BY g.host ORDER BY seconds DESC LIMIT {KINDS_SHOWN}"
    )
    return [dict(row) for row in connection.rows(query)]


def _lost(connection: Connection) -> list[dict[str, Any]]:
    query = (
        "SELECT cause, sum(count) AS attempts, sum(lost_s) AS seconds FROM losses GROUP BY cause ORDER BY seconds DESC"
    )
    return [dict(row) for row in connection.rows(query)]


# Removes from a run database what no restart needs.


HISTORY = ("allocations", "losses", "ends", "events")
"""The kinds of rows that only people read."""


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
    files = ValueFiles(path)
    with ExitStack() as stack:
        stack.callback(lock(path).release)
        connection = open_for_writing(path, exclusive=shared, full=True)
        stack.callback(connection.close)
        before = path.stat().st_size
        [(last,)] = connection.rows("SELECT coalesce(max(generation), 0) FROM generations")
        [(attempts,)] = connection.rows("SELECT coalesce(sum(count), 0) FROM allocations WHERE generation < ?", (last,))
        complete = connection.rows("SELECT 1 FROM generations WHERE generation = ? AND why = 'SHUTDOWN'", (last,))
        unused = (
            "generation < ? AND seq NOT IN (SELECT json_extract(j.value, '$[0]') "
            "FROM submissions u, json_each(u.answers) j WHERE u.generation = ?) AND seq < ?"
        )
        results = 0
        with connection.transaction():
            for kind in HISTORY:
                connection.run("DELETE FROM records WHERE kind = ? AND generation < ?", (kind, last))
            if complete:
                [(brought,)] = connection.rows(  # agents brought the later ones to the last generation
                    "SELECT coalesce(min(seq), 1 << 62) FROM agents WHERE generation = ?", (last,)
                )
                [(results,)] = connection.rows(
                    f"SELECT coalesce(sum(count), 0) FROM results WHERE {unused}", (last, last, brought)
                )
                connection.run(f"DELETE FROM records WHERE kind = 'results' AND {unused}", (last, last, brought))
        connection.run("VACUUM")
        connection.run("PRAGMA wal_checkpoint(TRUNCATE)")
        named = {name for (name,) in connection.rows("SELECT file FROM results WHERE file IS NOT NULL")}
        removed = [files.remove(name) for name in list(files.names()) if name not in named]
        return Pruned(attempts, results, len(removed), max(0, before - path.stat().st_size) + sum(removed))
