"""mwpy logs AUDIT_FILE [SLAVE-ID | TASK-ID] [--all | --stats]: show what an audit file says about slaves and tasks.

Show the last output of slaves, from their master's audit file. Without an id, list the slaves that died, and with --all
also those that ended as planned. With the id of a slave, print all last output of this slave. With the number of a
task, print all last output of the slaves that died while they ran this task. With --stats, sum up what was done and
what was lost.

examples:
  mwpy logs app.audit
  mwpy logs app.audit SLAVE-17
  mwpy logs app.audit 4711
  mwpy logs app.audit --stats

exit codes:
  0    what was asked for is in the file, or no slave died
  2    a bad option, no audit file, or the file does not contain the slave, the task or totals
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from msgspec import structs

from mwpy._core.master.totals import losses, table
from mwpy._values import records
from mwpy._values.errors import REPLACED, ExitCode, UsageError, describe_exit
from mwpy.audit import End, read_ends, read_totals
from mwpy.cli._arguments import Parser, show

__all__ = ["main", "make_parser"]


def main(arguments: Sequence[str]) -> int:
    """Show the last output of slaves; return the exit code."""
    parsed = make_parser().parse_args(arguments)
    ends = read_ends(parsed.path)
    if parsed.json and not parsed.stats:
        raise UsageError("--json is for --stats: the other output is text for people")
    if parsed.stats:
        _show_totals(read_totals(parsed.path), parsed.path, as_json=parsed.json)
    elif parsed.id is None:
        _list(ends, parsed.path, parsed.all)
    else:
        _show(ends, parsed.path, parsed.id)
    return ExitCode.OK


def make_parser() -> Parser:
    """Describe the command line."""
    parser = Parser("logs", __doc__, usage="mwpy logs AUDIT_FILE [SLAVE-ID | TASK-ID] [--all | --stats [--json]]")
    parser.add_argument("path", type=Path, metavar="AUDIT_FILE", help="the audit file that the master writes")
    name = "show all last output of this slave (SLAVE-0), or of the slaves that died while they ran this task (7)"
    parser.add_argument("id", nargs="?", metavar="SLAVE-ID | TASK-ID", help=name)
    parser.add_argument("--all", action="store_true", help="also list slaves that ended as planned")
    name = "sum up the tasks, failures and lost attempts of the last run, by algorithm, host and cause"
    parser.add_argument("--stats", action="store_true", help=name)
    parser.add_argument("--json", action="store_true", help="with --stats: print one JSON list, for scripts")
    return parser


def _list(ends: Iterable[End], path: Path, include_all: bool) -> None:
    planned = describe_exit(0), REPLACED
    shown = [end for end in ends if include_all or not end.reason.startswith(planned)]
    for end in shown:
        print(_line(end))
    if not shown:
        print(f"mwpy: no slave {'ended' if include_all else 'died'}, according to {path}", file=sys.stderr)


def _line(end: End) -> str:
    running = f" while it ran {end.running}, {end.cause}" if end.running else ""
    first, more = end.reason.partition("\n")[::2]
    return f"{end.time} {end.sid:<12} {end.peak or '-':>10}  {first}{' ...' if more else ''}{running}"


def _show_totals(totals: Sequence[records.Total], path: Path, *, as_json: bool) -> None:
    """Print a table of what was done on each host, for each algorithm, and then the lost attempts by cause."""
    if not totals:
        raise UsageError(f"{path} has no totals: the master writes them when it ends, and every ten minutes before")
    show([structs.asdict(total) for total in totals], chain(table(totals), losses(totals)), as_json=as_json)


def _show(ends: Iterable[End], path: Path, wanted: str) -> None:
    """Print one slave, or all slaves that died while they ran one task."""
    number = re.fullmatch(r"(?:task )?(\d+)", wanted)
    task = int(number[1]) if number else 0
    found = False
    for end in ends:
        if end.sid == wanted or (task and end.task == task):
            found = True
            print(_line(end))
            print(end.words.shown(None) or "(no output is known)")
    if not found:
        what = f"no slave that ended while it ran task {task}" if task else f"no end of a slave {wanted}"
        raise UsageError(f"{path} contains {what}: `mwpy logs {path} --all` lists the slaves in it")
