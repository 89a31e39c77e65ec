"""Which findings of an examination are faults, and their remedies."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from mwpy._doctor.diagnosis import Address, Report, diagnose, no_report, stuck
from mwpy._values.jobs import Job, JobState, Outcome

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

CLOSED = [Address("tcp://a:1", "nobody listens there", 0.1, "unreachable")]
STRANGE = [Address("tcp://a:1", "it has other keys", 0.1, "refused")]
UNKNOWN = [Address("tcp://a:1", "no such host", 0.1, "unknown host")]


def faults(there: Report, here: Report | None = None) -> list[tuple[str, str, str]]:
    """Return the faults, if the clock here showed 999 s before and 1001 s after the examination."""
    found = diagnose(there, here, 999.0, 1001.0)
    return [(each.about, each.found, each.remedy) for each in found if each.remedy]


@pytest.mark.parametrize("here", [None, WELL])
def test_all_is_well(here: Report | None) -> None:
    """Everything is reported, even without a fault. One address that works is enough."""
    assert faults(WELL, here) == []
    found = {each.about: each.found for each in diagnose(WELL, here, 999.0, 1001.0)}
    assert found["machine"] == "node1, 8 cores"
    assert found["address"] == "tcp://b:1: connected in 2 ms, and the keys are right"
    assert found["master"] == "accepted it as AGENT-3; round trip 1.0 ms"
    assert found["application"] == "imported; its packages: numpy 2.4"
    assert found["time left"] == "3600 s"


def test_an_address_that_is_not_needed_is_spare() -> None:
    """It does not work, but another one does."""
    found = diagnose(WELL, None, 999.0, 1001.0)
    assert [each.spare for each in found if each.about == "address"] == [True, False]
    assert not [each for each in found if each.spare and each.about != "address"]


def test_what_is_not_known_is_no_fault() -> None:
    """Facts may be missing: the memory of a machine, the time limit of a job, the packages of an application."""
    dim = replace(WELL, memory=None, seconds_left=None, imports={}, cores=1)
    assert faults(dim) == []
    found = {each.about: each.found for each in diagnose(dim, None, 999.0, 1001.0)}
    assert (found["memory"], found["time left"]) == ("not known", "no limit is known")
    assert found["application"].endswith("none")


@pytest.mark.parametrize(
    ("changes", "about", "found", "remedy"),
    [
        ({"clock": 900.0}, "clock", "at least 99 s behind the one here", "NTP"),
        ({"clock": 1101.0}, "clock", "at least 100 s ahead of the one here", "NTP"),
        ({"file_fault": "cannot read it"}, "resource file", "cannot read it", "check that the job gets the file"),
        ({"file_age": 5000.0}, "resource file", "written 5000 s ago", "a fresh copy"),
        ({"file_age": -4922.0}, "resource file", "the master's clock is 4922 s ahead", "NTP"),
        ({"addresses": [], "agent": ""}, "address", "names no address of the master", "--mw-master-host"),
        ({"addresses": CLOSED, "agent": ""}, "address", "nobody listens there", "that the master is running"),
        ({"addresses": STRANGE, "agent": ""}, "address", "it has other keys", "another computation has this address"),
        ({"addresses": UNKNOWN, "agent": ""}, "address", "no such host", "--mw-master-host"),
        ({"agent": "", "refused": "it is stale"}, "master", "did not accept it: it is stale", "a fresh copy"),
        ({"imports": None, "import_fault": "No module"}, "application", "No module", "pack the script"),
        ({"memory": 1 << 20}, "memory", "1 MB free", "ask the batch system"),
        ({"disk": 1 << 20}, "disk", "1 MB free", "ask the batch system"),
        ({"seconds_left": 10.0}, "time left", "10 s", "more time"),
    ],
)
def test_a_fault_comes_with_its_remedy(changes: dict[str, Any], about: str, found: str, remedy: str) -> None:
    """There is one fault, and all other findings are good."""
    wrong = faults(replace(WELL, **changes), WELL)
    assert [each[0] for each in wrong] == [about]
    assert found in wrong[0][1]
    assert remedy in wrong[0][2]


@pytest.mark.parametrize(
    ("changes", "about", "found"),
    [
        ({"python": "3.13.5"}, "Python", "3.13.5 (/usr/bin/python3), here 3.11.7"),
        ({"libraries": {"mwpy": "2.0"}}, "libraries", "mwpy 2.0 there, 1.0 here"),
        ({"imports": {"numpy": "1.26"}}, "application", "numpy 1.26 there, 2.4 here"),
    ],
)
def test_another_version_than_here_is_a_fault(changes: dict[str, Any], about: str, found: str) -> None:
    """This holds for Python's minor versions, mwpy, and the application's packages, if there is a report from here."""
    wrong = faults(replace(WELL, **changes), WELL)
    assert [each[0] for each in wrong] == [about]
    assert found in wrong[0][1]
    assert faults(replace(WELL, **changes)) == []


def test_another_version_of_a_library_or_another_patch_version_of_python_is_no_fault() -> None:
    """Nevertheless, master and agents understand each other."""
    other = replace(WELL, python="3.11.2", libraries={"mwpy": "1.0", "pyzmq": "26"})
    assert faults(other, WELL) == []
    assert "pyzmq 26 there, 27 here" in diagnose(other, WELL, 999.0, 1001.0)[2].found


def test_a_finished_computation_has_no_addresses() -> None:
    """Nothing is reported about a connection to a finished computation."""
    found = {
        each.about for each in diagnose(replace(WELL, addresses=[], agent="", file_fault="finished"), None, 0.0, 2000.0)
    }
    assert not found & {"address", "master"}


def test_a_job_that_is_held_or_does_not_end_is_a_fault() -> None:
    """The batch system's note is shown."""
    held = stuck(Job("1", "m", JobState.HELD, note="no such file"), 600.0)
    assert (held.found, held.remedy) == (
        "it is held: no such file",
        "correct what the batch system names, and try again",
    )
    waiting = stuck(Job("1", "m", JobState.QUEUED), 600.0)
    assert waiting.found == "it is still queued after 600 s"
    assert "--timeout" in waiting.remedy


def test_a_job_without_a_report_is_a_fault() -> None:
    """The text that the job wrote instead is shown."""
    ended = no_report("1", Outcome.of_process(127, 0.0, "python: not found\n"), "/logs")
    assert ended.found == "there is no report: exit code 127. It wrote last:\npython: not found"
    assert "another --command" in ended.remedy
    silent = no_report("1", Outcome.of_process(0, 0.0, ""), "/logs")
    assert silent.found.endswith("It wrote last:\n(nothing)")
    unknown = no_report("1", None, "/logs")
    assert (unknown.found, unknown.remedy) == ("it is not known how 1 ended", "look into /logs")
