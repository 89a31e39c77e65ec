"""mwpy explain RESOURCE_FILE TASK [--json]: say why a task waits, or how it ended.

Ask a running master about a task: why it waits, agent by agent, which slave has it and since when, or how it ended.
The computation is not disturbed.

examples:
  mwpy explain app.rsc 7
  mwpy explain app.rsc 7 --json

exit codes:
  0    the master answered
  2    a bad option, no resource file, no such task, or the computation is finished
  3    the master refused: the file is of another computation, or mwpy has another version
  4    no master answered
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import asdict

from mwpy._roles.join import explanation_of
from mwpy._values.errors import ExitCode
from mwpy.cli._arguments import Parser, number, show

__all__ = ["main", "make_parser"]


def main(arguments: Sequence[str]) -> int:
    """Explain a task; return the exit code."""
    parsed = make_parser().parse_args(arguments)
    answer = explanation_of(parsed.path, parsed.task)
    show(asdict(answer), str(answer).splitlines(), as_json=parsed.json)
    return ExitCode.OK if answer.is_known else ExitCode.USAGE


def make_parser() -> Parser:
    """Describe the command line."""
    parser = Parser("explain", __doc__)
    parser.add_argument("path", type=Path, metavar="RESOURCE_FILE", help="the file that the master writes")
    parser.add_argument("task", type=number(1, int), metavar="TASK", help="the id of the task, as in its messages")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser
