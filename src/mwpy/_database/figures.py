"""The figures of a report: what a run database says about a computation, added up by SQLite.

A million tasks are never objects of Python: temporary tables have them, and queries return a few rows for each
algorithm, host, cause and part of the time. The temporary tables are not in the file, which is only read.

The axis of time has the lives of the master one after the other, without the time between them. Where a life has no
end, because it was killed or goes on, its last record counts as its end.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from msgspec import Struct

from mwpy._database.opening import Connection

Row = dict[str, Any]

ROWS = 20
"""How many algorithms, causes, kinds of failures and versions a report names, those with the largest figures first."""

HOSTS = 200
"""How many hosts a report names."""

LINES = 60
"""How many lines the timeline has. With more slaves, a line is a host."""

BINS = 120
"""Into how many parts the timeline is divided."""

LEAST_TASKS = 5
"""How many tasks of an algorithm a host and the others must have finished before their paces are compared."""

_ON_AXIS = "min(max({}, life.started), life.stop) - life.started + life.before"

_TABLES = f"""
CREATE TEMP TABLE lives AS
SELECT *, sum(stop - started) OVER (ORDER BY generation) - (stop - started) AS before FROM (
    SELECT g.generation, g.started, g.ended, max(g.started, coalesce(g.ended, (
        SELECT at FROM records WHERE seq < coalesce((SELECT min(seq) FROM generations WHERE seq > g.seq), 1 << 62)
        ORDER BY seq DESC LIMIT 1))) AS stop
    FROM generations g);
CREATE TEMP TABLE spans AS
SELECT s.generation, s.sid, s.agent, a.host, s.peak_bytes, life.ended IS NULL AS is_open,
    {_ON_AXIS.format("s.at")} AS start, {_ON_AXIS.format("coalesce(s.ended, life.stop)")} AS stop
FROM slaves s JOIN lives life USING (generation) LEFT JOIN agents a USING (generation, agent);
CREATE TEMP TABLE work AS
SELECT r.generation, r.sid, r.total_s, {_ON_AXIS.format("r.at")} AS stop
FROM results r JOIN lives life USING (generation);
CREATE TEMP TABLE worked AS
SELECT generation, sid, min(stop - total_s) AS first, max(stop) AS last, sum(total_s) AS seconds
FROM work GROUP BY 1, 2;
CREATE TEMP TABLE policies AS
SELECT DISTINCT generation, algorithm, policy FROM submissions WHERE policy IS NOT NULL;
CREATE TEMP TABLE lost AS
SELECT l.generation, l.sid, l.algorithm, l.cause, l.count, l.lost_s, l.first, l.reason,
    {_ON_AXIS.format("l.at")} AS stop
FROM losses l JOIN lives life USING (generation);
CREATE TEMP TABLE ended (task INTEGER PRIMARY KEY, algorithm, state, host, seconds, error);
INSERT OR IGNORE INTO ended SELECT task, algorithm, state, host, seconds, error FROM tasks
WHERE generation = (SELECT max(generation) FROM lives)
"""

_SLAVES = """
SELECT total(stop - start) AS slaves, total(work) AS work,
    total(max(0, min(first, stop) - start)) AS before,
    total(CASE WHEN NOT is_open THEN max(0, stop - max(last, start)) END) AS after,
    total(CASE WHEN is_open THEN max(0, stop - max(last, start)) END) AS open
FROM (
    SELECT s.*, coalesce(min(w.first, l.first), w.first, l.first, s.stop) AS first,
        max(coalesce(w.last, s.start), coalesce(l.last, s.start)) AS last, w.seconds AS work
    FROM spans s
    LEFT JOIN worked w USING (generation, sid)
    LEFT JOIN (SELECT generation, sid, min(stop - lost_s) AS first, max(stop) AS last
        FROM lost GROUP BY 1, 2) l USING (generation, sid))
"""

_STARTS = f"""
SELECT total(max(0, slots * (stop - start) - ran)) FROM (
    SELECT a.slaves AS slots, {_ON_AXIS.format("a.at")} AS start,
        {_ON_AXIS.format("coalesce(a.ended, life.stop)")} AS stop, coalesce(s.seconds, 0) AS ran
    FROM agents a JOIN lives life USING (generation)
    LEFT JOIN (SELECT generation, agent, sum(stop - start) AS seconds FROM spans GROUP BY 1, 2) s
    USING (generation, agent))
