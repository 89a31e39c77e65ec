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
from typing import Any

from attrs import define

from mwpy._roles.join import status as ask
from mwpy._system import clock
from mwpy._values.errors import ExitCode
from mwpy._values.phrases import counted
from mwpy.cli._arguments import Parser, number, on_screen

__all__ = ["main", "make_parser", "shown"]

TASKS = "pending", "blocked", "delayed", "at_slaves", "finished", "failed"
SLAVES = "agents", "starting", "idle", "busy", "leaving", "away", "finished", "failed"


def main(arguments: Sequence[str]) -> int:
    """Show what a master does; return the exit code."""
    parsed = make_parser().parse_args(arguments)
    screen = _Screen(redraws=parsed.watch and not parsed.json and sys.stdout.isatty())
    while True:
        status = ask(parsed.path)
        screen.show([json.dumps(status)] if parsed.json else shown(status))
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


@define(eq=False, repr=False)
class _Screen:
    """Shows one text after the other.

    Args:
        redraws: whether each text replaces the last one. The output is a terminal then.
    """

    redraws: bool
    _drawn: int = 0

    def show(self, lines: Sequence[str]) -> None:
        """Show a text."""
        if self.redraws:
            width, height = shutil.get_terminal_size()
            lines = [line[:width] for line in lines[: max(1, height - 1)]]
            print(f"\x1b[{self._drawn}F\x1b[J" if self._drawn else "", end="")
            self._drawn = len(lines)
        print("\n".join(lines), flush=True)


def shown(status: Mapping[str, Any]) -> list[str]:
    """Return what the command prints for a status: lines without characters that change a terminal."""
    return [on_screen(line) for line in _lines(status)]


def _lines(status: Mapping[str, Any]) -> Iterator[str]:
    if status["state"] == "finished":
        yield f"{status['member_id']} (generation {status['generation']}): the computation is finished"
        return
    yield f"{status['member_id']} (generation {status['generation']}), up {_span(status['uptime_s'])}"
    reused = f"; {status['reused']} of them were answered from the run database" if status["reused"] else ""
    yield f"tasks: {_named(status['tasks'])}{reused}"
    yield f"rate: {status['rate']:.3g} tasks a second over the last minute{_left(status)}"
    wanted = f"{status['slaves_wanted']} wanted, {status['slaves_needed']} needed"
    yield f"slaves: {status['slaves_connected']} connected, {wanted}"
    if status["waits"]:
        yield f"no tasks are sent: {status['waits']}"
    yield from _table("algorithm", TASKS, status["algorithms"])
    yield from _table("host", SLAVES, status["hosts"])
    for host, row in status["hosts"].items():
        if row["setting_up"]:
            yield f"{host}: the set-up runs on {counted(row['setting_up'], 'agent')}, and then the slaves start"
        if row["excluded"]:
            yield f"{host} gets no more work: {row['excluded']}"
    if status["failures"]:
        yield f"failures: {_named(status['failures'])}"
    if status["last_failure"]:
        yield f"last failure, {_span(status['last_failure_age_s'])} ago: {status['last_failure']}"
    if status["lost"]:
        yield f"lost attempts: {_named(status['lost'])}"
    for notice in status["notices"]:
        yield f"{_span(notice['age_s'])} ago: {notice['text']}"


def _left(status: Mapping[str, Any]) -> str:
    """How long the tasks that are left take at the present rate."""
    tasks, rate = status["tasks"], status["rate"]
    left = sum(tasks[state] for state in ("pending", "blocked", "delayed", "at_slaves"))
    return f", {counted(left, 'task')} left: {_span(left / rate)}" if left and rate else ""


def _named(counts: Mapping[str, int]) -> str:
    """The counts that are not zero, with their names."""
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count) or "none"


def _span(seconds: float) -> str:
    """A duration, in the form 1:02:03."""
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def _table(title: str, columns: Sequence[str], rows: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    if not rows:
        return
    width = max(len(title), *map(len, rows))
    heads = [column.replace("_", " ") for column in columns]
    yield "  ".join([f"{title:<{width}}", *(f"{head:>9}" for head in heads)])
    for name, row in rows.items():
        yield "  ".join([f"{name:<{width}}", *(f"{row[column]:>9}" for column in columns)])
