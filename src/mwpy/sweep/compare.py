"""Compares two sweeps: which results and outputs changed for the same parameters, and shows this on an HTML page.

Both run databases are read side by side, a few rows at a time: two sweeps can have more outputs than the memory holds.
The page is one file that loads nothing from elsewhere. Everything on it is bounded, and it says how much is left out.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from difflib import unified_diff
from html import escape
from itertools import zip_longest
from math import isclose
from pathlib import Path
from string import Template

from attrs import Factory, define
from msgspec import Struct, field
from msgspec.structs import replace

import mwpy
from mwpy import UsageError
from mwpy.sweep.collect import rows_of
from mwpy.sweep.files import File, files_in
from mwpy.sweep.settings import Sweep
from mwpy.sweep.stages import Row
from mwpy.sweep.study import reason_of, shown

THE_RUN = "the run"
"""What is compared first. If it differs, nothing else is compared."""

DIGITS = 12
"""How many digits of the digest of an output are shown."""


class Difference(Struct, frozen=True):
    """Something that differs between two runs with the same parameters."""

    row: str
    """The parameters."""
    what: str
    """A result, an output, or `the run`."""
    old: str
    new: str
    pixels: str = ""


class Comparison(Struct):
    """How two sweeps differ. All numbers count rows."""

    same: int = 0
    changed: int = 0
    only_old: int = 0
    only_new: int = 0
    differences: list[Difference] = field(default_factory=list)


def compare(old: Sweep, new: Sweep, tolerance: float, page: Page) -> Comparison:
    """Compare two sweeps.

    Args:
        tolerance: by which part of the larger one two numbers may differ.
        page: examines each difference.

    Returns:
        What differs. Rows that have not ended are not in a sweep.
    """
    if old.folder.resolve() == new.folder.resolve():  # it cannot be opened twice
        return Comparison(same=sum(1 for _ in rows_of(old)))
    found, former, rows = Comparison(), _numbers(old), _numbers(new)
    both = [row for row in rows if row in former]
    befores = rows_of(old, [former[row] for row in (*both, *(row for row in former if row not in rows))])
    afters = rows_of(new, [rows[row] for row in (*both, *(row for row in rows if row not in former))])
    for row, before, after in zip_longest(both, befores, afters):
        texts = _texts(before), _texts(after)
        if row is None or not all(texts):
            found.only_old += bool(texts[0])
            found.only_new += bool(texts[1])
            continue
        files = _files(before), _files(after)
        found_here = _differences(row, *texts, tolerance)
        kept = [kept for each in found_here if (kept := page.examine(each, *(some.get(each.what) for some in files)))]
        found.differences += kept
        found.changed += bool(kept)
        found.same += not kept
    return found


def _numbers(sweep: Sweep) -> dict[str, int]:
    """Return the numbers of the rows by their parameters. Rows with the same parameters are counted."""
    seen = Counter[str]()
    return {_counted(shown(sweep.rows.row(number)), seen): number for number in range(len(sweep.rows))}


def _counted(name: str, seen: Counter[str]) -> str:
    seen[name] += 1
    return name if seen[name] == 1 else f"{name} ({seen[name]})"


def _texts(row: Row | None) -> dict[str, str]:
    """Return all that is compared as texts; nothing if the row has not ended."""
    if row is None or (row.is_cancelled and not row.failure):
        return {}
    if row.failure:
        return {THE_RUN: reason_of(row.failure)}
    texts = {THE_RUN: "succeeded"} | {name: str(value) for name, value in row.results.items()}
    return texts | {what: f"{file.name} {file.digest[:DIGITS]}" for what, file in _files(row).items()}


def _files(row: Row) -> dict[str, File]:
    """Return the outputs of a row by what they are called here. Each file of a pattern counts on its own."""
    files, seen = dict[str, File](), Counter[str]()
    for name, output in row.outputs.items():
        for file in files_in(output):
            files[_counted(f"output {name}" if file is output else f"output {name}: {file.name}", seen)] = file
    return files


def _differences(row: str, old: dict[str, str], new: dict[str, str], tolerance: float) -> list[Difference]:
    if old[THE_RUN] != new[THE_RUN]:
        return [Difference(row, THE_RUN, old[THE_RUN], new[THE_RUN])]
    return [
        Difference(row, name, old.get(name, "none"), new.get(name, "none"))
        for name in {**old, **new}
        if not _is_same(old.get(name), new.get(name), tolerance)
    ]


def _is_same(old: str | None, new: str | None, tolerance: float) -> bool:
    if old == new:
        return True
    try:
        return old is not None and new is not None and isclose(float(old), float(new), rel_tol=tolerance)
    except ValueError:
        return False


# The page.


SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp")

_BODY = """<p>{counts}.</p>
<figure><table>
<thead><tr><th>parameters</th><th>what</th><th>old</th><th>new</th><th>pixels</th></tr></thead>
<tbody>
{rows}
</tbody></table></figure>
<p>Of each output that changed, the old one is on the left, the new one in the middle, and their difference on the
right. Pictures show the part that differs.</p>
{outputs}
<p>Not shown: {hidden}. <code>mwpy compare</code> lists all.</p>"""

# The most rows of the table, outputs below it, lines of an output, characters of a line, and bytes of an output whose
# lines are compared. The time for this grows faster than their number.
MAX_ROWS, MAX_OUTPUTS, MAX_LINES, MAX_CHARACTERS, MAX_BYTES = 1000, 50, 40, 200, 100_000


@define
class Page:
    """Examines outputs that differ, and collects those that the page shows.

    Args:
        pixels: by how much the values of a pixel may differ; None if images with other contents always differ.
        room: how many outputs are shown. `seen` counts all that differ.
    """

    pixels: float | None
    room: int
    outputs: list[str] = Factory(list)
    seen: int = 0

    def examine(self, difference: Difference, old: File | None, new: File | None) -> Difference | None:
        """Return a difference with all that is known about it; None if the pixels of an image are the same.

        Raises:
            UsageError: it is one of images, and Pillow is not installed.
        """
        if old is None or new is None or (self.pixels is None and not self.room):
            return difference
        shown = ""
        if all(file.name.lower().endswith(SUFFIXES) for file in (old, new)):
            try:
                from mwpy.sweep.images import image_change

                differs, how, pictures = image_change(old, new, self.pixels or 0)
            except ImportError as error:
                raise UsageError(f"{new.name} needs Pillow ({error}): pip install 'mwpy-cluster[images]'") from error
            except Exception as error:  # Pillow raises errors of many kinds for damaged files
                differs, how, pictures = True, f"the pixels cannot be compared: {error}", ()
            if not differs and self.pixels is not None:
                return None
            difference = replace(difference, pixels=how)
            shown = "".join(f'<img src="data:image/png;base64,{b64encode(each).decode()}">' for each in pictures)
        self.seen += 1
        if self.seen <= self.room:
            head = f"<h2>{escape(difference.row)}: {escape(difference.what)}</h2>\n<p>{escape(difference.pixels)}</p>"
            self.outputs.append(f"{head}\n<div class='sides'>{shown or _changed_lines(old, new)}</div>")
        return difference

    def html(self, title: str, counts: str, found: Sequence[Difference]) -> str:
        """Return the page."""
        cells = [[each.row, each.what, each.old, each.new, each.pixels] for each in found[:MAX_ROWS]]
        rows = "\n".join("<tr><td>" + "</td><td>".join(map(escape, row)) + "</td></tr>" for row in cells)
        hidden = f"{len(found) - len(cells)} rows of the table, and {self.seen - len(self.outputs)} outputs below it"
        outputs = "\n".join(self.outputs)
        body = _BODY.format(counts=counts, rows=rows, outputs=outputs, hidden=hidden)
        frame = Template(Path(mwpy.__file__).with_name("frame.html").read_text(encoding="utf-8"))
        return frame.substitute(title=escape(title), body=body)


def _changed_lines(old: File, new: File) -> str:
    """Return the lines of a text that differ as HTML, with the lines around them, or why they are not shown."""
    if any(len(file.content) > MAX_BYTES or b"\0" in bytes(file.content) for file in (old, new)):
        return "no text, or too long to compare the lines"
    before, after = (file.read_text(errors="backslashreplace").splitlines() for file in (old, new))
    lines = [line[:MAX_CHARACTERS] for line in unified_diff(before, after, "old", "new", n=2, lineterm="")]
    lines[MAX_LINES:] = [f"{len(lines) - MAX_LINES} more lines are not shown"] if len(lines) > MAX_LINES else []
    return "<pre>" + escape("\n".join(lines)) + "</pre>"
