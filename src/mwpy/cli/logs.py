"""mwpy logs AUDIT_FILE [SLAVE-ID | TASK-ID] [--all | --stats]: show what an audit file says about slaves and tasks.

Without an id, it lists the slaves that died. With `--all`, it also lists slaves that ended as planned. With the
id of a slave, it prints all last output of this slave. With the number of a task, it prints all last output of the
slaves that died while they ran this task. With `--stats`, it sums up what was done and what was lost.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from mwpy._values import records
from mwpy._values.errors import ExitCode, UsageError
from mwpy._values.exits import REPLACED, describe_exit
from mwpy._values.phrases import amount, counted
from mwpy.audit import End, read_ends, read_totals
from mwpy.cli._arguments import Parser

__all__ = ["main"]

USAGE = "mwpy logs AUDIT_FILE [SLAVE-ID | TASK-ID] [--all | --stats]"

DESCRIPTION = (
    "Show the last output of slaves, from their master's audit file. Without an id, list the slaves that died."
)


def main(arguments: Sequence[str]) -> int:
    """Show the last output of slaves; return the exit code."""
    parsed = _parser().parse_args(arguments)
    ends = read_ends(parsed.path)
    try:
        if parsed.stats:
            _show_totals(read_totals(parsed.path), parsed.path)
        elif parsed.id is None:
            _list(ends, parsed.path, parsed.all)
        else:
            _show(ends, parsed.path, parsed.id)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return ExitCode.OK


def _parser() -> Parser:
    parser = Parser("logs", usage=USAGE, description=DESCRIPTION)
    parser.add_argument("path", type=Path, metavar="AUDIT_FILE", help="the audit file that the master writes")
    name = "show all last output of this slave (SLAVE-0), or of the slaves that died while they ran this task (7)"
    parser.add_argument("id", nargs="?", metavar="SLAVE-ID | TASK-ID", help=name)
    parser.add_argument("--all", action="store_true", help="also list slaves that ended as planned")
    name = "sum up the tasks, failures and lost attempts of the last run, by algorithm, host and cause"
    parser.add_argument("--stats", action="store_true", help=name)
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


def _show_totals(totals: Sequence[records.Total], path: Path) -> None:
    """Print a table of what was done on each host, for each algorithm, and then the lost attempts by cause."""
    if not totals:
        raise UsageError(f"{path} has no totals: the master writes them when it ends, and every ten minutes before")
    heads = f"{'tasks':>9} {'failed':>7} {'seconds':>11} {'longest':>9} {'lost':>6} {'lost s':>9}"
    print(f"{'algorithm':<24} {'host':<20} {heads}")
    for total in sorted(totals, key=lambda each: (each.algorithm, each.host)):
        lost = f"{sum(total.lost.values()):>6} {total.lost_s:>9.1f}"
        done = f"{total.tasks:>9} {total.failed:>7} {total.seconds:>11.1f} {total.longest_s:>9.3f}"
        print(f"{total.algorithm:<24} {total.host:<20} {done} {lost}")
    _show_limits(totals)
    causes = Counter[str]()
    for total in totals:
        causes.update(total.lost)
    for cause, count in causes.most_common():
        print(f"{counted(count, 'attempt')} lost: {cause}")


def _show_limits(totals: Sequence[records.Total]) -> None:
    """Print a table of what was asked for and what was used, for each algorithm that had a limit."""
    by_algorithm: dict[str, list[records.Total]] = {}
    for total in sorted(totals, key=lambda each: each.algorithm):
        if total.seconds_max or total.seconds_expected or total.memory_max:
            by_algorithm.setdefault(total.algorithm, []).append(total)
    if by_algorithm:
        times = f"{'seconds_max':>13} {'seconds_expected':>17} {'longest':>11}"
        print(f"{'asked for and used':<24} {times} {'memory_max':>13} {'peak':>11}")
    for algorithm, rows in by_algorithm.items():
        asked = max(row.seconds_max for row in rows), max(row.seconds_expected for row in rows)
        memory = max(row.memory_max for row in rows), max(row.memory_used for row in rows)
        limit, expected = (f"{each:g} s" if each else "-" for each in asked)
        most, used = (amount(each) if each else "-" for each in memory)
        longest = f"{max(row.longest_s for row in rows):.3f} s"
        print(f"{algorithm:<24} {limit:>13} {expected:>17} {longest:>11} {most:>13} {used:>11}")


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
