"""Sums up a run database: generations, tasks, failures, slaves, and time that was lost."""

from __future__ import annotations

import json
from typing import Any

from mwpy._database.connection import Connection

__all__ = ["summarize"]

KINDS_SHOWN = 20
"""How many kinds of failures, hosts and causes are named, the most frequent first."""


def summarize(connection: Connection) -> dict[str, Any]:
    """Return the summary, ready for JSON. `RunDatabase.summary` describes it."""
    generations = [
        dict(zip(("generation", "host", "pid", "command", "started", "ended", "why"), row, strict=True))
        for row in connection.rows(
            "SELECT generation, host, pid, command, started, ended, why FROM generations ORDER BY generation"
        )
    ]
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

    def count(query: str) -> int:
        return int(connection.rows(query, (generation,))[0][0] or 0)

    submitted = count("SELECT sum(count) FROM submissions WHERE generation = ?")
    reused = count("SELECT sum(count) FROM reused WHERE generation = ?")
    old_failed = count("SELECT sum(json_array_length(failed)) FROM reused WHERE generation = ?")
    answered = count("SELECT sum(count) FROM results WHERE generation = ? AND NOT kept")
    failed = count("SELECT sum(failed) FROM results WHERE generation = ? AND NOT kept")
    ends = dict(
        connection.rows("SELECT state, sum(count) FROM ends WHERE generation = ? GROUP BY state", (generation,))
    )
    return {
        "submitted": submitted + reused,
        "reused": reused,
        "finished": answered - failed + reused - old_failed + ends.get("finished", 0),
        "failed": failed + old_failed + ends.get("failed", 0),
        "unrunnable": ends.get("unrunnable", 0),
        "cancelled": ends.get("cancelled", 0),
        "not ended": max(0, submitted - answered - sum(ends.values())),
    }


def _algorithms(connection: Connection, generation: int) -> dict[str, int]:
    query = (
        "SELECT a.name, sum(t.count) FROM algorithms a JOIN "
        "(SELECT generation, algorithm, count FROM submissions UNION ALL "
        "SELECT generation, algorithm, count FROM reused) t "
        "ON t.generation = a.generation AND t.algorithm = a.number WHERE a.generation = ? GROUP BY a.name"
    )
    return dict(connection.rows(query, (generation,)))


def _failures(connection: Connection, generation: int) -> list[dict[str, Any]]:
    old = "SELECT 1 FROM reused WHERE failed IS NOT NULL AND generation = ? LIMIT 1"
    source = "(SELECT generation, error AS type, task, message, arguments FROM tasks WHERE error IS NOT NULL)"
    if not connection.rows(old, (generation,)):
        source = "failures"  # much quicker
    query = (
        f"SELECT type, count(*), task, message, arguments FROM {source} WHERE generation = ? "
        f"GROUP BY type ORDER BY count(*) DESC LIMIT {KINDS_SHOWN}"
    )
    names = "error", "count", "task", "message", "arguments"
    return [dict(zip(names, row, strict=True)) for row in connection.rows(query, (generation,))]


def _hosts(connection: Connection) -> list[dict[str, Any]]:
    query = (
        "SELECT g.host, count(*), coalesce(sum(r.count), 0), coalesce(sum(r.total_s), 0.0) "
        "FROM slaves s JOIN agents g USING (generation, agent) LEFT JOIN (SELECT generation, sid, sum(count) AS count, "
        "sum(total_s) AS total_s FROM results GROUP BY generation, sid) r "
        f"USING (generation, sid) GROUP BY g.host ORDER BY 4 DESC LIMIT {KINDS_SHOWN}"
    )
    return [dict(zip(("host", "slaves", "tasks", "seconds"), row, strict=True)) for row in connection.rows(query)]


def _lost(connection: Connection) -> list[dict[str, Any]]:
    query = "SELECT cause, sum(count), sum(lost_s) FROM losses GROUP BY cause ORDER BY 3 DESC"
    return [dict(zip(("cause", "attempts", "seconds"), row, strict=True)) for row in connection.rows(query)]
