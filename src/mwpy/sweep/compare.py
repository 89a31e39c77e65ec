"""Compares two sweeps: which results and outputs changed for the same parameters.

Both run databases are read side by side, a few rows at a time: two sweeps can have more outputs than the memory holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import zip_longest
from math import isclose
from typing import Any

from msgspec import Struct, field, to_builtins

from mwpy.sweep.collect import rows_of
from mwpy.sweep.files import File, files_in
from mwpy.sweep.rows import Row
from mwpy.sweep.settings import Sweep
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

    @property
    def is_same(self) -> bool:
        """Whether both have the same rows with the same results and outputs."""
        return not (self.changed or self.only_old or self.only_new)

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        found: dict[str, Any] = to_builtins(self)
        return found


Examine = Callable[[Difference, File | None, File | None], Difference | None]


def compare(old: Sweep, new: Sweep, tolerance: float, examine: Examine) -> Comparison:
    """Compare two sweeps.

    Args:
        tolerance: by which part of the larger one two numbers may differ.
        examine: gets each difference, and the old and the new file if it is one of an output. It returns the difference
            with all that is known about it, or None if the files count as the same.

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
        kept = [kept for each in found_here if (kept := examine(each, *(some.get(each.what) for some in files)))]
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
