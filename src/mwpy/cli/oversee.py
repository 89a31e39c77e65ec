"""mwpy oversee RESOURCE_FILE ... --with SYSTEM: keep the right number of agents in a batch system."""

from __future__ import annotations

import argparse
import math
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from mwpy._batch import Batch
from mwpy._core.overseer.state import OverseerSettings
from mwpy._roles import overseer
from mwpy._roles.overseer import OverseerOptions
from mwpy._values.errors import UsageError

__all__ = ["SYSTEMS", "Parser", "add_places", "main", "number"]

DESCRIPTION = """Look after computations: read their resource files, submit agents to a batch system while their masters
lack slaves, and remove jobs that wait or idle without need. It ends when all computations are finished and no job of
them is left. When it is told to go (Ctrl-C, SIGTERM) its jobs stay with their masters; started again, it finds them."""

EPILOG = """A job runs what the master wrote into its resource file, in the directory where the overseer was started.
Exit codes: 0 all is finished, or --once did what it decided; 2 a bad option; 4 with --once or --remove: a resource file
could not be read, or the batch system did not answer or would not; 130 told to go."""


def _local(_: argparse.Namespace) -> Batch:
    from mwpy._batch.local import Local

    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Local(Path(state) / "mwpy" / "jobs")


def _htcondor(arguments: argparse.Namespace) -> Batch:
    from mwpy._batch.htcondor import HTCondor

    return HTCondor(arguments.memory, arguments.disk, arguments.transfer)


def _slurm(_: argparse.Namespace) -> Batch:
    from mwpy._batch.slurm import Slurm

    return Slurm()


def _ssh(arguments: argparse.Namespace) -> Batch:
    if arguments.hosts is None:
        raise UsageError("--with ssh needs --hosts FILE, with a line `HOST slots=N` for each machine")
    from mwpy._batch.ssh import Ssh

    return Ssh(arguments.hosts, arguments.ssh_options)


SYSTEMS: dict[str, Callable[[argparse.Namespace], Batch]] = {
    "htcondor": _htcondor,
    "slurm": _slurm,
    "ssh": _ssh,
    "local": _local,
}
"""How each batch system is made of the options."""


def main(arguments: Sequence[str]) -> int:
    """Oversee; returns the exit code."""
    given = _parser().parse_args(arguments)
    batch = SYSTEMS[given.system](given)
    options = _options(given)
    return overseer.remove(options, batch) if given.remove else overseer.run(options, batch)


class Parser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; `{self.prog} --help` tells more")


def number(least: float, unit: Callable[[str], Any]) -> Callable[[str], Any]:
    """How an option that is a number is read."""

    def convert(text: str) -> Any:
        try:
            number = unit(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no {'whole ' if unit is int else ''}number") from None
        if not (number >= least and math.isfinite(number)):
            raise argparse.ArgumentTypeError(f"{text} is too small, {least:g} is the least")
        return number

    return convert


def _priority(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    if not name or not number.lstrip("-").isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form RESOURCE_FILE=NUMBER")
    return name, int(number)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="mwpy oversee", description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False)
    add = parser.add_argument
    add(
        "paths",
        nargs="+",
        type=Path,
        metavar="RESOURCE_FILE",
        help="what a master writes; or a directory, for all files *.rsc in it, those too that come later",
    )
    add("--with", dest="system", required=True, choices=[*SYSTEMS], help="where the agents are to run")
    limit = "at most N jobs in the queue at once, for all computations together; default 1000, local: one a core"
    add("--max", type=number(0, int), metavar="N", help=limit)
    add("--processes-per-agent", type=number(1, int), default=1, metavar="N", help="how many slaves a job has; 1")
    add("--per-minute", type=number(1, int), default=200, metavar="N", help="submit at most N jobs a minute; 200")
    add("--interval", type=number(0.1, float), default=10.0, metavar="SECONDS", help="between two looks; 10")
    patience = "how long a job must have waited or idled without need before it is removed; 60, with --once 0"
    add("--patience", type=number(0, float), metavar="SECONDS", help=patience)
    priority = "when --max is short, computations of a higher number are served first; 0 (repeatable)"
    add("--priority", type=_priority, action="append", default=[], metavar="RESOURCE_FILE=N", help=priority)
    add_places(parser)
    add("--once", action="store_true", help="look and act once, and end")
    add("--dry-run", action="store_true", help="look once, and say what would be done; do nothing")
    add("--remove", action="store_true", help="remove all jobs of these computations, busy or not, and end")
    return parser


def add_places(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how a job is made."""
    add = parser.add_argument
    command = "the program, with its first arguments, that is run instead of the one in the resource file"
    add("--command", type=shlex.split, default=[], metavar="'PROGRAM ARGUMENT ...'", help=command)
    add("--log-dir", type=Path, metavar="DIR", help="where jobs' output goes; RESOURCE_FILE.jobs")
    line = "added to each submission, in the batch system's own language (repeatable)"
    add("--line", action="append", default=[], metavar="LINE", help=line)
    add("--memory", default="1GB", metavar="SIZE", help="htcondor: memory that a job asks for; 1GB")
    add("--disk", default="1GB", metavar="SIZE", help="htcondor: disk that a job asks for; 1GB")
    transfer = "htcondor: carry this file to the job, and name it there where the command names it (repeatable)"
    add("--transfer", type=Path, action="append", default=[], metavar="FILE", help=transfer)
    add("--hosts", type=Path, metavar="FILE", help="ssh: the machines, a line `HOST [slots=N] [python=PATH]` each")
    add("--ssh-options", type=shlex.split, default=[], metavar="'-F FILE ...'", help="ssh: options for ssh itself")


def _options(given: argparse.Namespace) -> OverseerOptions:
    once = given.once or given.dry_run
    most = given.max
    if most is None:
        most = os.cpu_count() or 1 if given.system == "local" else 1000
    patience_s = given.patience if given.patience is not None else 0.0 if once else 60.0
    return OverseerOptions(
        paths=given.paths,
        settings=OverseerSettings(most, given.per_minute, patience_s, given.interval),
        slaves_per_job=given.processes_per_agent,
        priorities={name: number for path, number in given.priority for name in (path, os.path.realpath(path))},
        command=given.command,
        log_dir=given.log_dir,
        extra=tuple(given.line),
        once=given.once,
        dry_run=given.dry_run,
    )
