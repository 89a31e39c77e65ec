"""The figures in the README are those of the table in docs/performance.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

IN_THE_TABLE = {"joblib (loky)": "joblib"}
"""How the table calls a library that the README calls otherwise."""

ROUNDED = 0.15
"""How far a figure of the README may be from that of the table, as a part of it."""


def measured(workload: str) -> dict[str, list[float]]:
    """Each library's median in the table, and the ratio of mwpy's to it."""
    text = (ROOT / "docs/performance.md").read_text()
    table = text.partition("<!-- table -->")[2]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    start = next(at for at, row in enumerate(rows) if row[0].startswith(workload))
    figures = {"mwpy": [float(rows[start][2].replace(",", ""))]}
    for row in rows[start + 1 :]:
        if row[0]:
            break
        figures[row[1]] = [float(row[at].replace(",", "")) for at in (2, 4)]
    return figures


def compared() -> dict[str, str]:
    """What the README says of each library that it compares with mwpy."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+ \| [^|]+) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    found = {name.strip("` "): text for name, text in rows}
    return {IN_THE_TABLE.get(name, name): text for name, text in found.items() if "times the rate" in text}


def test_the_readme_compares_at_least_five_libraries() -> None:
    assert len(compared()) >= 5


@pytest.mark.parametrize("library", compared())
def test_the_rate_one_by_one_is_that_of_the_table(library: str) -> None:
    said = re.search(r"([\d,]+) times the rate", compared()[library])
    assert said is not None
    assert float(said[1]) == pytest.approx(measured("W1a")[library][1], rel=ROUNDED)


@pytest.mark.parametrize("library", [name for name, text in compared().items() if "round trip" in text])
def test_the_round_trips_are_those_of_the_table(library: str) -> None:
    times = re.search(r"a round trip of ([\d.]+) ms instead of ([\d.]+) ms", compared()[library])
    assert times is not None
    figures = measured("W2")
    expected = sorted((figures["mwpy"][0], figures[library][0]))
    assert sorted(map(float, times.groups())) == pytest.approx(expected, rel=ROUNDED)
