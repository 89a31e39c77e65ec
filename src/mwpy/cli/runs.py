"""mwpy runs RUN_DATABASE [--json | --html FILE | --export FORMAT | --prune]: show what a run database says.

Show what a run database says: the lives of the master, the tasks by state, the failures by error, the slaves by
machine, and the time that was lost for each cause. --html writes a report: where the time went, a timeline, times of
tasks, hosts beside each other, what was asked for and used, losses and failures. The file is only read, also while the
master writes it; only --prune changes it.

examples:
  mwpy runs run.db
  mwpy runs run.db --json
  mwpy runs run.db --html report.html
  mwpy runs run.db --export csv --output tasks.csv
  mwpy runs run.db --prune

exit codes:
  0    the summary was printed, or what was asked for was done
  2    a bad option, no run database, or a master uses the file (--prune)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mwpy._system import clock
from mwpy._values.errors import ExitCode, UsageError
from mwpy._values.phrases import amount, counted
from mwpy.cli._arguments import Parser, number, show
from mwpy.run_database import RunDatabase

__all__ = ["main", "make_parser", "shown"]

SUMS = "submitted", "reused"
"""What the summary of tasks has beside the states."""


def main(arguments: Sequence[str]) -> int:
    """Show or export a run database, or make it smaller; return the exit code."""
    parsed = make_parser().parse_args(arguments)
    if parsed.export is None and (parsed.output is not None or parsed.generation is not None):
        raise UsageError("--output and --generation are for --export: name a format, such as --export csv")
    if parsed.prune:
        _prune(parsed.path)
        return ExitCode.OK
    with RunDatabase(parsed.path) as run:
        if parsed.html is not None:
            run.report(parsed.html)
        elif parsed.export is not None:
            run.export(parsed.output or sys.stdout, parsed.export, generation=parsed.generation)
        else:
            summary = run.summary()
            show(summary, shown(summary), as_json=parsed.json)
    return ExitCode.OK


def make_parser() -> Parser:
    """Describe the command line."""
    usage = "mwpy runs RUN_DATABASE [--json | --html FILE | --export FORMAT [--output FILE] [--generation N] | --prune]"
    parser = Parser("runs", __doc__, usage=usage)
    parser.add_argument("path", type=Path, metavar="RUN_DATABASE", help="the file of --mw-run-database")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--json", action="store_true", help="print the summary as one JSON object, for scripts")
    page = "write a report as a page, which loads nothing from elsewhere"
    what.add_argument("--html", type=Path, metavar="FILE", help=page)
    formats = "csv or jsonl: write the tasks of the last life of the master, one row each"
    what.add_argument("--export", choices=["csv", "jsonl"], metavar="FORMAT", help=formats)
    prune = "remove what no restart needs: old attempts, and results that the last complete run did not use"
    what.add_argument("--prune", action="store_true", help=prune)
    parser.add_argument("--output", type=Path, metavar="FILE", help="with --export: write this file; default: print")
    life = "with --export: write the tasks of this life of the master; default: of the last one"
    parser.add_argument("--generation", type=number(1, int), metavar="N", help=life)
    return parser


def _prune(path: Path) -> None:
    pruned = RunDatabase.prune(path)
    what = [counted(pruned.attempts, "old attempt"), counted(pruned.results, "unused result")]
    print(f"removed {', '.join(what)} and {counted(pruned.files, 'large value')}; {amount(pruned.bytes)} are free now")


def shown(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a summary."""
    generations = summary["generations"]
    yield f"{summary['member_id']}: {counted(len(generations), 'generation')} of the master"
    for each in generations[-10:]:
        end = f"to {clock.date(each['ended'])}" if each["ended"] else "no end is known: it was killed, or it runs"
        why = f", {each['why'].lower()}" if each["why"] else ""
        yield (
            f"  {each['generation']}: {clock.date(each['started'])} {end}{why}; process {each['pid']} on {each['host']}"
        )
    tasks = summary["tasks"]
    states = ", ".join(f"{count} {name}" for name, count in tasks.items() if count and name not in SUMS)
    reused = f"; {tasks['reused']} of them were answered before" if tasks["reused"] else ""
    yield f"tasks: {tasks['submitted']} submitted{f'; {states}' if states else ''}{reused}"
    for name, count in summary["algorithms"].items():
        yield f"  {name}: {counted(count, 'task')}"
    if summary["failures"]:
        yield "failures:"
        for each in summary["failures"]:
            arguments = f"({each['arguments']})" if each["arguments"] else ""
            message = each["message"].partition("\n")[0]
            yield f"  {each['count']} {each['error']}, such as task {each['task']}{arguments}: {message}"
    if summary["hosts"]:
        yield "slaves:"
        for each in summary["hosts"]:
            done = f"{counted(each['tasks'], 'result')}, {each['seconds']:.1f} s of compute time"
            yield f"  {each['host']}: {counted(each['slaves'], 'slave')}, {done}"
    if summary["lost"]:
        yield "lost attempts:"
        for each in summary["lost"]:
            yield f"  {each['attempts']} {each['cause']}, {each['seconds']:.1f} s"
