"""mwpy status RESOURCE_FILE [--watch | --json]: show what a running master does.

Ask a running master what it does: tasks by state and algorithm, slaves by machine and state, the rate, failures by
kind, the last failure, lost attempts by cause, and the last messages of the master. The computation is not disturbed.

examples:
  mwpy status app.rsc
  mwpy status app.rsc --watch --interval 10
  mwpy status app.rsc --json

exit codes:
  0    the master answered, or the computation is finished
  2    a bad option, or no resource file
  3    the master refused: the file is of another computation, or mwpy has another version
  4    no master answered
  130  --watch was stopped
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from mwpy._roles.join import status as ask
from mwpy._system import clock
from mwpy._values.errors import ExitCode
from mwpy._values.phrases import NAMED, counted, duration, laid_out
from mwpy.cli._arguments import Parser, number, on_screen
from mwpy.resource_file import overseer_of

__all__ = ["main", "make_parser", "shown"]

TASKS = "pending", "blocked", "delayed", "at_slaves", "finished", "failed"
SLAVES = "agents", "starting", "idle", "busy", "leaving", "away", "finished", "failed"

ENDED = "succeeded", "failed", "cancelled"
"""The states of tasks that have ended."""


def main(arguments: Sequence[str]) -> int:
    """Show what a master does; return the exit code."""
    parsed = make_parser().parse_args(arguments)
    is_terminal = not parsed.json and sys.stdout.isatty()
    drawn = 0
    while True:
        status = ask(parsed.path)
        width, height = shutil.get_terminal_size() if is_terminal else (None, None)
        found = {**status, "overseer": overseer_of(parsed.path)}
        lines = [json.dumps(status)] if parsed.json else shown(found, width, height if parsed.watch else None)
        if drawn and is_terminal:  # in place of the last answer
            print(f"\x1b[{drawn}F\x1b[J", end="")
        print("\n".join(lines), flush=True)
        drawn = len(lines)
        if not parsed.watch or status["state"] == "finished":
            return ExitCode.OK
        clock.sleep(parsed.interval)


def make_parser() -> Parser:
    """Describe the command line."""
    parser = Parser("status", __doc__)
    parser.add_argument("path", type=Path, metavar="RESOURCE_FILE", help="the file that the master writes")
    watch = "ask again and again until the computation is finished; on a terminal, the display is redrawn in place"
    parser.add_argument("--watch", action="store_true", help=watch)
    interval = "with --watch: the time between two questions; default 2"
    parser.add_argument("--interval", type=number(0.1, float), default=2.0, metavar="SECONDS", help=interval)
    parser.add_argument("--json", action="store_true", help="print one JSON object in a line for each answer")
    return parser


def shown(status: Mapping[str, Any], width: int | None = None, height: int | None = None) -> list[str]:
    """Return what the command prints for a status: lines without characters that change a terminal.

    Args:
        width: the width of the terminal, in characters. Names in tables are shortened, and what is still too long is
            divided between words, so no number is cut. None is any width.
        height: how many lines it has; one is for the cursor. Only the newest messages are shown then, and the tables
            are last, because their ends have no room. None shows everything.
    """
    algorithms = [*_table("algorithm", TASKS, status.get("algorithms", {}), width)]
    tables = [*algorithms, *_table("host", SLAVES, status.get("hosts", {}), width)]
    notices = [f"{_span(notice['age_s'])} ago: {notice['text']}" for notice in status.get("notices", ())]
    if height is None:
        lines = [*_head(status), *tables, *_findings(status), *notices]
    else:
        lines = [*_head(status), *_findings(status), *notices[-NAMED:], *tables]
    lines = [on_screen(line) for line in lines]
    if width is not None:
        divided = (wrap(line, width, subsequent_indent="  ", break_on_hyphens=False) for line in lines)
        lines = [part for parts in divided for part in parts]
    if height is not None and len(lines) >= height:
        kept = max(0, height - 2)
        lines[kept:] = [f"({len(lines) - kept} more lines)"]
    return lines


def _head(status: Mapping[str, Any]) -> Iterator[str]:
    """How far the computation is."""
    name = f"{status['member_id']} (generation {status['generation']})"
    if status["state"] == "finished":
        yield f"{name}: the computation is finished"
        return
    yield f"{name}, up {_span(status['uptime_s'])}"
    tasks, unsubmitted = status["tasks"], status["unsubmitted"]
    ended, at_least = sum(tasks[state] for state in ENDED), "at least " if unsubmitted is None else ""
    left = sum(tasks.values()) - ended + (unsubmitted or 0)
    reused = f"; {status['reused']} of them were answered from the run database" if status["reused"] else ""
    yield f"tasks: {ended} of {at_least}{ended + left} have ended{reused}: {_named(tasks)}"
    for each in status["maps"][:NAMED]:
        items = "an unknown number of items" if each["total"] is None else counted(each["total"], "item")
        failed = f", {each['failed']} failed" if each["failed"] else ""
        yield f"map of {each['name']}: {each['done']} of {items} have ended{failed}"
    if len(status["maps"]) > NAMED:
        yield f"({counted(len(status['maps']) - NAMED, 'more map')})"
    rate = status["rate"]
    time_left = f", {at_least}{counted(left, 'task')} left: {at_least}{_span(left / rate)}" if left and rate else ""
    per_second = f"{rate:.3g}" if rate < 1000 else f"{rate:.0f}"
    yield f"rate: {per_second} tasks a second over the last minute{time_left}"
    wanted = f"{status['slaves_wanted']} wanted, {status['slaves_needed']} needed"
    yield f"slaves: {status['slaves_connected']} connected, {wanted}"
    if status["waits"]:
        yield f"no tasks are sent: {status['waits']}"
    if (overseer := status.get("overseer")) and overseer["messages"]:
        yield f"overseer: {overseer['messages'][-1]}"


def _findings(status: Mapping[str, Any]) -> Iterator[str]:
    """What went wrong."""
    for host, row in status.get("hosts", {}).items():
        if row["setting_up"]:
            yield f"{host}: the set-up runs on {counted(row['setting_up'], 'agent')}, and then the slaves start"
        if row["excluded"]:
            yield f"{host} gets no more work: {row['excluded']}"
    if status.get("failures"):
        yield f"failures: {_named(status['failures'])}"
    if status.get("last_failure"):
        yield f"last failure, {_span(status['last_failure_age_s'])} ago: {status['last_failure']}"
    if status.get("lost"):
        yield f"lost attempts: {_named(status['lost'])}"


def _named(counts: Mapping[str, int]) -> str:
    """The counts that are not zero, with their names."""
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count) or "none"


def _span(seconds: float) -> str:
    return duration(int(seconds))


def _table(
    title: str, columns: Sequence[str], rows: Mapping[str, Mapping[str, Any]], width: int | None
) -> Iterator[str]:
    """A table with one row a name."""
    if rows:
        lines = [[on_screen(name), *(str(row[column]) for column in columns)] for name, row in rows.items()]
        yield from laid_out([[title, *(column.replace("_", " ") for column in columns)], *lines], 1, width)
