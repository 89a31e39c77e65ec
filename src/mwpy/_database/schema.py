"""The schema of the run database: one table of records, and the views that people read.

A row of the table `records` is what one record of the master says of one thing, such as tasks with consecutive ids. The
rows are in the order in which the master stated the records: `seq` numbers them. `kind` is the view that shows the row,
`who` the slave or agent that it is about, and `body` is a JSON object with what only this kind has. Rows of tasks have
their first id, their number and their attempt. If the tasks of a group of results are not consecutive, `first` is 0,
and the keys of the JSON objects `attempts` and `seconds` are the ids. A JSON array has the places 0, 1, 2 as its keys.
So `first + key` is a task in both cases, and the views need `json_each` only. Where an array would say nothing, it is
missing, and the views make one with `count` zeros. A body that is damaged is in no view.

Each row that a restart uses has a checksum over all that decides about a value: which task got which result. A row that
fails it does not count. SQLite itself notices damage only where it breaks the structure of a page. A CRC-32 finds each
flipped bit and each damage of up to 4 bytes in a row, and misses one of 4 billion others. It is for accidents of disks
and memory, not for forgers.

With each change of the schema, `VERSION` rises. A file of another version is refused by name.

Views of single tasks join others by task. SQLite makes an index for that each time, so they take a few seconds for a
million tasks. With `LIMIT -1`, a body is read once for its row, and not again for each task of it. SQLite then reads
all selected columns, so the views select only those that they need.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

APPLICATION_ID = 0x6D777079
"""Marks a SQLite file as a run database: the characters `mwpy`."""

VERSION = 13

RESTART_KINDS = ("algorithms", "submissions", "once", "results")
"""The kinds of rows that a restart reads. They have checksums."""

CHECKED = ("seq", "generation", "kind", "who", "first", "count", "attempt", "body", "data")
"""The columns that decide about a value. The column `checksum` is the checksum of these. Times are not among them,
because SQLite may round them."""


def row_checksum(row: Sequence[object]) -> int:
    """Return the checksum of those columns of a row that decide about a value.

    Args:
        row: the values of `CHECKED`: whole numbers, texts, bytes or None, as SQLite returns them.
    """
    *columns, data = row
    checksum = zlib.crc32(repr(columns).encode())
    return zlib.crc32(data if isinstance(data, bytes) else repr(data).encode(), checksum)


_FREQUENT = ("submissions", "allocations", "results")

RARE = f"kind NOT IN {_FREQUENT}"
"""The condition of the rows that the index has. With it, a query of one other kind finds them by the index."""

_TABLE = f"""
CREATE TABLE records (
    seq INTEGER PRIMARY KEY,
    generation INTEGER NOT NULL,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    who TEXT,
    first INTEGER,
    count INTEGER,
    attempt INTEGER,
    body TEXT NOT NULL,
    checksum INTEGER,
    data BLOB,
    frames BLOB
);
CREATE INDEX record_by_kind ON records (kind, generation, who, first) WHERE {RARE};
"""

_SHOWN = {
    "generations": "$name, $member_id, $host, $pid, $command, $python, $mwpy, at AS started, $ended, $why",
    "algorithms": "first AS number, $name, $reference, $code, $parts",
    "submissions": "at, first, count, $algorithm, $policy, $failed, $answers, data AS keys",
    "once": "at, first, count, $may_have_run, $reason",
    "allocations": "at, who AS sid, first AS base, count, attempt",
    "results": "at, who AS sid, first AS base, count, attempt, $attempts, $seconds, $total_s, $failed, $host, $file, "
    "data AS head, frames",
    "failures": "at, first AS task, attempt, who AS sid, $type, $message, $traceback, $arguments",
    "ends": "at, first, count, attempt, $state, who AS sid, $reason",
    "losses": "at, who AS sid, first, count, attempt, $algorithm, $cause, $charged, $lost_s, $reason",
    "agents": "at, who AS agent, $host, $pid, $job, $address, $slaves, $python, $returns_s, $packages, $ended, $reason",
    "slaves": "at, who AS sid, $agent, $kind, $ended, $cause, $reason, $running, $peak_bytes, $last_words",
    "others": "at, first AS algorithm, $code, $names",
    "peaks": "at, $algorithm, $host, $bytes",
    "events": "at, $kind, $text",
}
"""The views that show the rows of one kind each, and their columns after `seq` and `generation`; `$x` is in `body`."""

_VIEWS = """
CREATE VIEW hosts AS
SELECT s.generation, s.sid, g.host FROM slaves s
LEFT JOIN agents g ON g.generation = s.generation AND g.agent = s.agent LIMIT -1;
CREATE VIEW answers AS
SELECT r.generation, r.base + j.key AS task,
    CASE WHEN r.attempts IS NULL THEN r.attempt ELSE json_extract(r.attempts, '$."' || j.key || '"') END AS attempt,
    r.sid, r.at, CASE WHEN r.seconds IS NULL THEN r.total_s / r.count ELSE j.value END AS seconds, r.failed
FROM (
    SELECT generation, base, count, attempt, attempts, sid, at, total_s, seconds, failed,
        coalesce(seconds, ZEROS(count)) AS places
    FROM results LIMIT -1
) r, json_each(r.places) j;
CREATE VIEW attempts AS
SELECT a.generation, a.task, a.attempt, a.sid, g.host, a.at AS sent, coalesce(r.at, l.at) AS ended,
    CASE WHEN r.task IS NULL THEN coalesce(l.cause, 'no end is known')
        WHEN f.task IS NULL THEN 'finished' ELSE 'failed' END AS outcome,
    r.seconds
