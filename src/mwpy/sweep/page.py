"""Examines the outputs that differ between two sweeps, and shows them on an HTML page: pictures, and lines of texts.

The page is one file that loads nothing from elsewhere. Everything on it is bounded, and it says how much is left out.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from difflib import unified_diff
from html import escape
from pathlib import Path
from string import Template

from attrs import Factory, define
from msgspec import structs

import mwpy
from mwpy import UsageError
from mwpy.sweep.compare import Difference
from mwpy.sweep.files import File

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
            difference = structs.replace(difference, pixels=how)
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
