"""mwpy compare OLD NEW: show which results changed between two sweeps.

Compare the results and outputs of two sweeps, row by row. Rows are the same if their parameters are. Results are
compared as numbers if both are numbers; outputs by their content, or images as pixels.

examples:
  mwpy compare old.sweep new.sweep
  mwpy compare old.sweep new.sweep --tolerance 1e-6 --json
  mwpy compare old.sweep new.sweep --pixels 2 --html changes.html

exit codes:
  0    all rows are the same
  1    some rows differ
  2    a bad option, no folder of a sweep, or no Pillow for its images
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from mwpy import ExitCode, UsageError
from mwpy._values.messagepack import to_plain
from mwpy.cli._arguments import Parser, number, on_screen
from mwpy.sweep.collect import opened
from mwpy.sweep.compare import MAX_OUTPUTS, Comparison, Page, compare

__all__ = ["main", "make_parser"]


def main(arguments: Sequence[str]) -> int:
    """Compare two sweeps; return the exit code."""
    parsed = make_parser().parse_args(arguments)
    page = Page(parsed.pixels, MAX_OUTPUTS if parsed.html else 0)
    found = compare(opened(parsed.old), opened(parsed.new), parsed.tolerance, page)
    print(json.dumps(to_plain(found)) if parsed.json else shown(found))
    if parsed.html:
        html = page.html(f"{parsed.old} compared with {parsed.new}", counts(found), found.differences)
        try:
            parsed.html.write_text(html, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise UsageError(f"{parsed.html} cannot be written ({error.strerror}): give another --html") from error
    return 1 if found.changed or found.only_old or found.only_new else ExitCode.OK


def make_parser() -> Parser:
    """Describe the command line."""
    parser = Parser("compare", __doc__)
    add = parser.add_argument
    add("old", type=Path, metavar="OLD", help="the folder of a sweep, or its study")
    add("new", type=Path, metavar="NEW", help="the folder of another sweep, or its study")
    tolerance = "numbers count as the same if they differ by at most this part of the larger one; default 0"
    add("--tolerance", type=number(0, float), default=0.0, metavar="T", help=tolerance)
    pixels = "compare images as pixels, whose values (0 to 255) may differ by up to T; needs Pillow"
    add("--pixels", type=number(0, float), metavar="T", help=pixels)
    add("--html", type=Path, metavar="FILE", help="write a page with what changed, also pictures; these need Pillow")
    add("--json", action="store_true", help="print one JSON object")
    return parser


def shown(found: Comparison) -> str:
    """Return a comparison as lines of text."""
    lines = [
        f"{each.row}: {each.what}: {each.old} -> {each.new}" + (f" ({each.pixels})" if each.pixels else "")
        for each in found.differences
    ]
    return "\n".join([*map(on_screen, lines), counts(found)])


def counts(found: Comparison) -> str:
    """Return how many rows are the same, and how many are not, as a line."""
    both = f"{found.same} rows are the same, {found.changed} differ"
    return f"{both}, {found.only_old} are only in the old sweep, {found.only_new} only in the new"
