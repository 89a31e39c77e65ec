"""The schema of the run database, and the views that people read.

The master's records are kept in the order in which it stated them. Every row of every table has a number `seq` from one
sequence, so the tables can be merged again. A group of tasks or results is one row. Its tasks have consecutive ids from
`base` on; if they have not, `base` is 0, and the keys of a JSON object are the ids. A JSON array has the places 0, 1, 2
as its keys. So `base + key` is a task in both cases, and the views need `json_each` only. Where an array would say
nothing, it is missing, and the views make one with `count` zeros.

Each row that a restart uses has a checksum over the columns that decide about a value: which task got which result. A
row that fails it does not count. SQLite itself notices damage only where it breaks the structure of a page. A CRC-32
finds each flipped bit and each damage of up to 4 bytes in a row, and misses one of 4 billion others. It is for
accidents of disks and memory, not for forgers.

With each change of the schema, `VERSION` rises. A file of another version is refused by name.

Views of single tasks join tables by task. SQLite makes an index for that each time, so they take a few seconds for a
million tasks.
"""

from __future__ import annotations

import re
import zlib

APPLICATION_ID = 0x6D777079
"""Marks a SQLite file as a run database: the characters `mwpy`."""

CHECKED: dict[str, tuple[str, ...]] = {
    "algorithms": ("seq", "generation", "number", "name", "code", "parts"),
    "submissions": ("seq", "generation", "first", "count", "algorithm", "answers", "keys"),
    "once": ("seq", "generation", "first", "count", "may_have_run", "reason"),
    "results": ("seq", "generation", "checksum", "head", "file"),
}
"""The tables that a restart reads, and their columns that decide about a value. The column `row_checksum` is the
checksum of these. Numbers with a fraction are not among them, because SQLite may round them."""

VERSION = 9


def row_checksum(*values: object) -> int:
    """Return the checksum of those columns of a row that decide about a value.

    Args:
        values: whole numbers, texts, bytes or None, as SQLite returns them.
    """
    checksum = 0
    for value in values:
        part = value if isinstance(value, bytes) else repr(value).encode()
        checksum = zlib.crc32(part, zlib.crc32(b"%d:" % len(part), checksum))
    return checksum


_TABLES = """
CREATE TABLE generations (
    generation INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    member_id TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    command TEXT NOT NULL,
    python TEXT NOT NULL,
    mwpy TEXT NOT NULL,
    started REAL NOT NULL,
    ended REAL,
    why TEXT
);
CREATE TABLE algorithms (
    seq INTEGER PRIMARY KEY,
    generation INTEGER NOT NULL,
    number INTEGER NOT NULL,
    name TEXT NOT NULL,
    reference TEXT NOT NULL,
    code TEXT NOT NULL,
    parts TEXT NOT NULL,
    row_checksum INTEGER
);
CREATE INDEX algorithm_by_number ON algorithms (generation, number);
CREATE TABLE submissions (
    seq INTEGER PRIMARY KEY,
    generation INTEGER NOT NULL,
    at REAL NOT NULL,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    algorithm INTEGER NOT NULL,
    policy TEXT,
    failed TEXT,
    answers TEXT,
    row_checksum INTEGER,
    keys BLOB
);
CREATE INDEX submission_by_task ON submissions (generation, first);
CREATE TABLE once (
    seq INTEGER PRIMARY KEY,
    generation INTEGER NOT NULL,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    may_have_run INTEGER NOT NULL,
    reason TEXT,
    row_checksum INTEGER
);
CREATE TABLE allocations (
    seq INTEGER PRIMARY KEY,
    generation INTEGER NOT NULL,
    at REAL NOT NULL,
    sid TEXT NOT NULL,
    base INTEGER NOT NULL,
    count INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    attempts TEXT,
    reason TEXT
);
CREATE TABLE results (
    seq INTEGER PRIMARY KEY,
    generation INTEGER NOT NULL,
    at REAL NOT NULL,
    sid TEXT NOT NULL,
    base INTEGER NOT NULL,
    count INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    attempts TEXT,
    seconds TEXT,
    total_s REAL NOT NULL,
    failed INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    host TEXT,
    row_checksum INTEGER,
    head BLOB NOT NULL,
    file TEXT,
    frames BLOB
);
CREATE TABLE failures (
    seq INTEGER PRIMARY KEY,
    generation INTEGER NOT NULL,
    at REAL NOT NULL,
    task INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    sid TEXT NOT NULL,
    type TEXT NOT NULL,
    message TEXT NOT NULL,
    traceback TEXT NOT NULL,
    arguments TEXT
);
CREATE INDEX failure_by_task ON failures (generation, task);
CREATE TABLE ends (
    seq INTEGER PRIMARY KEY,
    generation INTEGER NOT NULL,
    at REAL NOT NULL,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    state TEXT NOT NULL,
    sid TEXT,
    reason TEXT NOT NULL
);
CREATE TABLE losses (
    seq INTEGER PRIMARY KEY,
    generation INTEGER NOT NULL,
    at REAL NOT NULL,
    sid TEXT NOT NULL,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    algorithm TEXT NOT NULL,
    cause TEXT NOT NULL,
    charged INTEGER NOT NULL,
    lost_s REAL NOT NULL,
    reason TEXT NOT NULL
);
CREATE TABLE agents (
    seq INTEGER PRIMARY KEY,
    generation INTEGER NOT NULL,
    at REAL NOT NULL,
    agent TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    job TEXT NOT NULL,
    address TEXT NOT NULL,
    slaves INTEGER NOT NULL,
    python TEXT NOT NULL,
    returns_s REAL NOT NULL,
    packages TEXT,
    ended REAL,
    reason TEXT
);
CREATE UNIQUE INDEX agent_by_name ON agents (generation, agent);
CREATE TABLE slaves (
    seq INTEGER PRIMARY KEY,
    generation INTEGER NOT NULL,
    at REAL NOT NULL,
    sid TEXT NOT NULL,
    agent TEXT NOT NULL,
    kind TEXT NOT NULL,
    ended REAL,
    cause TEXT,
    reason TEXT,
    running TEXT,
    peak_bytes INTEGER,
    last_words TEXT
);
CREATE UNIQUE INDEX slave_by_sid ON slaves (generation, sid);
CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    generation INTEGER NOT NULL,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    text TEXT NOT NULL
);
"""

