"""Compares two sweeps: which results and outputs changed for the same parameters."""

from __future__ import annotations

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


def compare(old: Sweep, new: Sweep, tolerance: float = 0.0) -> Comparison:
    """Compare two sweeps.

    Args:
        tolerance: by which part of the larger one two numbers may differ.

    Returns:
        What differs. Rows that have not ended are not in a sweep.
    """
    found = Comparison()
    former = dict(_ended(old))
    for row, ran in _ended(new):
        if row not in former:
            found.only_new += 1
            continue
        differences = [*_differences(row, former.pop(row), ran, tolerance)]
        found.differences += differences
        found.changed += bool(differences)
        found.same += not differences
    found.only_old = len(former)
    return found


def _ended(sweep: Sweep) -> list[tuple[str, dict[str, str]]]:
    """Return the rows that have ended, with texts of all that is compared."""
    return [(shown(sweep.rows.row(row.number)), _texts(row)) for row in rows_of(sweep)]


def _texts(row: Row) -> dict[str, str]:
    if row.failure:
        return {THE_RUN: reason_of(row.failure)}
    texts = {THE_RUN: "succeeded"} | {name: str(value) for name, value in row.results.items()}
    return texts | {f"output {name}": _contents(output) for name, output in row.outputs.items()}


def _contents(output: File | list[File]) -> str:
    return " ".join(f"{each.name} {each.digest[:DIGITS]}" for each in files_in(output))


def _differences(row: str, old: dict[str, str], new: dict[str, str], tolerance: float) -> list[Difference]:
    if old[THE_RUN] != new[THE_RUN]:
        return [Difference(row, THE_RUN, old[THE_RUN], new[THE_RUN])]
    return [
        Difference(row, name, old.get(name, "none"), new.get(name, "none"))
        for name in [*old, *(name for name in new if name not in old)]
        if not _is_same(old.get(name), new.get(name), tolerance)
    ]


def _is_same(old: str | None, new: str | None, tolerance: float) -> bool:
    if old == new:
        return True
    try:
        return old is not None and new is not None and isclose(float(old), float(new), rel_tol=tolerance)
    except ValueError:
        return False