FROM (
    SELECT a.generation, a.base + j.key AS task, a.sid, a.at, a.attempt FROM allocations a, json_each(ZEROS(a.count)) j
) a
LEFT JOIN answers r ON r.generation = a.generation AND r.task = a.task AND r.attempt = a.attempt
LEFT JOIN failures f ON f.generation = a.generation AND f.sid = r.sid AND f.task = a.task AND f.attempt = a.attempt
LEFT JOIN losses l ON l.generation = a.generation AND l.sid = a.sid AND l.attempt = a.attempt
    AND a.task BETWEEN l.first AND l.first + l.count - 1
LEFT JOIN hosts g ON g.generation = a.generation AND g.sid = a.sid;
CREATE VIEW tasks AS
SELECT t.generation, t.task, a.name AS algorithm,
    CASE WHEN f.task IS NOT NULL THEN 'failed' WHEN r.task IS NOT NULL THEN 'finished'
        ELSE coalesce(e.state, 'not ended') END AS state,
    coalesce(r.attempt, e.attempt) AS attempt, coalesce(r.sid, e.sid) AS sid, g.host, r.seconds,
    coalesce(r.at, e.at) AS ended, f.type AS error, coalesce(f.message, e.reason) AS message, f.arguments
FROM (
    SELECT u.generation, u.first + j.key AS task, u.algorithm
    FROM (SELECT generation, first, count, algorithm FROM submissions WHERE answers IS NULL LIMIT -1) u,
        json_each(ZEROS(u.count)) j
) t
LEFT JOIN (SELECT * FROM algorithms LIMIT -1) a ON a.generation = t.generation AND a.number = t.algorithm
LEFT JOIN answers r ON r.generation = t.generation AND r.task = t.task
LEFT JOIN failures f ON f.generation = t.generation AND f.sid = r.sid AND f.task = t.task AND f.attempt = r.attempt
LEFT JOIN ends e ON e.generation = t.generation AND t.task BETWEEN e.first AND e.first + e.count - 1
LEFT JOIN hosts g ON g.generation = t.generation AND g.sid = coalesce(r.sid, e.sid)
UNION ALL
SELECT t.generation, t.task, a.name,
    CASE WHEN EXISTS (SELECT 1 FROM json_each(t.failed) WHERE value = t.place) THEN 'failed' ELSE 'finished' END,
    r.attempt, r.sid, g.host, r.seconds, r.at, f.type, f.message, f.arguments
FROM (
    SELECT u.generation, u.first + j.key AS task, j.key AS place, u.algorithm, coalesce(u.failed, '[]') AS failed,
        json_extract(j.value, '$[0]') AS at_row, json_extract(j.value, '$[1]') AS at_place
    FROM (SELECT generation, first, algorithm, failed, answers FROM submissions WHERE answers IS NOT NULL LIMIT -1) u,
        json_each(u.answers) j
) t
LEFT JOIN (SELECT * FROM algorithms LIMIT -1) a ON a.generation = t.generation AND a.number = t.algorithm
LEFT JOIN (
    SELECT *, row_number() OVER (PARTITION BY seq ORDER BY id) - 1 AS place FROM (
        SELECT r.seq, r.generation, r.base + j.key AS task, r.sid, r.at, j.id,
            CASE WHEN r.attempts IS NULL THEN r.attempt
                ELSE json_extract(r.attempts, '$."' || j.key || '"') END AS attempt,
            CASE WHEN r.seconds IS NULL THEN r.total_s / r.count ELSE j.value END AS seconds
        FROM (
            SELECT seq, generation, base, count, attempt, attempts, sid, at, total_s, seconds,
                coalesce(seconds, ZEROS(count)) AS places
            FROM results WHERE seq IN (
                SELECT json_extract(j.value, '$[0]')
                FROM (SELECT answers FROM submissions WHERE answers IS NOT NULL LIMIT -1) u, json_each(u.answers) j
            ) LIMIT -1
        ) r, json_each(r.places) j LIMIT -1
    )
) r ON r.seq = t.at_row AND r.place = t.at_place
LEFT JOIN failures f ON f.generation = r.generation AND f.sid = r.sid AND f.task = r.task AND f.attempt = r.attempt
LEFT JOIN hosts g ON g.generation = r.generation AND g.sid = r.sid;
CREATE VIEW notices AS SELECT generation, at, substr(text, 8) AS text FROM events WHERE kind = 'Notice';
"""


def _view(kind: str, columns: str) -> str:
    columns = re.sub(r"\$(\w+)", r"json_extract(body, '$.\1') AS \1", columns)
    where = f"kind = '{kind}'{'' if kind in _FREQUENT else f' AND {RARE}'} AND json_valid(body)"
    return f"CREATE VIEW {kind} AS SELECT seq, generation, {columns} FROM records WHERE {where};\n"


def _zeros(found: re.Match[str]) -> str:
    """A JSON array with this many zeros, in SQL."""
    return f"'[' || substr(replace(hex(zeroblob({found[1]})), '00', ',0'), 2) || ']'"


SCHEMA = _TABLE + "".join(_view(*each) for each in _SHOWN.items()) + re.sub(r"ZEROS\((.*?)\)", _zeros, _VIEWS)
