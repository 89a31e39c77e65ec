"""mwpy explain RESOURCE_FILE TASK [--json]: say why a task waits, or how it ended.

The command asks the master itself, as `mwpy status` does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from mwpy._roles.inquirer import Inquirer
from mwpy._values.errors import ExitCode
from mwpy._values.explanations import explained
from mwpy._values.inquiry_messages import Fate
from mwpy._values.messagepack import decode, encode
from mwpy.cli._arguments import Parser, number, on_screen

__all__ = ["main"]

DESCRIPTION = """Ask a running master about a task: why it waits, agent by agent, which slave has it and since when, or
how it ended. The computation is not disturbed."""

EPILOG = """Exit codes: 0: the master answered; 2: a bad option, no resource file, no such task, or the computation is
finished; 3: the master refused to answer; 4: no master answered."""


def main(arguments: Sequence[str]) -> int:
    """Explain a task; return the exit code."""
    parser = Parser("explain", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("path", type=Path, metavar="RESOURCE_FILE", help="the file that the master writes")
    parser.add_argument("task", type=number(1, int), metavar="TASK", help="the id of the task, as in its messages")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parsed = parser.parse_args(arguments)
    with Inquirer(parsed.path) as inquirer:
        answer = inquirer.explanation(parsed.task)
    if parsed.json:
        print(json.dumps(decode(encode(answer))))
    else:
        print(*map(on_screen, explained(answer).splitlines()), sep="\n")
    return ExitCode.USAGE if answer.fate is Fate.UNKNOWN else ExitCode.OK
