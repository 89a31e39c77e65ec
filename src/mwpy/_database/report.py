"""The report of a run database: one HTML page with tables and charts, which loads nothing from elsewhere.

All texts of tasks, slaves and hosts are escaped, and the page allows no scripts. Each table and chart is bounded.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import accumulate, groupby
from math import ceil, floor, log10
from pathlib import Path
from string import Template
from typing import Any

from mwpy._database.figures import BINS, HOSTS, LEAST_TASKS, LINES, ROWS, Figures, Row
from mwpy._system import clock
from mwpy._values.bounds import shortened
from mwpy._values.causes import Cause
from mwpy._values.phrases import amount, counted, duration
from mwpy._values.policy import SPARE
from mwpy._values.requires import IN_BYTES
from mwpy.audit import CONTROLS

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


class Html(str):
    """A text that is HTML, and is not escaped again."""

    __slots__ = ()


def page_of(figures: Figures, tasks: Mapping[str, int], name: str) -> str:
    """Return the page.

    Args:
        tasks: how many tasks of the last life are in each state.
        name: the name of the run database.
    """
    hosts = figures.hosts
    slow = [host for host in hosts if (host["pace"] or 0) >= PACE_NAMED]
    body = [
        *(f"<p>{sentence}</p>" for sentence in _story(figures, tasks, slow)),
        _section("Where the time went", _bar(figures.shares), _table_of_shares(figures.shares)),
        _section("Tasks by algorithm", _table_of_algorithms(figures)),
        _section("Timeline", *_timeline(figures)),
        _section("How long tasks took", *_histograms(figures)),
        _section("Hosts", _table_of_hosts(hosts)),
        _section("Asked for and used", *_table_of_requests(figures)),
        _section("Lost attempts", *_losses(figures)),
        _section("Failures", *_failures(figures)),
        _section("Lives of the master, and versions", *_versions(figures)),
        _section("Last messages of the master", _table("time, message", _notices(figures.notices))),
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


def _story(figures: Figures, tasks: Mapping[str, int], slow: Sequence[Row]) -> Iterator[str]:
    """What a person reads first, as sentences."""
    if not figures.lives:
        yield "The run database has no life of a master."
        return
    last, shares = figures.lives[-1], figures.shares
    path = Path(*last["command"][:1])
    program = path.parent.name if path.name == "__main__.py" else path.name
    again = f", in {len(figures.lives)} lives of its master" if len(figures.lives) > 1 else ""
    yield _text(
        f"{program} was given {tasks['submitted']:,} tasks. It took {duration(figures.duration)}{again}, from "
        f"{_date(figures.lives[0]['started'])} to {_date(last['stop'])}, on up to "
        f"{counted(figures.slaves, 'slave')} of {counted(len(figures.hosts), 'host')}."
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
    for host in slow[:3]:
        yield f'<span class="bad">{_text(host["host"])} is {host["pace"]:.1f} times slower than the others.</span>'


def _section(title: str, *parts: str) -> str:
    """A part of the page with a heading; nothing if it has no content."""
    found = "\n".join(filter(None, parts))
    return f"<h2>{title}</h2>\n{found}" if found else ""


def _table(heads: str, rows: Iterable[Sequence[object]], most: int = ROWS) -> str:
    """A table, whose first column names the rows; nothing if it has no rows. Commas divide its heads."""
    lines = ["".join([_cell(row[0], "th scope='row'"), *map(_cell, row[1:])]) for row in rows]
    if not lines:
        return ""
    head = "".join(f"<th scope='col'>{each}</th>" for each in heads.split(", "))
    more = f"<p class='dim'>{len(lines) - most:,} more are not shown.</p>" if len(lines) > most else ""
    body = "\n".join(f"<tr>{line}</tr>" for line in lines[:most])
    return f"<figure><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></figure>{more}"


def _note(text: str) -> str:
    return f"<p class='dim'>{text}</p>"


def _cell(value: object, tag: str = "td") -> str:
    shown = value if isinstance(value, Html) else f"{value:,}" if isinstance(value, int) else _text(value)
    is_number = tag == "td" and (not isinstance(value, str) or value[:1].isdigit() or value == "-")
    return f"<{tag}{' class=n' if is_number else ''}>{shown}</{tag[:2]}>"


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
    rows = [
        (Html(f"<span style='color: var(--{name})'>&#9632;</span> {title}"), duration(shares[name]), share, about)
        for name, (title, about) in SHARES.items()
        if (share := _share(shares[name], whole)) and shares[name]
    ]
    return _table("what slaves did, time of all slaves, share, when this is", rows)


# ---- algorithms -----------------------------------------------------------------------------------------------------


def _at(times: Sequence[tuple[float, int]], part: float) -> float | None:
    """The time that this part of the tasks took at most; None if there are none."""
    sums = [*accumulate(count for _, count in times)]
    return times[bisect_left(sums, ceil(part * sums[-1]))][0] if sums else None


def _table_of_algorithms(figures: Figures) -> str:
    rows = []
    for each in figures.algorithms:
        half, most = (duration(_at(figures.times[each["algorithm"]], part)) for part in (0.5, 0.95))
        longest, where = duration(each["longest"]), "-" if each["longest"] is None else _place(each)
        counts = (each[name] for name in ("tasks", "finished", "failed", "others"))
        name, whole = each["algorithm"] or "unknown", duration(each["seconds"])
        rows.append((name, *counts, half, most, longest, where, whole))
    heads = "tasks, finished, failed, others, median, 95 % within, longest, longest task, time of all tasks"
    return _table(f"algorithm, {heads}", rows)


def _place(row: Row) -> str:
    return f"task {row['task']}" + (f" on {row['host']}" if row["host"] else "")


def _histograms(figures: Figures) -> Iterator[str]:
    if not any(figures.times.values()):
        return
    yield _note(
        "Each step to the right is 1.6 times as long. Items of a map that travel together share their time. The lines "
        "are the median and the time within which 95 % of the tasks ended."
    )
    yield "<div class='few'>"
    for name, times in figures.times.items():
        if times:
            half, most = (duration(_at(times, part)) for part in (0.5, 0.95))
            tasks = f"{sum(count for _, count in times):,} tasks"
            about = f"{name or 'unknown'}: {tasks}, half of them within {half}, 95 % within {most}"
            picture = _picture(400, 150, about, _histogram(times))
            yield f"<figure>{picture}<figcaption>{_text(about)}</figcaption></figure>"
    yield "</div>"


def _histogram(times: Sequence[tuple[float, int]]) -> Iterator[str]:
    """Bars on a logarithmic axis, with five for a factor of ten."""
    places = [(log10(max(seconds, SHORTEST_S)), count) for seconds, count in times]
    low, high = floor(places[0][0]), floor(places[-1][0]) + 1
    step = 400 / (high - low)
    bars: dict[int, int] = {}
    for place, count in places:
        bars[floor((place - low) * 5)] = bars.get(floor((place - low) * 5), 0) + count
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


def _timeline(figures: Figures) -> Iterator[str]:
    lines, step = figures.timeline, (WIDTH - MARGIN) / BINS
    if not lines:
        return
    height, parts = LINE_HEIGHT * len(lines), []
    for place, (line, bins) in enumerate(lines.items()):
        y = LINE_HEIGHT * place
        name = line or "unknown"
        parts.append(f"<text x='{MARGIN - 6}' y='{y + 11}' text-anchor='end'>{_text(shortened(name, 20))}</text>")
        levels = ((at, ceil(4 * min(1.0, busy / there)) if there else 0) for at, (there, busy) in sorted(bins.items()))
        for (level, _), group in groupby(enumerate(levels), lambda each: (each[1][1], each[1][0] - each[0])):
            first, *_, last = (*group,) * 2
            x, width = MARGIN + first[1][0] * step, (last[1][0] - first[1][0] + 1) * step
            fill = f"var(--work)' fill-opacity='{level / 4}" if level else "var(--soft)"
            parts.append(_rect(x, y, width, LINE_HEIGHT - 2, fill))
    places = {line: place for place, line in enumerate(lines)}
    for mark in figures.marks:
        x, y = MARGIN + mark["bin"] * step, LINE_HEIGHT * places[mark["line"]]
        what = _text(f"{counted(mark['attempts'], 'attempt')} lost: {mark['cause']}")
        more = f"><title>{what}</title></rect>"
        parts.append(_rect(x, y, 4, LINE_HEIGHT - 2, "var(--lost)", more))
    for life in figures.lives[1:]:
        x = MARGIN + life["before"] / max(figures.duration, 1e-3) * BINS * step
        parts.append(f"<path d='M{x:.1f} 0V{height}' stroke='var(--text)' stroke-dasharray='3 3'/>")
    for part, anchor in ((0, "start"), (0.25, "middle"), (0.5, "middle"), (0.75, "middle"), (1, "end")):
        x = MARGIN + part * BINS * step
        when = duration(part * figures.duration)
        parts.append(f"<text x='{x:.0f}' y='{height + 14}' text-anchor='{anchor}'>{when}</text>")
    about = f"{counted(len(lines), figures.lines)} over {duration(figures.duration)}: when they were there and worked"
    yield f"<figure class='wide'>{_picture(WIDTH, height + 20, about, parts)}</figure>"
    yield _note(
        f"A line is a {figures.lines}{f', of at most {LINES}' if len(lines) == LINES else ''}. The darker, the more of "
        "the time its slaves worked; grey is waiting, and empty is not connected. Lost attempts are red. A dashed line "
        "is a new life of the master; the time between two lives is left out."
    )


# ---- hosts, requests ------------------------------------------------------------------------------------------------


def _table_of_hosts(hosts: Sequence[Row]) -> str:
    rows = []
    for each in hosts:
        counts, peak = (each[name] for name in ("slaves", "tasks", "failed")), each["peak"]
        lost = each["lost"], duration(each["lost_s"]), amount(peak) if peak else "-"
        rows.append((each["host"] or "unknown", *counts, duration(each["seconds"]), _pace(each["pace"]), *lost))
    heads = "host, slaves, tasks, failed, work, pace, lost attempts, lost time, peak memory of a slave"
    note = _note(
        "The pace compares how long tasks took here with how long tasks of the same algorithms took on the other "
        f"hosts. Both must have {LEAST_TASKS} of them. Tasks are those of the last life of the master."
    )
    return table + note if (table := _table(heads, rows, HOSTS)) else ""


def _pace(pace: float | None) -> Html | str:
    if pace is None:
        return "-"
    if pace >= PACE_NAMED:
        return Html(f"<span class='bad'>{pace:.1f} times slower than the others</span>")
    return f"{1 / pace:.1f} times faster" if 0 < pace <= 1 / PACE_NAMED else "like the others"


LIMITS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("seconds_expected", "expected", duration),
    ("seconds_max", "at most", duration),
    ("memory_max", "memory at most", amount),
)
"""What a policy can ask for, and how it is shown."""


def _table_of_requests(figures: Figures) -> Iterator[str]:
    killed = {(each["algorithm"], each["cause"]): each for each in figures.losses}
    rows = []
    for each in figures.algorithms:
        name = each["algorithm"]
        asked = figures.asked.get(name, {})
        late, full = (killed.get((name, cause.value)) for cause in (Cause.TIME_LIMIT, Cause.OUT_OF_MEMORY))
        wanted = [f"{what} {show(asked[key])}" for key, what, show in LIMITS if asked.get(key)]
        amounts = asked.get("amounts", {}).items()
        wanted += [f"{what} {amount(n) if what in IN_BYTES else n}" for what, n in amounts]
        seconds = f"seconds_max={max(1.0, _rounded(SPARE * each['longest'])):g}" if each["longest"] else ""
        memory = f'memory="{ceil(SPARE * asked["peak"] / (10 << 20)) * 10} MB"' if asked.get("peak") else ""
        seconds = f"more than seconds_max={asked.get('seconds_max') or 0:g}" if late else seconds
        most = asked.get("memory_max") or asked.get("peak")
        memory = f"more memory than {amount(most) if most else 'it had'}" if full else memory
        used = f"longest {duration(each['longest'])}" + (f", peak {amount(asked['peak'])}" if asked.get("peak") else "")
        would_do = ", ".join(filter(None, (seconds, memory)))
        rows.append((name or "unknown", ", ".join(wanted) or "nothing", used, would_do))
    yield _table("algorithm, asked for, used, the request that would have done", rows)
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


def _losses(figures: Figures) -> Iterator[str]:
    rows = [
        (each["cause"], each["algorithm"] or "unknown", each["attempts"], duration(each["seconds"]), _example(each))
        for each in figures.losses
    ]
    yield _table("cause, algorithm, attempts, time, example", rows)
    for each in figures.deaths:
        if each["last_words"]:
            title = f"Last output of {each['sid']}, which ended while it ran {each['running']}: {each['cause']}"
            yield f"<details><summary>{_text(title)}</summary><pre>{_text(each['last_words'])}</pre></details>"


def _example(row: Row) -> str:
    where = f" on {row['sid']}" if row["sid"] else ""
    return f"task {row['first']}{where}: {_short(row['reason'])}"


def _failures(figures: Figures) -> Iterator[str]:
    for each in figures.failures:
        message, trace = each["message"], each["traceback"]
        yield f"<h3>{_text(each['error'])}: {counted(each['count'], 'task')}, such as {_text(_place(each))}</h3>"
        if each["is_own"] and "\nto repeat it: " not in trace:  # a program has said how
            call = f"{each['algorithm']}({each['arguments']})" if each["arguments"] is not None else each["algorithm"]
            yield f"<p>The call: <code>{_text(call)}</code>. In the process of its master, "
            yield f"<code>mwpy.replay({each['task']})</code> repeats it.</p>"
        if message not in trace:
            yield f"<p>{_text(message)}</p>"
        yield f"<pre>{_text(trace)}</pre>"
    ends = [(each["state"], each["count"], _example(each)) for each in figures.unrunnable]
    yield _table("ended without a result, tasks, example", ends)


# ---- versions -------------------------------------------------------------------------------------------------------


def _versions(figures: Figures) -> Iterator[str]:
    rows = []
    for life in figures.lives[::-1]:
        when = (
            _date(life["started"]),
            duration(life["stop"] - life["started"]),
            life["why"].lower() if life["why"] else "no end is known",
        )
        what = life["python"], life["mwpy"] or "unknown", _short(" ".join(life["command"]))
        rows.append((f"life {life['generation']}", *when, f"process {life['pid']} on {life['host']}", *what))
    yield _table("master, started, time, end, where, Python, mwpy, command", rows)
    agents = [(each["python"] or "unknown", each["agents"], each["hosts"]) for each in figures.versions]
    yield _table("Python of agents, agents, hosts", agents)
    packages = [(each["text"], each["agents"]) for each in figures.packages]
    yield _table("packages that differ from the master's, agents", packages)


def _notices(notices: Sequence[Row]) -> Iterator[Sequence[object]]:
    return ((_date(each["at"]), _short(each["text"])) for each in notices)