_VIEWS = """
CREATE VIEW answers AS
SELECT r.generation, r.base + j.key AS task,
    CASE WHEN r.attempts IS NULL THEN r.attempt ELSE json_extract(r.attempts, '$."' || j.key || '"') END AS attempt,
    r.sid, r.at, CASE WHEN r.seconds IS NULL THEN r.total_s / r.count ELSE j.value END AS seconds, r.failed
FROM results r, json_each(coalesce(r.seconds, ZEROS(r.count))) j;
CREATE VIEW attempts AS
SELECT a.generation, a.task, a.attempt, a.sid, g.host, a.at AS sent, coalesce(r.at, l.at) AS ended,
    CASE WHEN r.task IS NULL THEN coalesce(l.cause, 'no end is known')
        WHEN f.task IS NULL THEN 'finished' ELSE 'failed' END AS outcome,
    r.seconds
FROM (
    SELECT a.generation, a.base + j.key AS task, a.sid, a.at,
        CASE WHEN a.attempts IS NULL THEN a.attempt ELSE j.value END AS attempt
    FROM allocations a, json_each(coalesce(a.attempts, ZEROS(a.count))) j
) a
LEFT JOIN answers r ON r.generation = a.generation AND r.task = a.task AND r.attempt = a.attempt
LEFT JOIN failures f ON f.generation = a.generation AND f.task = a.task AND f.attempt = a.attempt
LEFT JOIN losses l ON l.generation = a.generation AND l.sid = a.sid AND l.attempt = a.attempt
    AND a.task BETWEEN l.first AND l.first + l.count - 1
LEFT JOIN slaves s ON s.generation = a.generation AND s.sid = a.sid
LEFT JOIN agents g ON g.generation = s.generation AND g.agent = s.agent;
CREATE VIEW tasks AS
SELECT t.generation, t.task, a.name AS algorithm,
    CASE WHEN f.task IS NOT NULL THEN 'failed' WHEN r.task IS NOT NULL THEN 'finished'
        ELSE coalesce(e.state, 'not ended') END AS state,
    coalesce(r.attempt, e.attempt) AS attempt, coalesce(r.sid, e.sid) AS sid, g.host, r.seconds,
    coalesce(r.at, e.at) AS ended, f.type AS error, coalesce(f.message, e.reason) AS message, f.arguments
FROM (
    SELECT u.generation, u.first + j.key AS task, u.algorithm FROM submissions u, json_each(ZEROS(u.count)) j
    WHERE u.answers IS NULL
) t
LEFT JOIN algorithms a ON a.generation = t.generation AND a.number = t.algorithm
LEFT JOIN answers r ON r.generation = t.generation AND r.task = t.task
LEFT JOIN failures f ON f.generation = t.generation AND f.task = t.task AND f.attempt = r.attempt
LEFT JOIN ends e ON e.generation = t.generation AND t.task BETWEEN e.first AND e.first + e.count - 1
LEFT JOIN slaves s ON s.generation = t.generation AND s.sid = coalesce(r.sid, e.sid)
LEFT JOIN agents g ON g.generation = s.generation AND g.agent = s.agent
UNION ALL
SELECT t.generation, t.task, a.name,
    CASE WHEN EXISTS (SELECT 1 FROM json_each(t.failed) WHERE value = t.place) THEN 'failed' ELSE 'finished' END,
    r.attempt, r.sid, g.host,
    CASE WHEN r.seconds IS NULL THEN r.total_s / r.count
        WHEN r.base THEN json_extract(r.seconds, '$[' || t.at_place || ']') END,
    r.at, f.type, f.message, f.arguments
FROM (
    SELECT u.generation, u.first + j.key AS task, j.key AS place, u.algorithm, coalesce(u.failed, '[]') AS failed,
        json_extract(j.value, '$[0]') AS at_row, json_extract(j.value, '$[1]') AS at_place
    FROM submissions u, json_each(u.answers) j
) t
LEFT JOIN algorithms a ON a.generation = t.generation AND a.number = t.algorithm
LEFT JOIN results r ON r.seq = t.at_row
LEFT JOIN failures f ON f.generation = r.generation AND f.task = r.base + t.at_place AND f.attempt = r.attempt
LEFT JOIN slaves s ON s.generation = r.generation AND s.sid = r.sid
LEFT JOIN agents g ON g.generation = s.generation AND g.agent = s.agent;
CREATE VIEW notices AS SELECT generation, at, substr(text, 8) AS text FROM events WHERE kind = 'Notice';
"""


def _zeros(found: re.Match[str]) -> str:
    """A JSON array with this many zeros, in SQL."""
    return f"'[' || substr(replace(hex(zeroblob({found[1]})), '00', ',0'), 2) || ']'"


SCHEMA = _TABLES + re.sub(r"ZEROS\((.*?)\)", _zeros, _VIEWS)
