"""mwpy oversee RESOURCE_FILE ... --with SYSTEM: keep the right number of agents in a batch system.

Oversee computations: read their resource files, submit agents to a batch system while their masters lack slaves, and
remove jobs that wait or idle without being needed. If --max is too small for all computations, important ones come
first, and agents of others leave after the tasks that they run. The command ends when all computations are finished
and have no jobs left. When it is stopped (Ctrl-C, SIGTERM), its jobs stay with their masters; the next start finds
them. A job runs the program that the resource file names, in the working directory of this command.

With --json, `failed` says whether a file could not be read, or the batch system or a master did not answer, and
`messages` has the lines. Each of the `computations` has `file`, `mark`, `readable`, `finished`, `slaves_needed`,
`connected_jobs`, `jobs` (by state before the round; null if the batch system did not answer), `to_submit`, `to_remove`
and `to_drain` (what was decided), `submitted`, `removed` and `drained` (ids of jobs; what was done).

examples:
  mwpy oversee app.rsc --with htcondor
  mwpy oversee runs/ --with slurm --max 200 --line=--time=120
  mwpy oversee app.rsc --with sge --queue short.q --line='-l h_rt=3600'
  mwpy oversee app.rsc --with ssh --hosts hosts.txt --once
  mwpy oversee app.rsc --with htcondor --dry-run --json

exit codes:
  0    all is finished, or --once did what it decided
  2    a bad option
  4    with --once or --remove: a resource file is unreadable, or the batch system failed
  130  it was stopped
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from mwpy._core.overseer import OverseerSettings
from mwpy._roles import overseer
from mwpy._roles.overseer import OverseerOptions
from mwpy._system.forks import die_with_parent
from mwpy._values.errors import ExitCode
from mwpy._values.options import BATCH_SYSTEMS, parse
from mwpy.cli._arguments import Parser, add_job_options, batch_system, language, lines, number
from mwpy.run_database import run_at_end

__all__ = ["main", "make_parser", "options_of"]


def main(arguments: Sequence[str]) -> int:
    """Oversee computations, or remove their jobs; return the exit code."""
    parser = make_parser()
    parsed = parser.parse_args(arguments)
    if parsed.json and not (parsed.once or parsed.dry_run):
        parser.error("--json needs --once or --dry-run")
    if parsed.parent is not None and not die_with_parent(parsed.parent):
        return ExitCode.INTERRUPTED
    batch = batch_system(parsed)
    options = options_of(parsed)
    code = overseer.remove(options, batch) if parsed.remove else overseer.run(options, batch)
    if parsed.on_end is not None:
        summary = f"mwpy oversee {shlex.join(arguments)}: ended with exit code {code}\n"
        run_at_end(parsed.on_end, summary, parsed.run_database)
    return code


def _priority(text: str) -> tuple[str, int]:
    name, _, value = text.rpartition("=")
    if not name or not value.lstrip("-").isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form RESOURCE_FILE=NUMBER")
    return name, int(value)


def make_parser() -> Parser:
    """Describe the command line."""
    parser = Parser("oversee", __doc__)
    add = parser.add_argument
    add(
        "paths",
        nargs="+",
        type=Path,
        metavar="RESOURCE_FILE",
        help="the file that a master writes; or a directory: all its files *.rsc, including later ones",
    )
    add("--with", dest="system", required=True, choices=BATCH_SYSTEMS, help="where the agents run")
    add = parser.add_argument_group("how many jobs, and when").add_argument
    limit = "have at most N jobs in the queue, for all computations together; default 1000; with local, one per core"
    add("--max", type=number(0, int), metavar="N", help=limit)
    slaves = "how many slaves a job has; default 1"
    add("--processes-per-agent", type=number(1, int), default=1, metavar="N", help=slaves)
    per_minute = "submit at most N jobs a minute; default 200"
    add("--per-minute", type=number(1, int), default=200, metavar="N", help=per_minute)
    interval = "the time between two rounds; default 10"
    add("--interval", type=number(0.1, float), default=10.0, metavar="SECONDS", help=interval)
    patience = "remove jobs that have waited or idled this long without being needed; default 60; with --once, 0"
    add("--patience", type=number(0, float), metavar="SECONDS", help=patience)
    priority = "when --max is reached, computations with a higher number get jobs first, and others give theirs after "
    priority += "the tasks that run; default 0 (repeatable)"
    add("--priority", type=_priority, action="append", default=[], metavar="RESOURCE_FILE=N", help=priority)
    add_job_options(parser)
    add = parser.add_argument_group("the command itself").add_argument
    add("--once", action="store_true", help="run one round and exit")
    add("--dry-run", action="store_true", help="run one round, only say what it would do, and exit")
    as_json = "with --once or --dry-run: print one JSON object of what the round found, decided and did"
    add("--json", action="store_true", help=as_json)
    on_end = (
        "at the end, run this in a shell for at most 60 s; {summary} is a file with the exit code, {report} a report"
    )
    add("--on-end", metavar="COMMAND", help=on_end)
    database = "the run database of the computation, of which --on-end gets a report; without it, this is the summary"
    add("--run-database", type=Path, metavar="FILE", help=database)
    parent = "end, even if it is killed, with the process that started this one and has this number"
    add("--parent", type=number(1, int), metavar="PID", help=parent)
    add("--remove", action="store_true", help="remove all jobs of these computations, also those at work, and exit")
    return parser


def _job_limit_s(parsed: argparse.Namespace) -> tuple[float | None, float]:
    """After how many seconds a job ends: by the lines for the batch system, or by the agent's own lifetime. In the
    first case, the second number says how many seconds before its time limit this is."""
    limits = [(parse(parsed.command)[0].lifetime, 0.0)]
    if (own := language(parsed.system)) is not None:
        limits.append((own.time_limit_s(parsed.line), own.warned_s))
    return min(((limit, early) for limit, early in limits if limit is not None), default=(None, 0.0))


def options_of(parsed: argparse.Namespace) -> OverseerOptions:
    """Return the options of an overseer."""
    once = parsed.once or parsed.dry_run
    max_jobs = parsed.max
    if max_jobs is None:
        max_jobs = os.cpu_count() or 1 if parsed.system == "local" else 1000
    patience_s = parsed.patience if parsed.patience is not None else 0.0 if once else 60.0
    return OverseerOptions(
        paths=parsed.paths,
        settings=OverseerSettings(max_jobs, parsed.per_minute, patience_s, parsed.interval, *_job_limit_s(parsed)),
        slaves_per_job=parsed.processes_per_agent,
        priorities={name: value for path, value in parsed.priority for name in (path, os.path.realpath(path))},
        command=parsed.command,
        log_dir=parsed.log_dir,
        extra=lines(parsed),
        prologue=" && ".join(parsed.prologue),
        name=parsed.job_name or "",
        once=parsed.once,
        dry_run=parsed.dry_run,
        json=parsed.json,
    )
