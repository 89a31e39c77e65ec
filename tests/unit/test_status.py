"""What `mwpy status` prints, on terminals of any size."""

from __future__ import annotations

from typing import Any

import pytest

from mwpy._values.messages import AlgorithmStatus, HostStatus, MapStatus, Notice, Status, plain_status
from mwpy.cli.status import SLAVES, TASKS, shown

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


@pytest.mark.parametrize("width", [60, 80, 100, 120, None])
def test_every_line_fits_and_no_number_is_cut(width: int | None) -> None:
    """The names are shortened in the middle. Numbers for which a terminal is too narrow are in further lines."""
    known = status(notices=[Notice(5.0, f"no slave is connected. {ADVICE}")])
    lines = shown(known, width)
    assert width is None or max(map(len, lines)) <= width
    words = " ".join(lines).split()
    [start] = [place for place, word in enumerate(words) if word[:2] + word[-1:] == "nog"]
    assert words[start + 1 : start + 9] == [str(100_000 + number) for number in range(8)]
    assert " ".join(words).endswith(ADVICE)


def test_a_low_terminal_shows_the_figures_the_newest_messages_and_the_first_hosts() -> None:
    hosts = {f"node{number}": host() for number in range(100)}
    notices = [Notice(100.0 - number, f"message {number}") for number in range(20)]
    lines = shown(status(hosts=hosts, notices=notices, last_failure="task 1 (f): no"), 100, 40)
    assert len(lines) == 39
    assert lines[5:10] == [f"{100 - number} s ago: message {number}" for number in range(15, 20)]
    assert lines[-2].startswith("node24 ")
    assert lines[-1] == "(75 more lines)"


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
