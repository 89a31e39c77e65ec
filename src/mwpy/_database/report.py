"""The report of a run database: one HTML page with tables and charts, which loads nothing from elsewhere.

SQLite adds up what the page shows, in temporary tables, so a million tasks are never objects of Python. Most tables of
the page are queries: their columns are those of the page, and functions of Python in them write times and texts.

The axis of time has the lives of the master one after the other, without the time between them. Where a life has no
end, because it was killed or goes on, its last record counts as its end.

All texts of tasks, slaves and hosts are escaped, and the page allows no scripts. Each table and chart is bounded.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import accumulate, groupby
from math import ceil, floor, log10
from pathlib import Path
from string import Template
from typing import Any

from mwpy._database.opening import Connection
from mwpy._database.reading import states_of
from mwpy._system import clock
from mwpy._values.bounds import shortened
from mwpy._values.phrases import amount, counted, duration
from mwpy._values.policy import SPARE
from mwpy._values.requires import IN_BYTES
from mwpy.audit import CONTROLS

Row = dict[str, Any]
Query = Callable[..., list[Row]]
"""Returns the rows of a query in SQL, which are dicts with the names of the columns. Times are in seconds."""

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

WIDTH, MARGIN, LINE_HEIGHT = 900, 150, 14
"""The size of the timeline, of the names beside it, and of a line, in the units of its picture."""

PACE_NAMED = 1.5
"""A host that takes this many times as long as the others is called slow."""

SHORTEST_S = 1e-7
"""Where the axis of the times of tasks begins at the earliest, in seconds."""

TEXT_CHARACTERS = 300
"""How much of a reason, a message of the master or a command is shown in a table."""

SUMS = "submitted", "reused"
"""What the numbers of tasks have beside the states."""

SHARES = {
    "work": ("work", "tasks ran, and their results arrived"),
    "lost": ("lost attempts", "tasks ran, and their results never arrived: see the losses below"),
    "start": ("slaves that start", "agents were connected, and slaves of them started, or started again after a loss"),
    "before": (
        "waiting for the first task",
        "slaves were ready before tasks came, or tasks required what others had: submit earlier",
    ),
    "between": (
        "waiting between tasks",
        "no task was there, or it was on its way: submit earlier, or make tasks longer",
    ),
    "after": ("waiting at the end", "no task was left for the slave: submit long tasks first, or give fewer slaves"),
    "open": ("not known", "after the last result of each slave, in a life of the master without an end"),
}
"""What slaves do with their time, and what each part means."""

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
    {_ON_AXIS.format("s.at")} AS start, {_ON_AXIS.format("coalesce(s.ended, life.stop)")} AS stop,
    CASE WHEN (SELECT count(*) FROM slaves) > {LINES} THEN coalesce(a.host, 'unknown')
        WHEN s.generation > 1 THEN s.sid || ' of life ' || s.generation ELSE s.sid END AS line
FROM slaves s JOIN lives life USING (generation) LEFT JOIN agents a USING (generation, agent);
CREATE TEMP TABLE shown AS SELECT line FROM spans GROUP BY 1 ORDER BY sum(stop - start) DESC LIMIT {LINES};
CREATE TEMP TABLE bins (bin INTEGER PRIMARY KEY);
INSERT INTO bins WITH RECURSIVE b(bin) AS (SELECT 0 UNION ALL SELECT bin + 1 FROM b LIMIT {BINS}) SELECT bin FROM b;
CREATE TEMP TABLE work AS
SELECT r.generation, r.sid, r.total_s, {_ON_AXIS.format("r.at")} AS stop
FROM results r JOIN lives life USING (generation);
CREATE TEMP TABLE lost AS
SELECT l.generation, l.sid, l.algorithm, l.cause, l.count, l.lost_s, l.first, l.reason,
    {_ON_AXIS.format("l.at")} AS stop
FROM losses l JOIN lives life USING (generation);
CREATE TEMP TABLE done AS
SELECT s.*, coalesce(w.seconds, 0) AS work, coalesce(l.attempts, 0) AS attempts, coalesce(l.seconds, 0) AS lost_s,
    coalesce(min(w.first, l.first), w.first, l.first, s.stop) AS first,
    max(coalesce(w.last, s.start), coalesce(l.last, s.start)) AS last
FROM spans s
LEFT JOIN (SELECT generation, sid, min(stop - total_s) AS first, max(stop) AS last, sum(total_s) AS seconds
    FROM work GROUP BY 1, 2) w USING (generation, sid)
LEFT JOIN (SELECT generation, sid, min(stop - lost_s) AS first, max(stop) AS last, sum(count) AS attempts,
    sum(lost_s) AS seconds FROM lost GROUP BY 1, 2) l USING (generation, sid);
CREATE TEMP TABLE policies AS
SELECT DISTINCT a.name AS algorithm, s.policy FROM submissions s
JOIN algorithms a ON a.generation = s.generation AND a.number = s.algorithm WHERE s.policy IS NOT NULL;
CREATE TEMP TABLE ended (task INTEGER PRIMARY KEY, generation, algorithm, state, host, seconds, error);
INSERT OR IGNORE INTO ended
SELECT task, generation, coalesce(algorithm, 'unknown'), state, host, seconds, error FROM tasks
WHERE generation = (SELECT max(generation) FROM lives)
"""
"""`spans` are the slaves, `done` has what each of them did, and `ended` the tasks of the last life."""