"""

_ALGORITHMS = """
SELECT algorithm, count(*) AS tasks, sum(state = 'finished') AS finished, sum(state = 'failed') AS failed,
    count(*) - sum(state IN ('finished', 'failed')) AS others, total(seconds) AS seconds,
    max(seconds) AS longest, task, host FROM ended GROUP BY algorithm ORDER BY seconds DESC, tasks DESC LIMIT ?
"""

_TIMES = """
SELECT CAST(printf('%.2e', seconds) AS REAL) AS digits, count(*) AS count FROM ended
WHERE algorithm IS ? AND seconds IS NOT NULL GROUP BY 1 ORDER BY 1
"""

_HOSTS = """
SELECT s.host, count(*) AS slaves, max(s.peak_bytes) AS peak, total(w.seconds) AS seconds,
    coalesce(sum(l.attempts), 0) AS lost, total(l.seconds) AS lost_s
FROM spans s
LEFT JOIN worked w USING (generation, sid)
LEFT JOIN (SELECT generation, sid, sum(count) AS attempts, sum(lost_s) AS seconds FROM lost GROUP BY 1, 2) l
USING (generation, sid)
GROUP BY s.host
"""

_ASKED = """
SELECT a.name AS algorithm, max(json_extract(policy, '$.seconds_expected')) AS seconds_expected,
    max(json_extract(policy, '$.seconds_max')) AS seconds_max, max(json_extract(policy, '$.memory_max')) AS memory_max
FROM policies s JOIN algorithms a ON a.generation = s.generation AND a.number = s.algorithm GROUP BY 1
"""

_AMOUNTS = """
SELECT a.name AS algorithm, json_extract(j.value, '$[0]') AS name, max(json_extract(j.value, '$[1]')) AS amount
FROM policies s JOIN algorithms a ON a.generation = s.generation AND a.number = s.algorithm,
json_each(s.policy, '$.requires.amounts') j GROUP BY 1, 2
"""

_LOSSES = """
SELECT cause, algorithm, sum(count) AS attempts, sum(lost_s) AS seconds, first, sid, reason FROM lost
GROUP BY cause, algorithm ORDER BY seconds DESC, attempts DESC LIMIT ?
"""

_DEATHS = """
SELECT cause, sid, running, last_words, max(length(last_words)) FROM slaves
WHERE running <> '' GROUP BY cause ORDER BY count(*) DESC LIMIT ?
"""

_UNRUNNABLE = """
SELECT state, sum(count) AS count, first, sid, reason FROM ends WHERE generation = (SELECT max(generation) FROM lives)
GROUP BY state, substr(reason, 1, instr(reason || ':', ':')) ORDER BY 2 DESC LIMIT ?
"""

_PACKAGES = """
SELECT j.value AS text, count(*) AS agents FROM (SELECT packages FROM agents LIMIT -1) a,
json_each(a.packages, '$.different') j GROUP BY 1 ORDER BY 2 DESC LIMIT ?
"""

_KINDS = """
SELECT error, count(*) AS count, min(task) AS task, algorithm, host FROM ended WHERE error IS NOT NULL
GROUP BY 1 ORDER BY 2 DESC LIMIT ?
"""

_FAILURE = """
SELECT message, traceback, arguments, generation = (SELECT max(generation) FROM lives) AND task = ?2 AS is_own
FROM failures WHERE type = ?1 ORDER BY is_own DESC, seq LIMIT 1
"""

_AT_ONCE = """
SELECT coalesce(max(slaves), 0) FROM (SELECT sum(change) OVER (ORDER BY at, change) AS slaves FROM (
    SELECT start AS at, 1 AS change FROM spans UNION ALL SELECT stop, -1 FROM spans))
