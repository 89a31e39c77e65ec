"""What a doctor makes of what was found: which of it is a fault, and what it says to do."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from mwpy._doctor.diagnosis import Address, Report, diagnose

WELL = Report(
    host="node1",
    python="3.11.7",
    executable="/usr/bin/python3",
    clock=1000.0,
    libraries={"mwpy": "1.0", "pyzmq": "27"},
    cores=8,
    memory=8 << 30,
    disk=8 << 30,
    seconds_left=3600.0,
    file_age=10.0,
    update_interval=300.0,
    addresses=[Address("tcp://a:1", "nobody listens there", 0.1), Address("tcp://b:1", "", 0.002)],
    agent="AGENT-3",
    round_trip_s=0.001,
    imports={"numpy": "2.4"},
)

CLOSED = [Address("tcp://a:1", "nobody listens there", 0.1)]
STRANGE = [Address("tcp://a:1", "the process that listens there has other keys, so it is another computation", 0.1)]
UNKNOWN = [Address("tcp://a:1", "no such host is known here", 0.1)]


def faults(there: Report, here: Report | None = None) -> list[tuple[str, str, str]]:
    """What is wrong, by a clock here that stood at 999 s before and at 1001 s after."""
    found = diagnose(there, here, 999.0, 1001.0)
    return [(each.about, each.found, each.remedy) for each in found if each.remedy]


@pytest.mark.parametrize("here", [None, WELL])
def test_all_is_well(here: Report | None) -> None:
    """Every thing is told of all the same; that one address of several works is enough."""
    assert faults(WELL, here) == []
    told = {each.about: each.found for each in diagnose(WELL, here, 999.0, 1001.0)}
    assert told["machine"] == "node1, 8 cores"
    assert told["address"] == "tcp://b:1: connected in 2 ms, and the keys are right"
    assert told["master"] == "let it in as AGENT-3; there and back in 1.0 ms"
    assert told["application"] == "imported; its packages: numpy 2.4"
    assert told["time left"] == "3600 s"


def test_what_is_not_known_is_no_fault() -> None:
    """A machine that does not tell its memory, a job without a limit of time, an application without packages."""
    dim = evolve(WELL, memory=None, seconds_left=None, imports={}, cores=1)
    assert faults(dim) == []
    told = {each.about: each.found for each in diagnose(dim, None, 999.0, 1001.0)}
    assert (told["memory"], told["time left"]) == ("not known", "no limit is known")
    assert told["application"].endswith("none")


@pytest.mark.parametrize(
    ("changes", "about", "found", "remedy"),
    [
        ({"clock": 900.0}, "clock", "at least 99 s behind the one here", "NTP"),
        ({"clock": 1101.0}, "clock", "at least 100 s ahead of the one here", "NTP"),
        ({"file_fault": "cannot read it"}, "resource file", "cannot read it", "see that the job gets it"),
        ({"file_age": 5000.0}, "resource file", "written 5000 s ago", "a fresh copy"),
        ({"addresses": CLOSED, "agent": ""}, "address", "nobody listens there", "whether the master lives"),
        ({"addresses": STRANGE, "agent": ""}, "address", "has other keys", "another computation has that address"),
        ({"addresses": UNKNOWN, "agent": ""}, "address", "no such host", "--mw-master-host"),
        ({"agent": "", "refused": "it is stale"}, "master", "did not let it in: it is stale", "a fresh copy"),
        ({"imports": None, "import_fault": "No module"}, "application", "No module", "pack the script"),
        ({"memory": 1 << 20}, "memory", "1 MB free", "ask the batch system"),
        ({"disk": 1 << 20}, "disk", "1 MB free", "ask the batch system"),
        ({"seconds_left": 10.0}, "time left", "10 s", "more time"),
    ],
)
def test_a_fault_comes_with_its_remedy(changes: dict[str, Any], about: str, found: str, remedy: str) -> None:
    """One fault, told once, and the rest is well."""
    told = faults(evolve(WELL, **changes), WELL)
    assert [each[0] for each in told] == [about]
    assert found in told[0][1]
    assert remedy in told[0][2]


@pytest.mark.parametrize(
    ("changes", "about", "found"),
    [
        ({"python": "3.13.5"}, "Python", "3.13.5 (/usr/bin/python3), here 3.11.7"),
        ({"libraries": {"mwpy": "2.0"}}, "libraries", "mwpy 2.0 there, 1.0 here"),
        ({"imports": {"numpy": "1.26"}}, "application", "numpy 1.26 there, 2.4 here"),
    ],
)
def test_another_version_than_here_is_a_fault(changes: dict[str, Any], about: str, found: str) -> None:
    """Of Python's minor versions, of mwpy, of a package of the application; not if nothing is known of here."""
    told = faults(evolve(WELL, **changes), WELL)
    assert [each[0] for each in told] == [about]
    assert found in told[0][1]
    assert faults(evolve(WELL, **changes)) == []


def test_another_library_or_patch_of_python_is_told_of_and_no_fault() -> None:
    """Master and agents of mwpy understand each other over these."""
    other = evolve(WELL, python="3.11.2", libraries={"mwpy": "1.0", "pyzmq": "26"})
    assert faults(other, WELL) == []
    assert "pyzmq 26 there, 27 here" in diagnose(other, WELL, 999.0, 1001.0)[2].found


def test_a_finished_computation_has_no_addresses() -> None:
    """Then nothing is said of a connection."""
    told = {each.about for each in diagnose(evolve(WELL, addresses=[], agent=""), None, 999.0, 1001.0)}
    assert not told & {"address", "master"}
