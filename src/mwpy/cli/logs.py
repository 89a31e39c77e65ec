"""mwpy logs AUDIT_FILE [SLAVE-ID | TASK-ID] [--all]: show the last output of slaves, from their master's audit file.

Without an id, it lists the slaves that died. With `--all`, it also lists slaves that ended with exit code 0. With the
id of a slave, it prints all last output of this slave. With the number of a task, it prints all last output of the
slaves that died while they ran this task.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from mwpy._values.errors import ExitCode, UsageError
from mwpy._values.exits import describe_exit
from mwpy.audit import End, read_ends
from mwpy.cli._arguments import Parser

__all__ = ["main"]

USAGE = "mwpy logs AUDIT_FILE [SLAVE-ID | TASK-ID] [--all]"

DESCRIPTION = (
    "Show the last output of slaves, from their master's audit file. Without an id, list the slaves that died."
)


def main(arguments: Sequence[str]) -> int:
    """Show the last output of slaves; return the exit code."""
    parsed = _parser().parse_args(arguments)
    ends = read_ends(parsed.path)
    try:
        if parsed.id is None:
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
    parser.add_argument("--all", action="store_true", help="also list slaves that ended with exit code 0")
    return parser


def _list(ends: Iterable[End], path: Path, include_all: bool) -> None:
    shown = [end for end in ends if include_all or end.reason != describe_exit(0)]
    for end in shown:
        print(_line(end))
    if not shown:
        print(f"mwpy: no slave {'ended' if include_all else 'died'}, according to {path}", file=sys.stderr)


def _line(end: End) -> str:
    running = f" while it ran {end.running}, {end.cause}" if end.running else ""
    first, more = end.reason.partition("\n")[::2]
    return f"{end.time} {end.sid:<12} {end.peak or '-':>10}  {first}{' ...' if more else ''}{running}"


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
