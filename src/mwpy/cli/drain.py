"""mwpy drain RESOURCE_FILE AGENT|HOST|JOB ... [--json]: let agents leave when they have finished what they run.

Let agents of a running master leave. They finish the tasks that run, get no more, and end with exit code 0. Tasks that
have not started run elsewhere. Status and audit file show such agents as leaving.

examples:
  mwpy drain app.rsc AGENT-3
  mwpy drain app.rsc 'node1*' 4711.0

exit codes:
  0    all agents with these names leave
  2    a bad option, no resource file, no such agent, or the computation is finished
  3    the master refused: the file is of another computation, or mwpy has another version
  4    no master answered
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from mwpy._roles.join import drain
from mwpy._values.errors import ExitCode
from mwpy._values.phrases import counted
from mwpy.cli._arguments import Parser, on_screen, show

__all__ = ["main", "make_parser"]


def main(arguments: Sequence[str]) -> int:
    """Let agents leave; return the exit code."""
    parsed = make_parser().parse_args(arguments)
    answer = drain(parsed.path, *parsed.names)
    lines = [f"{agent} leaves after its tasks" for agent in answer["agents"]]
    lines.append(f"{counted(len(answer['agents']), 'agent')} with {counted(answer['running'], 'task')}")
    show(answer, lines, as_json=parsed.json)
    for name in () if parsed.json else answer["unknown"]:
        print(on_screen(f"mwpy drain: {name}"), file=sys.stderr)
    return ExitCode.USAGE if answer["unknown"] else ExitCode.OK


def make_parser() -> Parser:
    """Describe the command line."""
    parser = Parser("drain", __doc__)
    parser.add_argument("path", type=Path, metavar="RESOURCE_FILE", help="the file that the master writes")
    names = "an agent, such as AGENT-3; the id of its job; or its host, also as a pattern"
    parser.add_argument("names", nargs="+", metavar="AGENT|HOST|JOB", help=names)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser
