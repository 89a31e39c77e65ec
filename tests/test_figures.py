"""docs/performance.md compares mwpy with other libraries: the figures there are those of the measured table below."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "performance.md").read_text(encoding="utf-8")
COMPARISON, _, MEASURED = PAGE.partition("<!-- table -->")

IN_THE_TABLE = {"joblib (loky)": "joblib"}
"""How the table calls a library that the comparison calls otherwise."""

ROUNDED = 0.15
"""How far a figure of the comparison may be from that of the table, as a part of it."""


def measured(workload: str) -> dict[str, float]:
    """The median of each library."""
    rows = [line.split("|")[1:-1] for line in MEASURED.splitlines() if line.startswith("|")]
    [found] = [row for row in rows if row[0].startswith(f"{workload}:")]
    return {name: float(cell.replace(",", "")) for name, cell in zip(rows[0][1:], found[1:], strict=True)}


def compared() -> dict[str, str]:
    """What the page says of each library that it compares with mwpy."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+ \| [^|]+) \|$", COMPARISON, re.MULTILINE)
    found = {name.strip("` "): text for name, text in rows}
    return {IN_THE_TABLE.get(name, name): text for name, text in found.items() if "times the rate" in text}


def test_at_least_five_libraries_are_compared() -> None:
    assert len(compared()) >= 5


@pytest.mark.parametrize("library", compared())
def test_the_rate_one_by_one_is_that_of_the_table(library: str) -> None:
    said = re.search(r"([\d,]+) times the rate", compared()[library])
    assert said is not None
    figures = measured("W1a")
    assert float(said[1]) == pytest.approx(figures["mwpy"] / figures[library], rel=ROUNDED)


@pytest.mark.parametrize("library", [name for name, text in compared().items() if "round trip" in text])
def test_the_round_trips_are_those_of_the_table(library: str) -> None:
    times = re.search(r"a round trip of ([\d.]+) ms instead of ([\d.]+) ms", compared()[library])
    assert times is not None
    figures = measured("W2")
    expected = sorted((figures["mwpy"], figures[library]))
    assert sorted(map(float, times.groups())) == pytest.approx(expected, rel=ROUNDED)