"""


class Figures(Struct, frozen=True):
    """All figures of a report. A row is a dict with the names of the columns, and times are in seconds."""

    lives: list[Row]
    """The lives of the master."""
    duration: float
    """How long all lives took together."""
    slaves: int
    """How many slaves were connected at once, at most."""
    shares: dict[str, float]
    """How long the slaves did what, together: `work`, `start`, `before`, `between`, `after`, `open` and `lost`."""
    algorithms: list[Row]
    times: dict[str, list[tuple[float, int]]]
    """For each algorithm, how many tasks took how long. The times have three digits."""
    hosts: list[Row]
    """With `pace`: how much longer than elsewhere its tasks took; None if this is not known."""
    timeline: dict[str, dict[int, tuple[float, float]]]
    """For each line and part of the time: how long its slaves were there, and how long they worked."""
    marks: list[Row]
    """Where attempts were lost: line, part of the time, number of attempts and cause."""
    lines: str
    """What a line is: `slave` or `host`."""
    losses: list[Row]
    failures: list[Row]
    unrunnable: list[Row]
    """Tasks that ended without a result."""
    deaths: list[Row]
    """Slaves that died while they ran a task, by cause."""
    asked: dict[str, Row]
    """For each algorithm: what was asked for, and the largest `peak` of memory."""
    versions: list[Row]
    packages: list[Row]
    """Packages of agents that differ from those of the master."""
    notices: list[Row]


def figures_of(connection: Connection) -> Figures:
    """Return the figures of a run database.

    Args:
        connection: is used for this alone, and closed by the caller. It gets temporary tables.

    Raises:
        RunDatabaseError: the file is damaged.
    """
    connection.run("PRAGMA query_only = 0")  # the file itself is open for reading only
    connection.run("BEGIN")
    for statement in _TABLES.split(";\n"):
        connection.run(statement)

    def rows(statement: str, *parameters: object) -> list[Row]:
        return [dict(row) for row in connection.rows(statement, parameters)]

    lives = rows("SELECT * FROM generations JOIN lives USING (generation) ORDER BY generation")
    for life in lives:
        life["command"] = json.loads(life["command"])
    duration = sum(life["stop"] - life["started"] for life in lives)
    algorithms, times = rows(_ALGORITHMS, ROWS), {}
    for name in (each["algorithm"] for each in algorithms):
        times[name] = [(each["digits"], each["count"]) for each in rows(_TIMES, name)]
    asked: dict[str, Row] = {row["algorithm"]: row | {"amounts": {}} for row in rows(_ASKED)}
    for row in rows(_AMOUNTS):
        asked[row["algorithm"]]["amounts"][row["name"]] = row["amount"]
    for row in rows("SELECT algorithm, max(bytes) AS peak FROM peaks GROUP BY 1"):
        asked.setdefault(row["algorithm"], row).update(row)
    lines, timeline, marks = _timeline(connection, duration)
    [(slaves,)] = connection.rows(_AT_ONCE)
    return Figures(
        lives=lives,
        duration=duration,
        slaves=slaves,
        shares=_shares(connection),
        algorithms=algorithms,
        times=times,
        hosts=_hosts(connection, rows(_HOSTS)),
        timeline=timeline,
        marks=marks,
        lines=lines,
        losses=rows(_LOSSES, ROWS),
        failures=[kind | row for kind in rows(_KINDS, ROWS) for row in rows(_FAILURE, kind["error"], kind["task"])],
        unrunnable=rows(_UNRUNNABLE, ROWS),
        deaths=rows(_DEATHS, ROWS),
        asked=asked,
        versions=rows("SELECT python, count(*) AS agents, count(DISTINCT host) AS hosts FROM agents GROUP BY 1"),
        packages=rows(_PACKAGES, ROWS),
        notices=rows("SELECT at, text FROM notices ORDER BY at DESC LIMIT ?", ROWS),
    )


def _shares(connection: Connection) -> dict[str, float]:
    """What the slaves did, in seconds of slaves. What is left of their time is waiting between two tasks."""
    [found] = map(dict, connection.rows(_SLAVES))
    [(start,)] = connection.rows(_STARTS)
    [(lost,)] = connection.rows("SELECT total(lost_s) FROM lost")
    known = found["work"] + found["before"] + found["after"] + found["open"] + lost
    return {
        "work": found["work"],
        "lost": lost,
        "start": start,
        "before": found["before"],
        "between": max(0.0, found["slaves"] - known),
        "after": found["after"],
        "open": found["open"],
    }


def _hosts(connection: Connection, hosts: list[Row]) -> list[Row]:
    """Add to each host its tasks and its pace: how long its tasks took, to how long others took for the same."""
    by_algorithm: dict[str, list[Row]] = defaultdict(list)
    done: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0.0, 0.0])
    for row in connection.rows(
        "SELECT algorithm, host, count(seconds) AS tasks, sum(seconds) AS seconds, sum(state = 'failed') AS failed "
        "FROM ended WHERE host IS NOT NULL GROUP BY 1, 2"
    ):
        by_algorithm[row["algorithm"]].append(dict(row))
        done[row["host"]][0] += row["tasks"]
        done[row["host"]][1] += row["failed"]
    for own in by_algorithm.values():
        tasks, seconds = sum(each["tasks"] for each in own), sum(each["seconds"] or 0 for each in own)
        for each in own:
            others = tasks - each["tasks"]
            if min(each["tasks"], others) >= LEAST_TASKS:
                done[each["host"]][2] += each["seconds"]
                done[each["host"]][3] += each["tasks"] * (seconds - each["seconds"]) / others
    for host in hosts:
        host["tasks"], host["failed"], took, elsewhere = done[host["host"]]
        host["pace"] = took / elsewhere if elsewhere else None
    return sorted(hosts, key=lambda host: (-(host["pace"] or 0), -host["seconds"]))


def _timeline(
    connection: Connection, duration: float
) -> tuple[str, dict[str, dict[int, tuple[float, float]]], list[Row]]:
    """When slaves were there, and when they worked. Results that arrive together were computed just before."""
    [(slaves,)] = connection.rows("SELECT count(*) FROM spans")
    lines = "slave" if slaves <= LINES else "host"
    name = "sid || CASE generation WHEN 1 THEN '' ELSE ' of life ' || generation END" if lines == "slave" else "host"
    width = max(duration, 1e-3) / BINS
    connection.run(
        f"CREATE TEMP TABLE lines AS SELECT generation, sid, {name} AS line FROM spans WHERE ({name}) IN "
        f"(SELECT {name} FROM spans GROUP BY 1 ORDER BY sum(stop - start) DESC LIMIT {LINES})"
    )
    bins = (
        "SELECT line, bin, sum(max(0, min(stop, (bin + 1) * ?1) - max(start, bin * ?1))) AS seconds FROM "
        "(SELECT line, start, stop FROM {} JOIN lines USING (generation, sid)) JOIN bins "
        "ON bin BETWEEN CAST(start / ?1 AS INTEGER) AND CAST(stop / ?1 AS INTEGER) GROUP BY 1, 2"
    )
    connection.run("CREATE TEMP TABLE bins (bin INTEGER PRIMARY KEY)")
    connection.run(f"INSERT INTO bins VALUES {', '.join(f'({number})' for number in range(BINS))}")
    there: dict[str, dict[int, float]] = defaultdict(dict)
    for line, place, seconds in connection.rows(bins.format("spans"), (width,)):
        there[line][place] = seconds
    busy: dict[tuple[str, int], float] = {}
    work = "(SELECT generation, sid, stop - total_s AS start, stop FROM work)"
    for line, place, seconds in connection.rows(bins.format(work), (width,)):
        busy[line, place] = seconds
    found = {
        line: {place: (seconds, busy.get((line, place), 0.0)) for place, seconds in places.items()}
        for line, places in there.items()
    }
    marks = connection.rows(
        f"SELECT line, min(CAST(stop / ? AS INTEGER), {BINS - 1}) AS bin, sum(count) AS attempts, cause FROM lost "
        "JOIN lines USING (generation, sid) GROUP BY 1, 2",
        (width,),
    )
    order = sorted(found, key=lambda line: (len(line or ""), line or ""))  # SLAVE-9 before SLAVE-10
    return lines, {line: found[line] for line in order}, [dict(mark) for mark in marks if mark["line"] in found]
