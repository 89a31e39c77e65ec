"""What measurements say together: medians, ratios of the same round, and the reasons of what is missing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from bench.peers.libraries import LIBRARIES
from bench.peers.runner import Measurement
from bench.peers.workloads import WORKLOADS, Figure

OWN = "mwpy"


class Row(NamedTuple):
    """One figure of one library. If there is no number, there is a reason."""

    workload: str
    figure: Figure
    library: str
    reason: str
    reached: Sequence[float]
    """What each round reached."""
    ratios: Sequence[float]
    """In each round, the figure of mwpy divided by that of the library."""


def rows(measurements: Sequence[Measurement]) -> Iterator[Row]:
    """Yield a row for each figure and library, in the order of the tables."""
    found: dict[tuple[Any, Any], dict[Any, Measurement]] = {}
    for each in measurements:
        found.setdefault((each["workload"], each["library"]), {})[each["round"]] = each
    for key, workload in WORKLOADS.items():
        for position, figure in enumerate(workload.figures):
            own = _reached(found.get((key, OWN), {}), position)
            for library in LIBRARIES:
                if (key, library) in found:
                    yield _row(key, figure, library, found[key, library], position, own)


def _row(
    key: str, figure: Figure, library: str, rounds: dict[Any, Measurement], position: int, own: dict[Any, float]
) -> Row:
    reached = _reached(rounds, position)
    reasons = [str(each["reason"]) for each in rounds.values() if "reason" in each]
    pairs = [(own[number], reached[number]) for number in reached if number in own and library != OWN]
    ratios = [mine / its for mine, its in pairs if math.isfinite(mine / its)]
    return Row(key, figure, library, reasons[0] if reasons else "", list(reached.values()), ratios)


def _reached(rounds: dict[Any, Any], position: int) -> dict[Any, float]:
    return {number: each["figures"][position] for number, each in rounds.items() if "figures" in each}


def summary(measurements: Sequence[Measurement]) -> list[dict[str, object]]:
    """Return the rows for JSON."""
    return [
        {
            "workload": row.workload,
            "figure": row.figure.title,
            "unit": row.figure.unit,
            "library": row.library,
            **_range("reached", row.reached),
            **_range("mwpy_to_library", row.ratios),
            **({"reason": row.reason} if row.reason else {}),
        }
        for row in rows(measurements)
    ]


def _range(name: str, numbers: Sequence[float]) -> dict[str, object]:
    if not numbers:
        return {}
    return {name: {"median": median(numbers), "least": min(numbers), "most": max(numbers), "rounds": len(numbers)}}


def markdown(measurements: Sequence[Measurement]) -> str:
    """Return the table of medians: a row for each figure, and a column for each library that was asked for."""
    found: dict[str, dict[str, str]] = {}
    for row in rows(measurements):
        better = "more" if row.figure.more_is_better else "less"
        head = f"{row.workload}: {row.figure.title}, {row.figure.unit} ({better} is better)"
        cell = _rounded(median(row.reached)) if row.reached else row.reason
        found.setdefault(head, {})[row.library] = cell
    libraries = [library for library in LIBRARIES if any(library in cells for cells in found.values())]
    lines = [["workload", *libraries], ["---", *("---:" for _ in libraries)]]
    lines += [[head, *(cells.get(library, "") for library in libraries)] for head, cells in found.items()]
    return "".join(f"|{'|'.join(line)}|\n" for line in lines)


def _rounded(number: float) -> str:
    """Return a number with at least three digits; `never` for the length of tasks that are never long enough."""
    if not math.isfinite(number):
        return "never"
    decimals = 2 - math.floor(math.log10(number)) if number > 0 else 0
    return f"{number:,.{max(0, decimals)}f}"
