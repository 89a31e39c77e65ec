"""mwpy logs AUDIT_FILE [SLAVE-ID | TASK-ID] [--all]: show the last output of slaves, from their master's audit file.

Without an id, it lists the slaves that died. With `--all`, it also lists slaves that ended with exit code 0. With
the id of a slave, or the number of a task that was running when slaves died, it prints all of their last output.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from mwpy._values.errors import ExitCode, UsageError
from mwpy.audit import End, read_ends

__all__ = ["main"]

ENDED_WELL = "exit code 0"


def main(arguments: Sequence[str]) -> int:
    """Show the last output of slaves; returns the exit code."""
    if "--help" in arguments:
        print(f"usage: {__doc__}".rstrip())
        return ExitCode.OK
    names = [each for each in arguments if each != "--all"]
    odd = next((each for each in names if each.startswith("--")), None)
    if odd or not 1 <= len(names) <= 2:
        what = f"unknown option {odd}" if odd else f"{len(names)} names"
        raise UsageError(f"`mwpy logs` with {what}: write mwpy logs AUDIT_FILE [SLAVE-ID | TASK-ID] [--all]")
    ends = read_ends(Path(names[0]))
    try:
        if len(names) == 1:
            _list(ends, names[0], "--all" in arguments)
        else:
            _show(ends, *names)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return ExitCode.OK


def _list(ends: Iterable[End], name: str, everyone: bool) -> None:
    count = 0
    for end in ends:
        if everyone or end.cause != ENDED_WELL:
            count += 1
            print(_line(end))
    if not count:
        print(f"mwpy: no slave {'ended' if everyone else 'died'}, according to {name}", file=sys.stderr)


def _line(end: End) -> str:
    running = f" while it ran {end.running}" if end.running else ""
    first, more = end.cause.partition("\n")[::2]
    return f"{end.time} {end.sid:<12} {end.peak or '-':>10}  {first}{' ...' if more else ''}{running}"


def _show(ends: Iterable[End], name: str, wanted: str) -> None:
    """Print one slave, or all slaves that died while they ran one task."""
    number = re.fullmatch(r"(?:task )?(\d+)", wanted)
    task = int(number[1]) if number else 0
    count = 0
    for end in ends:
        if end.sid == wanted or (task and end.task == task):
            count += 1
            print(_line(end))
            print(end.words.shown(None) or "(no output is known)")
    if not count:
        what = f"no slave that ended while it ran task {task}" if task else f"no end of a slave {wanted}"
        raise UsageError(f"{name} contains {what}: `mwpy logs {name} --all` lists the slaves in it")
