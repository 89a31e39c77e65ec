"""mwpy compare OLD NEW: show which results changed between two sweeps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from mwpy import ExitCode
from mwpy.cli._arguments import Parser, number
from mwpy.sweep.collect import opened
from mwpy.sweep.compare import Comparison, compare

__all__ = ["main", "make_parser"]

DESCRIPTION = """Compare the results and outputs of two sweeps, row by row. Rows are the same if their parameters are.
Results are compared as numbers if both are numbers; outputs by their content."""

EXAMPLES = ("mwpy compare old.sweep new.sweep", "mwpy compare old.sweep new.sweep --tolerance 1e-6 --json")

EXIT_CODES: dict[int, str] = {
    ExitCode.OK: "all rows are the same",
    1: "some rows differ",
    ExitCode.USAGE: "a bad option, or no folder of a sweep",
}


def main(arguments: Sequence[str]) -> int:
    """Compare two sweeps; return the exit code."""
    parsed = make_parser().parse_args(arguments)
    found = compare(opened(parsed.old), opened(parsed.new), parsed.tolerance)
    print(json.dumps(found.to_dict()) if parsed.json else shown(found))
    return ExitCode.OK if found.is_same else 1


def make_parser() -> Parser:
    """Describe the command line."""
    parser = Parser("compare", description=DESCRIPTION, examples=EXAMPLES, exit_codes=EXIT_CODES)
    add = parser.add_argument
    add("old", type=Path, metavar="OLD", help="the folder of a sweep, or its study")
    add("new", type=Path, metavar="NEW", help="the folder of another sweep, or its study")
    tolerance = "numbers count as the same if they differ by at most this part of the larger one; default 0"
    add("--tolerance", type=number(0, float), default=0.0, metavar="T", help=tolerance)
    add("--json", action="store_true", help="print one JSON object")
    return parser


def shown(found: Comparison) -> str:
    """Return a comparison as lines of text."""
    lines = [f"{each.row}: {each.what}: {each.old} -> {each.new}" for each in found.differences]
    counts = f"{found.same} rows are the same, {found.changed} differ"
    return "\n".join(
        [*lines, f"{counts}, {found.only_old} are only in the old sweep, {found.only_new} only in the new"]
    )
