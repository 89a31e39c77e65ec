"""What `mwpy status` prints, on terminals of any size."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest

from mwpy._values.messages import AlgorithmStatus, HostStatus, MapStatus, Notice, Status, plain_status
from mwpy.cli.status import LEFT_OUT_FIRST, SLAVES, TASKS, shown

ADVICE = "If none is queued in a batch system, start some with `python APP --mw-slave --mw-resource-file FILE`"


def host(**changed: int) -> HostStatus:
    figures: dict[str, Any] = {name: 100_000 + number for number, name in enumerate(SLAVES)} | changed
    return HostStatus(**figures)


def status(**changed: Any) -> dict[str, Any]:
    """The status of a large computation, in which every column is wide and not zero."""
    figures = {name: 20_000_000 + number for number, name in enumerate(TASKS)}
    of_all: dict[str, Any] = {
        "member_id": "m",
        "generation": "g",
        "uptime_s": 7500.9,
        "tasks": {"pending": 1000, "at_slaves": 24, "succeeded": 976, "failed": 0, "cancelled": 0},
        "rate": 100.0,
        "slaves_wanted": 8,
        "slaves_connected": 8,
        "slaves_needed": 0,
        "algorithms": {"relax_the_lattice_of_one_crystal": AlgorithmStatus(**figures)},
        "hosts": {"node0017.cluster.physics.example.org": host(), "node18": host()},
        "failures": {},
        "lost": {},
    }
    return plain_status(Status(**of_all | changed))


def table(lines: list[str], title: str) -> list[str]:
    """The lines of the table with this title."""
    start = next(at for at, line in enumerate(lines) if line.startswith(title + " "))
    return lines[start : start + (3 if title == "host" else 2)]


def heads(line: str) -> set[str]:
    return {name for name in {*SLAVES, *TASKS} if re.search(rf"\b{name.replace('_', ' ')}\b", line)}


@pytest.mark.parametrize("width", [60, 80, 100, 120, None])
def test_every_line_fits_and_no_number_is_cut(width: int | None) -> None:
    """What is shown of a host is what the status says. The name is shortened in the middle."""
    known = status(notices=[Notice(5.0, f"no slave is connected. {ADVICE}")])
    lines = shown(known, width)
    assert width is None or max(map(len, lines)) <= width
    figures = {str(value) for row in known["hosts"].values() for value in row.values()}
    for line in table(lines, "host")[1:]:
        assert {*line.split()[1:]} <= figures
    name = table(lines, "host")[1].split()[0]
    assert name.startswith("node0017")
    assert name.endswith(".org")
    assert " ".join(" ".join(lines).split()).endswith(ADVICE)


def test_a_wide_terminal_shows_all_columns() -> None:
    """A pipe does, too: it has no width."""
    for lines in shown(status(), 160), shown(status()):
        assert heads(table(lines, "host")[0]) == {*SLAVES}
        assert heads(table(lines, "algorithm")[0]) == {*TASKS}


def test_columns_of_zeros_are_left_out_first_and_only_if_there_is_no_room() -> None:
    zeros = {"starting": 0, "leaving": 0, "away": 0, "agents": 0}
    some = status(hosts={"node0017.cluster.physics.example.org": host(**zeros), "node18": host(**zeros)})
    assert heads(table(shown(some, 120), "host")[0]) == {*SLAVES}
    assert heads(table(shown(some, 80), "host")[0]) == {*SLAVES} - {*zeros}


def test_then_the_least_important_columns_are_left_out() -> None:
    """Failed tasks and busy slaves are shown anyway. A narrower terminal shows no column that a wider one lacks."""
    found = [heads(table(shown(status(), width), "host")[0]) for width in range(160, 39, -1)]
    assert all(narrow <= wide for wide, narrow in pairwise(found))
    assert found[-1] >= {"busy", "failed"}
    gone = [name for name in LEFT_OUT_FIRST if name in SLAVES]
    for columns in found:
        left_out = [name for name in gone if name not in columns]
        assert left_out == gone[: len(left_out)]


def test_a_low_terminal_shows_the_figures_and_the_newest_messages() -> None:
    """Tables are cut, then the oldest messages are left out."""
    hosts = {f"node{number}": host() for number in range(100)}
    notices = [Notice(100.0 - number, f"message {number}") for number in range(20)]
    lines = shown(status(hosts=hosts, notices=notices), 80, 40)
    assert len(lines) == 39
    assert any(re.fullmatch(r"\(\d+ more are not shown\)", each) for each in lines)
    assert lines[-1].endswith(": message 19")
    assert any(line.endswith(": message 0") for line in lines)
    lowest = shown(status(hosts=hosts, notices=notices), 80, 16)
    assert len(lowest) == 15
    assert lowest[0].startswith("m (generation g)")
    assert lowest[-1].endswith(": message 19")


def test_times_are_in_hours_and_minutes() -> None:
    lines = shown(
        status(maps=[MapStatus("f", 976, 1_000_000, 3)], unsubmitted=998_000, notices=[Notice(4000.0, "old")])
    )
    assert lines[:4] == [
        "m (generation g), up 2 h 05 min",
        "tasks: 976 of 1000000 have ended: 1000 pending, 24 at slaves, 976 succeeded",
        "map of f: 976 of 1000000 items have ended, 3 failed",
        "rate: 100 tasks a second over the last minute, 999024 tasks left: 2 h 46 min",
    ]
    assert lines[-1] == "1 h 07 min ago: old"


def test_if_a_map_does_not_know_how_many_items_it_has_the_numbers_are_the_least_ones() -> None:
    lines = shown(status(maps=[MapStatus("f", 976, None, 0)], unsubmitted=None, rate=2000.0))
    assert lines[1].startswith("tasks: 976 of at least 2000 have ended: ")
    assert lines[2] == "map of f: 976 of an unknown number of items have ended"
    assert lines[3] == "rate: 2000 tasks a second over the last minute, at least 1024 tasks left: at least 0 s"


def test_only_a_few_maps_are_named() -> None:
    lines = shown(status(maps=[MapStatus(f"f{number}", 0, 1, 0) for number in range(7)]))
    assert lines[7] == "(2 more maps)"