_SHARES = f"""
SELECT work, lost, start, before, max(0.0, slaves - work - lost - before - after - open) AS "between", after, open
FROM (
    SELECT total(work) AS work, total(stop - start) AS slaves, total(max(0, min(first, stop) - start)) AS before,
        total(CASE WHEN NOT is_open THEN max(0, stop - max(last, start)) END) AS after,
        total(CASE WHEN is_open THEN max(0, stop - max(last, start)) END) AS open FROM done
), (SELECT total(lost_s) AS lost FROM lost), (
    SELECT total(max(0, slots * (stop - start) - ran)) AS start FROM (
        SELECT a.slaves AS slots, {_ON_AXIS.format("a.at")} AS start,
            {_ON_AXIS.format("coalesce(a.ended, life.stop)")} AS stop, coalesce(s.seconds, 0) AS ran
        FROM agents a JOIN lives life USING (generation)
        LEFT JOIN (SELECT generation, agent, sum(stop - start) AS seconds FROM spans GROUP BY 1, 2) s
        USING (generation, agent)))
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

_HOSTS = f"""
SELECT coalesce(s.host, 'unknown') AS host, s.slaves, coalesce(t.tasks, 0) AS tasks, coalesce(t.failed, 0) AS failed,
    s.seconds, t.pace, s.attempts, s.lost_s, s.peak
FROM (
    SELECT host, count(*) AS slaves, max(peak_bytes) AS peak, total(work) AS seconds, sum(attempts) AS attempts,
        total(lost_s) AS lost_s FROM done GROUP BY 1
) s LEFT JOIN (
    SELECT host, sum(tasks) AS tasks, sum(failed) AS failed, sum(CASE WHEN is_known THEN seconds END)
        / sum(CASE WHEN is_known THEN tasks * others_s / others END) AS pace
    FROM (
        SELECT *, min(tasks, others) >= {LEAST_TASKS} AS is_known FROM (
            SELECT *, sum(tasks) OVER one - tasks AS others, sum(seconds) OVER one - seconds AS others_s FROM (
                SELECT algorithm, host, count(seconds) AS tasks, total(seconds) AS seconds,
                    sum(state = 'failed') AS failed FROM ended WHERE host IS NOT NULL GROUP BY 1, 2
            ) WINDOW one AS (PARTITION BY algorithm))
    ) GROUP BY host
) t ON t.host = s.host ORDER BY t.pace DESC, s.seconds DESC
"""
"""A pace is how long the tasks of a host took, to how long others took for the same; NULL if this is not known."""

_ASKED = """
SELECT algorithm, longest, seconds_expected, seconds_max, memory_max,
    (SELECT max(bytes) FROM peaks p WHERE p.algorithm = e.algorithm) AS peak,
    EXISTS (SELECT 1 FROM lost l WHERE l.algorithm = e.algorithm AND cause = 'time limit') AS is_late,
    EXISTS (SELECT 1 FROM lost l WHERE l.algorithm = e.algorithm AND cause = 'out of memory') AS is_full
FROM (SELECT algorithm, max(seconds) AS longest, total(seconds) AS seconds, count(*) AS tasks FROM ended GROUP BY 1) e
LEFT JOIN (SELECT algorithm, max(json_extract(policy, '$.seconds_expected')) AS seconds_expected,
    max(json_extract(policy, '$.seconds_max')) AS seconds_max,
    max(json_extract(policy, '$.memory_max')) AS memory_max FROM policies GROUP BY 1) USING (algorithm)
ORDER BY seconds DESC, tasks DESC LIMIT ?
"""

_AMOUNTS = """
SELECT json_extract(j.value, '$[0]') AS name, max(json_extract(j.value, '$[1]')) AS amount
FROM policies s, json_each(s.policy, '$.requires.amounts') j WHERE algorithm = ? GROUP BY 1
"""

_TIMELINE = """
SELECT line, bin, sum(seconds * NOT is_work) AS there, sum(seconds * is_work) AS busy FROM (
    SELECT s.line, bin, is_work, max(0, min(p.stop, (bin + 1) * ?1) - max(p.start, bin * ?1)) AS seconds FROM (
        SELECT generation, sid, start, stop, 0 AS is_work FROM spans
        UNION ALL SELECT generation, sid, stop - total_s, stop, 1 FROM work
    ) p JOIN spans s USING (generation, sid)
    JOIN bins ON bin BETWEEN CAST(p.start / ?1 AS INTEGER) AND CAST(p.stop / ?1 AS INTEGER)
    WHERE s.line IN (SELECT line FROM shown)
) GROUP BY 1, 2 ORDER BY length(line), line, bin
"""

_MARKS = f"""
SELECT line, min(CAST(l.stop / ? AS INTEGER), {BINS - 1}) AS bin, sum(count) AS attempts, cause
FROM lost l JOIN spans USING (generation, sid) WHERE line IN (SELECT line FROM shown) GROUP BY 1, 2
"""

_LOSSES = """
SELECT cause, coalesce(algorithm, 'unknown') AS algorithm, sum(count) AS attempts, duration(sum(lost_s)) AS time,
    example(first, sid, reason) AS example
FROM lost GROUP BY 1, 2 ORDER BY sum(lost_s) DESC, 3 DESC LIMIT ?
"""

_DEATHS = """
SELECT cause, sid, running, last_words, max(length(last_words)) FROM slaves
WHERE running <> '' GROUP BY cause ORDER BY count(*) DESC LIMIT ?
"""

_UNRUNNABLE = """
SELECT state AS "ended without a result", sum(count) AS tasks, example(first, sid, reason) AS example FROM ends
WHERE generation = (SELECT max(generation) FROM lives)
GROUP BY state, substr(reason, 1, instr(reason || ':', ':')) ORDER BY 2 DESC LIMIT ?
"""

_KINDS = """
SELECT error, count(*) AS count, min(task) AS task, algorithm, host FROM ended WHERE error IS NOT NULL
GROUP BY 1 ORDER BY 2 DESC LIMIT ?
"""

_FAILURE = """
SELECT message, traceback, arguments, generation = (SELECT max(generation) FROM lives) AND task = ?2 AS is_own
FROM failures WHERE type = ?1 ORDER BY is_own DESC, seq LIMIT 1
"""

_LIVES = """
SELECT 'life ' || generation AS master, date_of(g.started) AS started, duration(stop - g.started) AS time,
    coalesce(lower(nullif(why, '')), 'no end is known') AS "end", 'process ' || pid || ' on ' || host AS "where",
    python AS Python, coalesce(nullif(mwpy, ''), 'unknown') AS mwpy,
    short((SELECT group_concat(value, ' ') FROM json_each(command))) AS command
FROM generations g JOIN lives USING (generation) ORDER BY generation DESC LIMIT ?
"""

_PYTHONS = """
SELECT coalesce(python, 'unknown') AS "Python of agents", count(*) AS agents, count(DISTINCT host) AS hosts
FROM agents GROUP BY 1 LIMIT ?
"""

_PACKAGES = """
SELECT j.value AS "packages that differ from the master's", count(*) AS agents
FROM (SELECT packages FROM agents LIMIT -1) a, json_each(a.packages, '$.different') j GROUP BY 1 ORDER BY 2 DESC LIMIT ?
"""

_NOTICES = "SELECT date_of(at) AS time, short(text) AS message FROM notices ORDER BY at DESC LIMIT ?"

_AT_ONCE = """
SELECT coalesce(max(slaves), 0) AS slaves FROM (SELECT sum(change) OVER (ORDER BY at, change) AS slaves FROM (
    SELECT start AS at, 1 AS change FROM spans UNION ALL SELECT stop, -1 FROM spans))
"""


class Html(str):
    """A text that is HTML, and is not escaped again."""

    __slots__ = ()


def page_of(connection: Connection, last: int, name: str) -> str:
    """Return the page.

    Args:
        connection: is used for this alone, and closed by the caller. It gets temporary tables and functions.
        last: the number of the last life of the master.
        name: the name of the run database.

    Raises:
        RunDatabaseError: the file is damaged.
    """
    connection.run("PRAGMA query_only = 0")  # the file itself is open for reading only
    connection.add_functions(duration=duration, short=_short, date_of=_date, example=_example)
    connection.run("BEGIN")
    for statement in _TABLES.split(";\n"):
        connection.run(statement)

    def asked(statement: str, *parameters: object) -> list[Row]:
        return [dict(row) for row in connection.rows(statement, parameters)]

    def table(statement: str) -> str:
        return _table_of(asked(statement, ROWS))

    [shares], hosts, algorithms = asked(_SHARES), asked(_HOSTS), asked(_ALGORITHMS, ROWS)
    for each in algorithms:
        each["times"] = [(row["digits"], row["count"]) for row in asked(_TIMES, each["algorithm"])]
    tasks = states_of(connection, "ended", last)
    lives = asked("SELECT * FROM generations JOIN lives USING (generation) ORDER BY generation")
    body = [
        *(f"<p>{sentence}</p>" for sentence in _story(asked, lives, tasks, shares, hosts)),
        _section("Where the time went", _bar(shares), _table_of_shares(shares)),
        _section("Tasks by algorithm", _table_of(map(_row_of_algorithm, algorithms))),
        _section("Timeline", *_timeline(asked, lives, hosts)),
        _section("How long tasks took", *_histograms(algorithms)),
        _section("Hosts", *_hosts(hosts)),
        _section("Asked for and used", *_requests(asked)),
        _section("Lost attempts", table(_LOSSES), *_last_outputs(asked)),
        _section("Failures", *_failures(asked), table(_UNRUNNABLE)),
        _section("Lives of the master, and versions", *map(table, (_LIVES, _PYTHONS, _PACKAGES))),
        _section("Last messages of the master", table(_NOTICES)),
    ]
    frame = Template(Path(__file__).parents[1].joinpath("frame.html").read_text(encoding="utf-8"))
    return frame.substitute(title=_text(f"Report of {name}"), body="\n".join(filter(None, body)))


# ---- texts ------------------------------------------------------------------------------------------------------


def _text(value: object) -> Html:
    """Escape a text. What would change how other texts are shown is visible."""
    seen = re.sub(f"[{CONTROLS}]", lambda found: found[0].encode("unicode_escape").decode(), str(value))
    return Html(escape(seen))


def _short(value: object) -> str:
    return shortened(str(value or ""), TEXT_CHARACTERS)


def _date(wall_s: float) -> str:
    return clock.date(wall_s).replace("T", " ").replace("Z", " UTC")


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _place(row: Row) -> str:
    return f"task {row['task']}" + (f" on {row['host']}" if row["host"] else "")


def _example(task: int, sid: str | None, reason: str) -> str:
    return f"task {task}{f' on {sid}' if sid else ''}: {_short(reason)}"


def _story(
    asked: Query, lives: Sequence[Row], tasks: Mapping[str, int], shares: Mapping[str, float], hosts: Sequence[Row]
) -> Iterator[str]:
    """What a person reads first, as sentences."""
    if not lives:
        yield "The run database has no life of a master."
        return
    last, [at_once] = lives[-1], asked(_AT_ONCE)
    path = Path(*json.loads(last["command"])[:1])
    program = path.parent.name if path.name == "__main__.py" else path.name
    again = f", in {len(lives)} lives of its master" if len(lives) > 1 else ""
    yield _text(
        f"{program} was given {tasks['submitted']:,} tasks. It took {duration(_end_of(lives))}{again}, from "
        f"{_date(lives[0]['started'])} to {_date(last['stop'])}, on up to "
        f"{counted(at_once['slaves'], 'slave')} of {counted(len(hosts), 'host')}."
    )
    states = ", ".join(f"{count:,} {state}" for state, count in tasks.items() if count and state not in SUMS)
    if last["ended"] is None:
        end = f"The master runs, or was killed: it has not said how it ends. This is as of {_date(last['stop'])}."
    elif last["why"] == "SHUTDOWN":
        end = "It ran to its end."
    else:
        end = f"It did not run to its end: {last['why'] or 'no reason is known'}."
    reused = f" {tasks['reused']:,} of them were answered from earlier lives." if tasks["reused"] else ""
    yield _text(f"{end} Of its tasks, {states or 'none is known'}.{reused}")
    whole = sum(shares.values())
    if whole:
        worst = max((name for name in SHARES if name != "work"), key=lambda name: shares[name])
        cost = f" The largest other part is {SHARES[worst][0]}: {_share(shares[worst], whole)}."
        work = f"{_share(shares['work'], whole)} of the time of the slaves was work."
        yield _text(work + (cost if shares[worst] else ""))
    for host in [host for host in hosts if _is_slow(host)][:3]:
        yield f'<span class="bad">{_text(host["host"])} is {host["pace"]:.1f} times slower than the others.</span>'


def _end_of(lives: Sequence[Row]) -> float:
    """How long all lives took together."""
    return lives[-1]["before"] + lives[-1]["stop"] - lives[-1]["started"] if lives else 0.0


def _section(title: str, *parts: str) -> str:
    """A part of the page with a heading; nothing if it has no content."""
    found = "\n".join(filter(None, parts))
    return f"<h2>{title}</h2>\n{found}" if found else ""


def _table_of(rows: Iterable[Row]) -> str:
    """A table with the columns of the rows; the first column names the rows. It is nothing if there are no rows."""
    found = [*rows]
    if not found:
        return ""
    head = "".join(f"<th scope='col'>{each}</th>" for each in found[0])
    lines = [(_cell(name, "th scope='row'"), *map(_cell, others)) for name, *others in (row.values() for row in found)]
    body = "\n".join(f"<tr>{''.join(line)}</tr>" for line in lines)
    return f"<figure><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></figure>"


def _cell(value: object, tag: str = "td") -> str:
    shown = value if isinstance(value, Html) else f"{value:,}" if isinstance(value, int) else _text(value)
    is_number = tag == "td" and (not isinstance(value, str) or value[:1].isdigit() or value == "-")
    return f"<{tag}{' class=n' if is_number else ''}>{shown}</{tag[:2]}>"


def _note(text: str) -> str:
    return f"<p class='dim'>{text}</p>"


# ---- where the time went --------------------------------------------------------------------------------------------


def _bar(shares: Mapping[str, float]) -> str:
    whole, x, parts = sum(shares.values()), 0.0, []
    if not whole:
        return "<p>No slave was connected.</p>"
    for name, seconds in shares.items():
        width = WIDTH * seconds / whole
        parts.append(_rect(x, 0, width, 28, f"var(--{name})"))
        x += width
    about = "; ".join(f"{SHARES[name][0]} {_share(seconds, whole)}" for name, seconds in shares.items() if seconds)
    return f"<figure>{_picture(WIDTH, 28, about, parts)}</figure>"


def _rect(x: float, y: float, width: float, height: float, fill: str, more: str = "/>") -> str:
    return f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}' fill='{fill}'{more}"


def _picture(width: int, height: int, about: str, parts: Iterable[str]) -> str:
    """A picture, and a text that says the same."""
    return (
        f"<svg viewBox='0 0 {width} {height}' role='img' aria-label='{_text(about)}'><title>{_text(about)}</title>"
        f"{''.join(parts)}</svg>"
    )


def _table_of_shares(shares: Mapping[str, float]) -> str:
    whole = sum(shares.values())
    return _table_of(
        {
            "what slaves did": Html(f"<span style='color: var(--{name})'>&#9632;</span> {title}"),
            "time of all slaves": duration(shares[name]),
            "share": _share(shares[name], whole),
            "when this is": about,
        }
        for name, (title, about) in SHARES.items()
        if shares[name]
    )


# ---- algorithms -----------------------------------------------------------------------------------------------------


def _at(times: Sequence[tuple[float, int]], part: float) -> float | None:
    """The time that this part of the tasks took at most; None if there are none."""
    sums = [*accumulate(count for _, count in times)]
    return times[bisect_left(sums, ceil(part * sums[-1]))][0] if sums else None


def _row_of_algorithm(each: Row) -> Row:
    return {name: each[name] for name in ("algorithm", "tasks", "finished", "failed", "others")} | {
        "median": duration(_at(each["times"], 0.5)),
        "95 % within": duration(_at(each["times"], 0.95)),
        "longest": duration(each["longest"]),
        "longest task": "-" if each["longest"] is None else _place(each),
        "time of all tasks": duration(each["seconds"]),
    }


def _histograms(algorithms: Sequence[Row]) -> Iterator[str]:
    timed = [each for each in algorithms if each["times"]]
    if not timed:
        return
    yield _note(
        "Each step to the right is 1.6 times as long. Items of a map that travel together share their time. The lines "
        "are the median and the time within which 95 % of the tasks ended."
    )
    yield "<div class='few'>"
    for each in timed:
        times = each["times"]
        half, most = (duration(_at(times, part)) for part in (0.5, 0.95))
        tasks = f"{sum(count for _, count in times):,} tasks"
        about = f"{each['algorithm']}: {tasks}, half of them within {half}, 95 % within {most}"
        picture = _picture(400, 150, about, _histogram(times))
        yield f"<figure>{picture}<figcaption>{_text(about)}</figcaption></figure>"
    yield "</div>"


def _histogram(times: Sequence[tuple[float, int]]) -> Iterator[str]:
    """Bars on a logarithmic axis, with five for a factor of ten."""
    places = [(log10(max(seconds, SHORTEST_S)), count) for seconds, count in times]
    low, high = floor(places[0][0]), floor(places[-1][0]) + 1
    step = 400 / (high - low)
    bars = Counter[int]()
    for place, count in places:
        bars[floor((place - low) * 5)] += count
    for bar, count in bars.items():
        height = max(1.0, 120 * count / max(bars.values()))
        yield _rect(bar * step / 5, 125 - height, step / 5 - 1, height, "var(--work)")
    for part in (0.5, 0.95):
        x = (log10(max(_at(times, part) or 0, SHORTEST_S)) - low) * step
        yield f"<path d='M{x:.1f} 0V125' stroke='var(--text)' stroke-dasharray='3 3'/>"
    for decade in range(low, high + 1):
        anchor = "start" if decade == low else "end" if decade == high else "middle"
        yield f"<text x='{(decade - low) * step:.0f}' y='142' text-anchor='{anchor}'>{duration(10.0**decade)}</text>"


# ---- timeline -------------------------------------------------------------------------------------------------------


def _timeline(asked: Query, lives: Sequence[Row], hosts: Sequence[Row]) -> Iterator[str]:
    """When slaves were there, and when they worked. Results that arrive together were computed just before."""
    whole, step = _end_of(lives), (WIDTH - MARGIN) / BINS
    width_s = max(whole, 1e-3) / BINS
    lines = {line: [*bins] for line, bins in groupby(asked(_TIMELINE, width_s), lambda row: row["line"])}
    if not lines:
        return
    height, parts = LINE_HEIGHT * len(lines), []
    y_of = {line: LINE_HEIGHT * place for place, line in enumerate(lines)}
    for line, bins in lines.items():
        y = y_of[line]
        parts.append(f"<text x='{MARGIN - 6}' y='{y + 11}' text-anchor='end'>{_text(shortened(line, 20))}</text>")
        levels = ((row["bin"], ceil(4 * min(1.0, row["busy"] / row["there"])) if row["there"] else 0) for row in bins)
        for (level, _), group in groupby(enumerate(levels), lambda each: (each[1][1], each[1][0] - each[0])):
            first, *_, last = (*group,) * 2
            x, width = MARGIN + first[1][0] * step, (last[1][0] - first[1][0] + 1) * step
            fill = f"var(--work)' fill-opacity='{level / 4}" if level else "var(--soft)"
            parts.append(_rect(x, y, width, LINE_HEIGHT - 2, fill))
    for mark in asked(_MARKS, width_s):
        what = _text(f"{counted(mark['attempts'], 'attempt')} lost: {mark['cause']}")
        more = f"><title>{what}</title></rect>"
        parts.append(_rect(MARGIN + mark["bin"] * step, y_of[mark["line"]], 4, LINE_HEIGHT - 2, "var(--lost)", more))
    for life in lives[1:]:
        x = MARGIN + life["before"] / width_s * step
        parts.append(f"<path d='M{x:.1f} 0V{height}' stroke='var(--text)' stroke-dasharray='3 3'/>")
    for part, anchor in ((0, "start"), (0.25, "middle"), (0.5, "middle"), (0.75, "middle"), (1, "end")):
        x = MARGIN + part * BINS * step
        when = duration(part * whole)
        parts.append(f"<text x='{x:.0f}' y='{height + 14}' text-anchor='{anchor}'>{when}</text>")
    each = "slave" if sum(host["slaves"] for host in hosts) <= LINES else "host"
    about = f"{counted(len(lines), each)} over {duration(whole)}: when they were there and worked"
    yield f"<figure class='wide'>{_picture(WIDTH, height + 20, about, parts)}</figure>"
    yield _note(
        f"A line is a {each}{f', of at most {LINES}' if len(lines) == LINES else ''}. The darker, the more of "
        "the time its slaves worked; grey is waiting, and empty is not connected. Lost attempts are red. A dashed line "
        "is a new life of the master; the time between two lives is left out."
    )


# ---- hosts, requests ------------------------------------------------------------------------------------------------


def _hosts(hosts: Sequence[Row]) -> Iterator[str]:
    yield _table_of(
        {name: each[name] for name in ("host", "slaves", "tasks", "failed")}
        | {
            "work": duration(each["seconds"]),
            "pace": _pace(each),
            "lost attempts": each["attempts"],
            "lost time": duration(each["lost_s"]),
            "peak memory of a slave": amount(each["peak"]) if each["peak"] else "-",
        }
        for each in hosts[:HOSTS]
    )
    if hosts:
        yield _note(
            "The pace compares how long tasks took here with how long tasks of the same algorithms took on the other "
            f"hosts. Both must have {LEAST_TASKS} of them. Tasks are those of the last life of the master. At most "
            f"{HOSTS} hosts are named."
        )


def _is_slow(host: Row) -> bool:
    return (host["pace"] or 0) >= PACE_NAMED


def _pace(host: Row) -> Html | str:
    pace = host["pace"]
    if pace is None:
        return "-"
    if _is_slow(host):
        return Html(f"<span class='bad'>{pace:.1f} times slower than the others</span>")
    return f"{1 / pace:.1f} times faster" if 0 < pace <= 1 / PACE_NAMED else "like the others"


LIMITS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("seconds_expected", "expected", duration),
    ("seconds_max", "at most", duration),
    ("memory_max", "memory at most", amount),
)
"""What a policy can ask for, and how it is shown."""


def _requests(asked: Query) -> Iterator[str]:
    rows = []
    for each in asked(_ASKED, ROWS):
        wanted = [f"{what} {show(each[key])}" for key, what, show in LIMITS if each[key]]
        for row in asked(_AMOUNTS, each["algorithm"]):
            wanted.append(f"{row['name']} {amount(row['amount']) if row['name'] in IN_BYTES else row['amount']}")
        longest, peak = each["longest"], each["peak"]
        seconds = f"seconds_max={max(1.0, _rounded(SPARE * longest)):g}" if longest else ""
        memory = f'memory="{ceil(SPARE * peak / (10 << 20)) * 10} MB"' if peak else ""
        if each["is_late"]:
            seconds = f"more than seconds_max={each['seconds_max'] or 0:g}"
        if each["is_full"]:
            most = each["memory_max"] or peak
            memory = f"more memory than {amount(most) if most else 'it had'}"
        rows.append(
            {
                "algorithm": each["algorithm"],
                "asked for": ", ".join(wanted) or "nothing",
                "used": f"longest {duration(longest)}" + (f", peak {amount(peak)}" if peak else ""),
                "the request that would have done": ", ".join(filter(None, (seconds, memory))),
            }
        )
    yield _table_of(rows)
    if rows:
        yield _note(
            f"The request is {SPARE:g} times the longest time and the largest peak of memory, rounded up, and a second "
            "at least. If attempts were killed at a limit, what they need is not known. Where no memory is named, none "
            "was measured."
        )


def _rounded(number: float) -> float:
    """Round up to two digits."""
    digit = 10.0 ** (floor(log10(number)) - 1)
    return ceil(number / digit - 1e-9) * digit


# ---- losses and failures --------------------------------------------------------------------------------------------


def _last_outputs(asked: Query) -> Iterator[str]:
    for each in asked(_DEATHS, ROWS):
        if each["last_words"]:
            title = f"Last output of {each['sid']}, which ended while it ran {each['running']}: {each['cause']}"
            yield f"<details><summary>{_text(title)}</summary><pre>{_text(each['last_words'])}</pre></details>"


def _failures(asked: Query) -> Iterator[str]:
    for each in [kind | row for kind in asked(_KINDS, ROWS) for row in asked(_FAILURE, kind["error"], kind["task"])]:
        message, trace = each["message"], each["traceback"]
        yield f"<h3>{_text(each['error'])}: {counted(each['count'], 'task')}, such as {_text(_place(each))}</h3>"
        if each["is_own"] and "\nto repeat it: " not in trace:  # a program has said how
            call = f"{each['algorithm']}({each['arguments']})" if each["arguments"] is not None else each["algorithm"]
            yield f"<p>The call: <code>{_text(call)}</code>. In the process of its master, "
            yield f"<code>mwpy.replay({each['task']})</code> repeats it.</p>"
        if message not in trace:
            yield f"<p>{_text(message)}</p>"
        yield f"<pre>{_text(trace)}</pre>"
